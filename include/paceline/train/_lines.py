"""The progress lines of a ``track`` loop: its position, and forecasts from its speed so far. Used by ``_loop``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sized
from typing import Any

from . import _session
from ._display import Display
from ._source import LoopState
from ._tail import Tail
from .pacing.threads import thread_count
from .progress import Progress
from .saving import data


class ProgressLines:
    """Shows the progress of a loop.

    Parameters
    ----------
    display:
        Output for progress; ``None`` chooses an output for the environment when the loop begins.
    loader, device, validation, tail:
        As for ``track``.

    Attributes
    ----------
    validation_batches:
        Number of training batches that take as long as a validation.
    epoch_ends:
        Whether ends of epochs have been reported: then the mean duration of a batch excludes the validations.
    resize_s:
        How long the last change of the devices took; ``None`` before the first.
    next_s:
        Time at which the next line is due.
    """

    def __init__(
        self,
        display: Display | None,
        loader: Iterable[Any],
        device: object,
        validation: Sized | None,
        tail: float | str | None,
    ) -> None:
        self._display = display
        self._device = None if device is None else str(device)
        self.validation_batches = data.validation_batches(validation, loader)
        self._tail = None if tail is None else Tail.read(tail)
        self.epoch_ends = False
        self.resize_s: float | None = None
        self.next_s = float("-inf")

    def open(self, session: _session.Session) -> None:
        """Choose an output if none was given."""
        self._display = self._display or session.display()

    def close(self) -> None:
        """Finish the output."""
        if self._display is not None:
            self._display.close()

    def show(self, loop: LoopState, session: _session.Session, event: str) -> None:
        """Show the progress of ``loop``, with the newest reported values."""
        now_s = session.clock()
        values, source, batch_s = session.reported_values(), loop.source, loop.batch_s(now_s)
        done, total = loop.own_progress
        progress = Progress(
            done=done,
            total=total,
            epoch=min(loop.epoch, loop.epochs - 1),
            epochs=loop.epochs,
            event=event,
            loss=values.pop("loss", None),
            metrics=values,
            spent=source.spent if source is not None else {},
            device=self._device or _default_device(),
            threads=thread_count(),
            devices_in_force=source.devices if source is not None else None,
            save_s=session.checkpoint.save_s if session.checkpoint is not None else None,
            validation_s=self._validation_s(loop, batch_s),
            tail_s=None if self._tail is None else self._tail.seconds(batch_s, loop.epoch_batches),
            resize_s=self.resize_s,
            may_end_early=loop.monitor is not None,
            monotonic_s=now_s,
            wall_s=time.time(),
        )
        session.show(progress, self._display)
        if self._display is not None:
            self.next_s = now_s + self._display.interval_s

    def _validation_s(self, loop: LoopState, batch_s: float | None) -> float | None:
        """Return the seconds that a validation should take at the speed so far; ``None`` if unknown.

        If the epochs are too short for their ends to be reported, the measured speed includes the validations.
        """
        if batch_s is None or not self.validation_batches or (loop.epoch and not self.epoch_ends):
            return None
        return round(self.validation_batches * batch_s, 3)


def _default_device() -> str:
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"
