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
        self.begin(0)
        optimizers = {id(owner): owner for owner in (getattr(part, "optimizer", part) for part in parts)}
        hooks = (getattr(optimizer, "register_step_post_hook", None) for optimizer in optimizers.values())
        self._watches = [hook(self._on_step) for hook in hooks if callable(hook)]

    def begin(self, done: int) -> None:
        """Begin a loop of which ``done`` batches are done, without the gradients of another loop."""
        self._last = done - 1  # batches done before the batch of the last step; the loop begins as after a step
        self._longest = 0  # most batches from one step to the next; 0 before the first step

    def _on_step(self, *_: Any) -> None:
        done = self._batches_done()
        self._longest = max(self._longest, done - self._last)
        self._last = done

    def complete(self, done: int) -> bool:
        """Return whether the last of ``done`` batches made a step; also if none is to be expected any more."""
        waiting = done - 1 - self._last
        return not self._watches or not waiting or waiting >= (_LONGER * self._longest or _UNSEEN_BATCHES)
