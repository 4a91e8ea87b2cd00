"""Notices between which batches the gradients of several batches are still being accumulated.

A checkpoint contains no gradients, so ``_loop`` saves after a batch in which an optimizer has made a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# If no step was seen after so many batches, another optimizer than the saved ones makes them.
_UNSEEN_BATCHES = 64
# Gradients are accumulated over at most this many times the batches seen so far between two steps.
_LONGER = 4


class OptimizerSteps:
    """Counts the steps of the optimizers among the saved objects, by the hooks that torch's optimizers have.

    Parameters
    ----------
    parts:
        The saved objects; wrappers of an optimizer (Accelerate's, a scheduler) have it as an attribute ``optimizer``.
    batches_done:
        Function that returns the number of batches done.
    """

    def __init__(self, parts: Iterable[Any], batches_done: Callable[[], int]) -> None:
        self._batches_done = batches_done
        self._last: int | None = None  # batches done before the batch of the last step
        self._longest = 0  # most batches from one step to the next
        optimizers = {id(owner): owner for owner in (getattr(part, "optimizer", part) for part in parts)}
        hooks = (getattr(optimizer, "register_step_post_hook", None) for optimizer in optimizers.values())
        self._watches = [hook(self._on_step) for hook in hooks if callable(hook)]

    def _on_step(self, *_: Any) -> None:
        done = self._batches_done()
        if self._last is not None:
            self._longest = max(self._longest, done - self._last)
        self._last = done

    def complete(self, start: int, done: int) -> bool:
        """Return whether the last of ``done`` batches made a step; also if none is to be expected any more.

        ``start`` is the number of batches done when this process started the loop.
        """
        if not self._watches or done == start:
            return True
        if self._last is None or self._last < start:
            return done - start >= _UNSEEN_BATCHES
        return self._last >= done - 1 or done - self._last > _LONGER * max(self._longest, 1)
