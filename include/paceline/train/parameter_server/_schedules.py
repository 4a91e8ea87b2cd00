"""Learning rate schedulers of a worker that follow the training of all workers. Used by ``worker``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from paceline.train._values import log


class FollowingScheduler:
    """A scheduler with the number of steps that it would have if one machine had trained the batches of all workers.

    The training code steps the scheduler only in this worker's batches. ``begin_batch`` adds the steps of the other
    workers. A scheduler that the code steps in the middle of an epoch, or both in its first and its last batch, counts
    batches: it also gets the steps that the code would have made in the batches of the other workers. Any other
    scheduler counts epochs: it gets one step for each epoch whose end this worker has missed, and a second step at the
    end of one epoch is undone.

    With a single worker, the scheduler has exactly the steps of the training code.

    Parameters
    ----------
    scheduler:
        A torch scheduler, in its state right before the loop.

    Examples
    --------
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=100)
    >>> following = FollowingScheduler(scheduler)
    >>> for batch in (0, 1, 2):  # this worker trains one of eight batches
    ...     following.begin_batch(epoch=0, done=8 * batch)
    ...     optimizer.step(), scheduler.step()
    ...     following.end_batch(epoch=0, own=batch + 1, last=False)
    (None, None)
    (None, None)
    (None, None)
    >>> following.begin_batch(epoch=0, done=24)
    >>> scheduler.last_epoch
    24
    """

    def __init__(self, scheduler: LRScheduler) -> None:
        self._scheduler = scheduler
        self._before = self._snapshot()
        self._followed = True
        self._state: dict[str, Any] = {
            "batchwise": False,
            "first": None,  # after the batch with the first step: the steps, and this worker's batches
            "batches": 0,  # this worker's batches since then
            "steps": 0,  # steps of the training code since then
            "epoch": 0,  # the newest
            "previous": None,  # epoch of the previous batch
            "ended": False,  # whether this worker has seen the end of this epoch
            "epochwise": True,  # whether the code made a step at the last end of an epoch
            "step_epoch": None,  # epoch of the last step before the end of an epoch
        }

    def begin_batch(self, epoch: int, done: int) -> None:
        """Add the other workers' steps, before a batch of ``epoch`` when all workers have done ``done`` batches."""
        state = self._state
        if state["batchwise"] and state["batches"]:
            first_steps, first_batches = state["first"]
            steps = first_steps + max(done - first_batches, 0) * state["steps"] / state["batches"]
            self._move(math.floor(steps), math.ceil(steps))
        elif epoch > state["epoch"] and state["epochwise"]:
            missed = epoch - state["epoch"] - state["ended"]
            self._move(self._scheduler.last_epoch + missed, self._scheduler.last_epoch + missed)
        if epoch > state["epoch"]:
            state["epoch"], state["ended"] = epoch, False
        self._before = self._snapshot()

    def end_batch(self, epoch: int, own: float, *, last: bool) -> None:
        """Count the steps of the training code in a batch, which may be this worker's ``last`` of the epoch.

        ``own`` is the number of batches that this worker has done. Like ``done``, it counts batches of the script's
        size.
        """
        state = self._state
        made = self._scheduler.last_epoch - self._before[0]
        if state["first"] is not None:
            state["batches"] += 1
            state["steps"] += made
        elif made:
            state["first"] = [self._scheduler.last_epoch, own]
        if made and (state["step_epoch"] == epoch if last else state["previous"] == epoch):
            state["batchwise"] = True
        if made and not last:
            state["step_epoch"] = epoch
        if last and not state["batchwise"]:
            if made and (epoch < state["epoch"] or state["ended"]):
                self._restore(self._before)
            state["epochwise"] = made > 0
        state["ended"] = state["ended"] or (last and epoch == state["epoch"])
        state["previous"] = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return how far the scheduler has followed the other workers, for a process that continues from its state."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of ``state_dict``, with the scheduler in the same state."""
        self._state.update(state)
        self._before = self._snapshot()

    def _move(self, least: int, most: int) -> None:
        """Change the number of steps to a number between ``least`` and ``most``."""
        scheduler = self._scheduler
        if not self._followed or least <= scheduler.last_epoch <= most:
            return
        if scheduler.last_epoch > most >= self._before[0]:
            self._restore(self._before)
            least = most
        try:
            with warnings.catch_warnings():  # a late worker steps the scheduler before its optimizer
                warnings.simplefilter("ignore")
                while scheduler.last_epoch < least:
                    scheduler.step()
        except ValueError as error:  # the schedule has fewer steps than the training
            log(f"{type(scheduler).__name__} no longer follows the other workers: {error}")
            self._followed = False

    def _snapshot(self) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
        groups = self._scheduler.optimizer.param_groups
        settings = [{key: _copy(value) for key, value in group.items() if key != "params"} for group in groups]
        return self._scheduler.last_epoch, self._scheduler.state_dict(), settings

    def _restore(self, snapshot: tuple[int, dict[str, Any], list[dict[str, Any]]]) -> None:
        _, state, settings = snapshot
        self._scheduler.load_state_dict(state)
        for group, values in zip(self._scheduler.optimizer.param_groups, settings, strict=True):
            group.update({key: _copy(value) for key, value in values.items()})


def following_schedulers(parts: Mapping[str, Any]) -> dict[str, FollowingScheduler]:
    """Return a ``FollowingScheduler`` for each scheduler in ``parts`` that counts its steps."""
    return {
        name: FollowingScheduler(part)
        for name, part in parts.items()
        if isinstance(part, LRScheduler) and not isinstance(part, ReduceLROnPlateau) and hasattr(part, "last_epoch")
    }


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
