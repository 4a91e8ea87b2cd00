"""Drives an ordinary ``track`` loop from the callbacks of a library that owns the training loop. Used by all adapters.

The loop is advanced by ``next()`` instead of ``for``, so it shows progress, saves and ends as in other training code.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.train import _session
from paceline.train._loop import Loop
from paceline.train._track import track
from paceline.train._values import bad_value, whole_number
from paceline.train.job import ENV_SERVER, is_worker
from paceline.train.pacing import threads as _threads
from paceline.train.saving.checkpoint import Position, Resume, check_every_s, checkpoint_folder
from paceline.train.saving.library import LibraryCheckpoint
from paceline.train.saving.steps import OptimizerSteps

from ._frames import running_calls


class Steps:
    """The steps of one call of a library's training function: progress, checkpoints, SIGTERM and ``stop_early``.

    Create it before the library restores its state. Then call ``start`` once, and ``advance`` right before each step
    and after the last, or ``end`` if training ends earlier. A step may be a boosting round, a batch or an epoch.

    ``restored`` is the folder with the files of the newest checkpoint, to be read before ``start``, or ``None``.
    Without a checkpoint folder, and inside another ``track`` loop, nothing is saved or restored.

    Parameters
    ----------
    write:
        Function that writes the library's state into an empty folder, between two steps.
    fingerprint:
        What identifies the training, see ``paceline.train.adapters.fingerprint``. The checkpoint of another training is
        not restored.
    path:
        Folder for checkpoints. Default: the job's folder. Each such call in a process has its own subfolder.
    every_s:
        Seconds between two checkpoints; ``None`` as for ``checkpoint``.
    ready:
        Function that returns whether ``write`` can write the state right now, if not always. Until then, ``advance``
        neither saves nor ends on SIGTERM.
    within:
        The library's training function, if its callbacks are not informed of an error that ends the training. Create
        ``Steps`` in a callback of it.

    Raises
    ------
    RuntimeError
        In a worker of a parameter server, or after ``checkpoint()``.

    Examples
    --------
    >>> steps = Steps(write=lambda folder: None)
    >>> steps.start(3)
    >>> while steps.advance():
    ...     print(steps.done)
    0
    1
    2
    """

    def __init__(
        self,
        write: Callable[[Path], None],
        *,
        fingerprint: Mapping[str, str] | None = None,
        path: str | os.PathLike[str] | None = None,
        every_s: float | None = None,
        ready: Callable[[], bool] | None = None,
        within: Callable[..., Any] | None = None,
    ) -> None:
        if is_worker():
            raise RuntimeError(
                f"${ENV_SERVER}: a parameter server cannot train with a library's own training loop; train in a single "
                "job, or write the loop with paceline.train.track"
            )
        session = _session.current
        if session.close_abandoned is not None:
            session.close_abandoned(within)
        interval_s = check_every_s(every_s)
        folder = checkpoint_folder(path)
        self.restored: Path | None = None  # folder with the library's files, to be read before the first step
        self.resume: Resume | None = None
        self._number = session.loops_started
        self._within, self._thread = within, threading.get_ident()
        self._calls = 0 if within is None else running_calls(within, self._thread)
        self._loop: Loop[int] | None = None
        self._steps: Iterator[int] | None = None
        self._periods: _Periods | None = None
        self._saver: LibraryCheckpoint | None = None
        if session.loop is not None:
            return
        if session.epochs is not None:
            raise RuntimeError(
                "an adapter cannot be the loop of track_epochs(), whose restart would skip its training: loop over "
                "range(n) and call expect_trainings(n)"
            )
        if session.checkpoint is not None:
            raise RuntimeError("checkpoint() was called, but the adapter saves the library's own state: omit the call")
        if folder is None:
            return
        folder /= f"training-{session.loops_started}"
        self._saver = LibraryCheckpoint(write, folder, interval_s, session.clock, fingerprint)
        self._saver.steps = None if ready is None else _WhenReady(ready)
        self.restored = self._saver.restore()
        self.resume = self._saver.resume
        if self.resume is not None:
            session.restore_reported(self.resume.reported)

    @property
    def saves(self) -> bool:
        """Whether there is a checkpoint folder."""
        return self._saver is not None

    @property
    def due(self) -> bool:
        """Whether the next ``advance`` is to save or to end on SIGTERM, for which ``write`` has to be ready."""
        session, saver, loop = _session.current, self._saver, self._loop
        if saver is None or loop is None or session.terminating:
            return saver is not None and session.terminating
        now_s = session.clock()
        return now_s >= saver.next_save_s and not loop.nearly_done(now_s, saver.interval_s)

    @property
    def done(self) -> int:
        """Steps done, including those before a restart."""
        before = self.resume.position.done if self.resume is not None else 0
        return (self._loop.done if self._loop is not None else 0) or before

    def start(
        self,
        steps: int,
        *,
        epochs: int = 1,
        total: int | None = None,
        device: object = None,
        validation: float = 0.0,
        threads: int | None = None,
        pool: _threads.ThreadPool | None = None,
        argument: str = "steps",
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        """Start the loop, with ``steps`` steps in each epoch.

        With ``total``, training ends after this number of steps, even in the middle of an epoch. An epoch is then the
        period between two validations, which the library reports with ``pause``. ``validation`` is the number of steps
        that take about as long as one of them.

        ``pool`` contains the threads of a library that does not use torch's. ``on_stop`` is called by ``stop_early``,
        for a library that must know it before the next ``advance``. The other arguments are those of ``track``.
        Without ``total``, a number of steps that differs from that in the checkpoint raises ``ValueError``,
        which names the library's ``argument``.
        """
        steps = whole_number(argument, steps)
        total = None if total is None else whole_number("total", total)
        stored = self.resume.position.epoch_length if self.resume is not None and total is None else None
        if stored not in (None, steps):
            raise bad_value(argument, steps, f"{stored} as in the checkpoint, or another checkpoint folder")
        loader: Any = range(steps)
        if total is not None:
            if self.resume is not None:
                steps = _period(self.resume.position, steps)
            loader = self._periods = _Periods(steps, total)
            epochs = math.ceil(total / steps)
        self._loop = track(loader, epochs=epochs, total=total, device=device, threads=threads)
        self._loop.validation_batches = validation
        self._loop.on_stop = on_stop
        session = _session.current
        self._steps = iter(self._loop)
        if self._saver is not None:
            session.checkpoint = self._saver
            session.handle_sigterm()
        if session.loop is None:
            session.loop = self._loop  # for reports and stop_early() before the first step, when callbacks are replayed
            session.close_abandoned = self._close_abandoned if self._calls else None
        _threads.library_pool = pool

    def reset(self) -> None:
        """Leave the loop, if it was started: the library has handled an error, and starts again from ``restored``.

        If newer checkpoints have replaced ``restored``, the library starts without a checkpoint.
        """
        if self._loop is None:
            return
        _session.current.loops_started = self._number  # the next loop takes the place of this one
        self.close()
        self._loop = self._periods = None
        if self._saver is not None and self.restored is not None and not self.restored.is_dir():
            self.restored = self.resume = self._saver.resume = None

    def advance(self) -> bool:
        """End the current step and begin the next; return whether there is a next step.

        Between the steps, the loop saves a checkpoint if one is due. Raises ``SystemExit`` after a SIGTERM. There is no
        next step when all steps are done or after ``stop_early``, even if it was called before a restart. Raises
        ``RuntimeError`` before ``start``.
        """
        if self._loop is None:
            raise RuntimeError("Steps.advance() was called before Steps.start()")
        if self._steps is None:
            return False
        try:
            next(self._steps)
        except StopIteration:
            self._forget()
            return False
        except BaseException:
            self._forget()
            raise
        return True

    def extend(self, total: int) -> None:
        """Expect ``total`` steps, and continue with the next one even if they are done or after ``stop_early``.

        Call it before ``advance`` if the library decides when training ends. ``start`` needs a ``total``, too.
        """
        if self._loop is not None and self._periods is not None:
            self._periods.total = max(total, self._loop.done + 2)  # the step that ends, and the next
            self._loop.expect(total, math.ceil(self._periods.total / self._periods.steps))

    @property
    def stopping(self) -> bool:
        """Whether ``stop_early`` was called in this step."""
        return self._loop is not None and self._loop.stopped

    def pause(self) -> None:
        """Report that a validation begins in this step, so that the controller expects a pause."""
        session = _session.current
        if session.loop is self._loop and self._loop is not None:
            self._loop.report_epoch_end(session, session.clock())

    def end(self, *, trained: bool = True) -> None:
        """End training, even if steps are left. Without ``trained``, the current step does not count."""
        if self._steps is None or self._loop is None:
            return
        self._loop.done -= not trained
        if self._loop.done + 1 < self._loop.total:
            self._loop.stop_early()
        self.advance()

    def close(self) -> None:
        """Leave the loop after an error in the library, without a final checkpoint."""
        steps = self._steps
        self._forget()
        if steps is not None:
            steps.close()  # type: ignore[attr-defined]

    def _close_abandoned(self, new: Callable[..., Any] | None = None) -> None:
        """Close the loop if an error has ended the library's call, perhaps before the ``new`` call in this thread."""
        assert self._within is not None
        is_own = self._thread == threading.get_ident()
        if not is_own and self._thread in sys._current_frames():  # its frames change while this thread reads them
            return
        in_its_place = new is self._within and is_own
        if running_calls(self._within, self._thread) < self._calls + in_its_place:
            self.close()

    def _forget(self) -> None:
        self._steps = None
        _threads.library_pool = None
        session = _session.current
        if session.close_abandoned == self._close_abandoned:
            session.close_abandoned = None
        if session.loop is self._loop:
            session.loop = None
        if session.checkpoint is self._saver:
            session.checkpoint = None


class _WhenReady(OptimizerSteps):
    """Lets the loop save only when the library's state can be written."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def complete(self, done: int) -> bool:
        return self._ready()


def _period(position: Position, steps: int) -> int:
    """Return the length of the periods before the ``position``, which a restart keeps; ``steps`` if it is unknown."""
    if position.epoch:
        return (position.done - position.batch) // position.epoch
    return max(steps, position.batch)


class _Periods:
    """The steps of each period of ``steps`` steps; the last period ends with step ``total``, which may change."""

    def __init__(self, steps: int, total: int) -> None:
        self.steps, self.total = steps, total
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        step = self._epoch * self.steps
        end = step + self.steps
        while step < min(end, self.total):
            yield step
            step += 1
