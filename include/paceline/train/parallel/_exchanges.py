"""Notices gradients that are missing or not exchanged, and optimizers that a joining process does not receive.

Used by ``_replica``, also with a single process: the training code should fail in the first batch, not when the first
process joins.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from paceline.train._values import bad_value

_MAX_NAMED = 5


class Exchanges:
    """Counts the gradients of each parameter: one for each call of the model that trains."""

    def __init__(self) -> None:
        self.batches = 0
        """Number of batches that were started."""
        self._calls = 0
        self._gradients: dict[str, int] = {}

    def start_batch(self) -> None:
        """Start to count anew. A call whose gradient has not arrived yet still counts."""
        self.batches += 1
        self._calls = min(1, self._calls - max(self._gradients.values(), default=0))
        self._gradients.clear()

    def call(self) -> None:
        """Count a call of the model with gradients."""
        self._calls += 1

    def gradient(self, name: str) -> None:
        """Count a gradient of the parameter ``name``. Raises ``RuntimeError`` if the processes do not exchange it."""
        arrived = self._gradients[name] = self._gradients.get(name, 0) + 1
        if arrived <= self._calls:
            return
        if not self._calls:
            raise RuntimeError(
                f"data_parallel: a gradient of {name} comes from a call of the original model, which processes do not "
                "exchange: compute the loss from the result of the model that data_parallel() returns"
            )
        raise RuntimeError(
            f"data_parallel: {name} has {arrived} gradients from {self._calls} call(s) of the model, and processes "
            "exchange one for each call: add the losses and call backward() once, and use activation checkpointing "
            "with use_reentrant=False"
        )

    def check_use(self, trained: Iterable[str]) -> bool:
        """Return whether the batch had a gradient. Raises ``ValueError`` unless all ``trained`` parameters had one."""
        unused = [name for name in trained if name not in self._gradients]
        if self._gradients and unused:
            raise unused_parameters(unused)
        return bool(self._gradients)


def unused_parameters(names: list[str]) -> ValueError:
    """Return the error for parameters that got no gradient in a batch."""
    named = ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if names[_MAX_NAMED:] else "")
    return bad_value(
        "find_unused_parameters",
        False,
        "True in data_parallel(), or a model that uses all its parameters in each batch: "
        f"{named} got no gradient (requires_grad_(False) freezes parameters that are not trained)",
    )


class StepWatch:
    """Raises ``RuntimeError`` if an optimizer that is not among ``known`` trains something over several batches.

    An optimizer for something in one batch, such as an adversarial sample, is left alone.

    Parameters
    ----------
    module:
        The model whose gradients the processes exchange.
    known:
        The optimizers whose states a joining process receives.
    batch:
        Function that returns the number of the batch.
    """

    def __init__(self, module: nn.Module, known: Iterable[Any], batch: Callable[[], int]) -> None:
        self._exchanged = {id(parameter) for parameter in module.parameters()}
        self._known = {id(optimizer) for optimizer in known}
        self._batch = batch
        self._first_batches: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._handle = register_optimizer_step_post_hook(self._after_step)

    def close(self) -> None:
        """Stop to watch."""
        self._handle.remove()

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if id(optimizer) in self._known or self._first_batches.setdefault(optimizer, self._batch()) == self._batch():
            return
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if optimizer.state or not trained <= self._exchanged:
            raise RuntimeError(
                f"data_parallel: a process that joins would not receive the state of {type(optimizer).__name__}: "
                "pass it to checkpoint(model=model, optimizer=optimizer)"
            )
