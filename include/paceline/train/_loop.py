"""The loop over batches: counts batches, shows progress, adapts to the CPU share, saves, resumes, stops early.

Created by ``track``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Generic, TypeVar

from . import _session
from ._display import Display
from ._enumerated import warn_if_counted, warn_of_gaps
from ._source import BatchSource
from ._tail import Tail
from ._until import ReportMonitor
from ._values import bad_value, log, whole_number
from .job import is_follower, run_by_paceline
from .pacing.gpu_share import GpuShare
from .pacing.monitor import Converged
from .pacing.threads import Threads, thread_count
from .progress import Progress
from .saving import data
from .saving.checkpoint import Checkpoint, Position, Resume

T = TypeVar("T")

# Minimum seconds between two readings of the CPU share. The share is read between two batches.
_SHARE_INTERVAL_S = 0.5
# Do not report the end of an epoch that is shorter than this.
_SHORTEST_REPORTED_EPOCH_S = 1.0
# Skip a checkpoint if the final checkpoint is expected within this fraction of the checkpoint interval.
_SKIP_FRACTION = 0.2
_NOW = float("-inf")


class Loop(Generic[T]):
    """The loop that ``track`` returns. Iterate over it only once.

    Parameters
    ----------
    loader, epochs, total, device, threads, until, validation, tail:
        As for ``track``.
    display:
        Output for progress; ``None`` chooses an output for the environment.
    within_epochs:
        Whether ``track_epochs`` runs the epochs, one by one, perhaps each with another loader.
    """

    def __init__(
        self,
        loader: Iterable[T],
        *,
        epochs: int = 1,
        total: int | None = None,
        device: object = None,
        threads: int | None = None,
        until: Converged | None = None,
        validation: Sized | None = None,
        tail: float | str | None = None,
        display: Display | None = None,
        within_epochs: bool = False,
    ) -> None:
        self.epochs = whole_number("epochs", epochs)
        self.epoch = 0
        self.done = 0
        self.number = 0  # number of this loop, counted since checkpoint()
        self._given_total = None if total is None else whole_number("total", total)
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise bad_value("loader", loader, "a DataLoader or another iterable")
        self.replace_loader(loader)
        if self._length is None and total is None:
            raise bad_value("total", None, "the number of batches in all epochs, because the loader has no length")
        if self.epochs > 1 and not within_epochs and isinstance(loader, Iterator):
            accepted = "an iterable over the batches of each epoch, not an iterator that is exhausted after one epoch"
            raise bad_value("loader", type(loader).__name__, accepted)
        self._device = None if device is None else str(device)
        self.threads = Threads(None if threads is None else whole_number("threads", threads))
        self.validation_batches = data.validation_batches(validation, loader)  # training batches of its duration
        self._tail = None if tail is None else Tail.read(tail)
        self.monitor = None if until is None else ReportMonitor(until, self.epochs)
        self._display = display
        self._epoch_done = 0  # batches done at the start of the epoch
        self._epoch_batches = self._length or 0
        self._epoch_began_s = _NOW
        self._epoch_end_shown = self._reports_epoch_ends = False
        self._last_of_epoch = -1  # value of ``done`` before the epoch's last batch; -1 if unknown
        self.stopped = self._iterated = False
        self.on_stop: Callable[[], None] | None = None  # called by stop_early()
        self._server_done = 0  # value of ``done`` when the parameter server last reported its progress
        self._last_by_server: bool | None = None  # whether this batch is the epoch's last, from the parameter server
        self.source: BatchSource | None = None
        self._gpu_share: GpuShare | None = None  # set by ``open``
        self._within_epochs = within_epochs
        self._next_check_s = self._next_show_s = self._next_share_s = _NOW
        self._start_point = (0, 0.0)  # batches done and clock time when this process started the loop
        self._resize_s: float | None = None  # how long the last change of the devices took
        self.total = self._planned_total()

    def __len__(self) -> int:
        return self.total

    @property
    def batch(self) -> int:
        """Batches done in this epoch."""
        return self.done - self._epoch_done

    @property
    def epoch_end(self) -> bool:
        """Whether this batch is the epoch's last. Always false for a loader without a length."""
        if self._last_by_server is not None:
            return self._last_by_server
        return self._length is not None and self.batch + 1 >= self._length

    def stop_early(self) -> None:
        """End the loop after this batch. See ``paceline.train.stop_early``."""
        if self.source is not None and self.source.profiling:
            return
        self.stopped = True
        self._next_check_s = _NOW
        if self.on_stop is not None:
            self.on_stop()

    def expect(self, total: int, epochs: int) -> None:
        """Expect another number of batches and epochs, and continue even after ``stop_early``."""
        self.stopped, self._given_total, self.epochs = False, total, epochs
        self.total = self._planned_total()

    def check_now(self) -> None:
        """Check right after this batch whether to save, to show progress or to end on a signal."""
        self._next_check_s = _NOW

    def __iter__(self) -> Iterator[T]:
        session = _session.current
        if session.epochs is not None and session.epochs.owns(self):
            return warn_if_counted(session.epochs.batches(self), "track")
        if self._iterated:
            raise RuntimeError("this track(...) loop has already run: call track() again for another loop")
        self._iterated = True
        if session.loop is not None:
            log("a nested track() loop runs as a plain loop: only the outer loop shows progress and resumes")
            return self._run_plain()
        if session.epochs is not None:
            raise RuntimeError("track() was called outside the track_epochs() loop: call it in the body of that loop")
        return warn_if_counted(self._run(session), "track")

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, T]]:
        """Yield pairs of a number and a batch, as ``enumerate`` does. After a restart, the numbers continue.

        Parameters
        ----------
        start:
            Number of the first batch: of the epoch, within ``track_epochs``, otherwise of all epochs.

        Examples
        --------
        >>> from paceline.train import track
        >>> list(track("ab", epochs=2).enumerate(1))
        [(1, 'a'), (2, 'b'), (3, 'a'), (4, 'b')]
        """
        session = _session.current
        in_epoch = session.epochs is not None and session.epochs.owns(self)
        warn_of_gaps()
        for batch in self:
            yield start + (self.batch if in_epoch else self.done), batch

    def set_position(self, epoch: int, batch: int, done: int, epochs: int, total: int) -> None:
        """Set the position and the forecast that the lead has sent."""
        self.epoch, self.done, self._epoch_done = epoch, done, done - batch
        self.epochs, self.total = epochs, total

    @property
    def own_progress(self) -> tuple[int, int]:
        """Batches done and expected in this process. In a fleet, they exclude those of the other workers."""
        if self.source is None or self.source.progress is None:
            return self.done, max(self.total, self.done)
        done, total = self.source.progress
        done += self.done - self._server_done  # the batch that the server does not know about yet
        return done, max(total, done)

    def set_server_progress(self, epoch: int, epochs: int, done: int, total: int, *, last: bool) -> None:
        """Set the progress of all workers, which the parameter server reports."""
        self.epoch, self.epochs, self.done, self.total, self._last_by_server = epoch, epochs, done, total, last
        self._epoch_done, self._server_done = min(epoch * (self._length or 0), done), done

    def _run_plain(self) -> Iterator[T]:
        for epoch in range(self.epochs):
            self.epoch, self._epoch_done = epoch, self.done
            for batch in self.loader:
                yield batch
                self.done += 1
                if self.stopped:
                    return

    def _run(self, session: _session.Session) -> Iterator[T]:
        resume = self.restore_position(session)
        if resume is not None and resume.position.loop > self.number:
            return  # the checkpoint was written after the end of this loop
        was_over = resume is not None and resume.position.ended and self.over
        if resume is not None and self.number and isinstance(session.checkpoint, Checkpoint):
            session.checkpoint.restore_objects_again()  # the code since checkpoint() has changed them
        closed_early = False
        try:
            source = self.open(session)
            devices, ended_s = source.devices, 0.0
            for batches in source.passes(resume):
                if source.devices != devices:
                    devices, self._next_check_s = source.devices, _NOW
                    self._resize_s = round(session.clock() - ended_s, 3)
                    self._show_progress(session, "resized")
                yield from self.run_pass(session, batches)
                ended_s = session.clock()
                if self.stopped:
                    break
            self.finish(session, save=not was_over)
        except GeneratorExit:
            if self.stopped:  # the training code left the loop after stop_early(): count the batch as done
                self.done += 1
                self.finish(session)
            closed_early = True
            raise
        finally:
            self.close(session)
            if closed_early and session.terminating:
                session.exit_outside()
        if session.terminating:
            session.exit_terminated()

    def open(self, session: _session.Session) -> BatchSource:
        """Start the loop: choose the source of the batches and show the start."""
        self._display = self._display or session.display()
        source = self.source = session.batch_source(self.number)
        session.loop = self
        session.handle_sigterm()
        session.skip_exit_gc()
        self._gpu_share = session.gpu_share()
        source.open(self, session)
        self._start_point = (self.done, session.clock())
        if session.checkpoint is not None and session.checkpoint.steps is not None:
            session.checkpoint.steps.begin(self.done)
        self._adapt_to_share(session.clock())
        self._show_progress(session, "start")
        return source

    def begin_pass(self) -> None:
        """Prepare for an epoch of ``track_epochs``: waiting for its loader does not count for the share of the GPUs."""
        if self._gpu_share is not None:
            self._gpu_share.close()

    def run_pass(self, session: _session.Session, batches: Iterator[T]) -> Iterator[T]:
        """Yield the ``batches`` of a pass, and save and show the progress between them."""
        clock, source = session.clock, self.source
        self._epoch_began_s = clock()
        if source is not None and source.reads_epochs:
            self.read_length()
        has_end = source is not None and source.reads_epochs and self._length is not None
        self._last_of_epoch = self._epoch_done + (self._length or 0) - 1 if has_end else -1
        try:
            for batch in batches:
                self.begin_batch()
                if self.done == self._last_of_epoch:
                    self.report_epoch_end(session, clock())
                yield batch
                self.done += 1
                is_due = clock() >= self._next_check_s
                if self._gpu_share is not None:
                    self._gpu_share.end(due=is_due)
                if is_due and self._run_due_checks(session, clock()):
                    break
        finally:
            if self._gpu_share is not None:
                self._gpu_share.leave(counts=self._within_epochs)

    def begin_batch(self) -> None:
        """Wait until the job's share of its GPUs allows another batch. See ``GpuShare.begin``."""
        if self._gpu_share is not None:
            self._gpu_share.begin()

    def replace_loader(self, loader: Iterable[T]) -> None:
        """Read the next epoch from ``loader``. Raises ``ValueError`` if it has no batches."""
        length = data.epoch_length(loader)
        if length == 0:
            raise bad_value("loader", "0 batches", "at least 1 batch: is the data set empty or too small?")
        self.loader, self._length, self._given_length = loader, length, length

    def read_length(self) -> None:
        """Read how many batches the epoch that begins has: after ``set_epoch``, a sampler may have more or fewer."""
        length = data.epoch_length(self.loader)
        if self._length is not None and length not in (None, self._length):
            self._length = self._epoch_batches = length
            self.total = self._planned_total()

    def end_pass(self, session: _session.Session) -> None:
        """After the body of an epoch of ``track_epochs``: end the epoch, and save and show the progress if due."""
        self.end_epoch()
        if session.clock() >= self._next_check_s and not self.over:
            self._run_due_checks(session, session.clock())

    def close(self, session: _session.Session) -> None:
        """Release all resources, even if the training code has left the loop or failed."""
        session.loop = None
        if self._gpu_share is not None:
            self._gpu_share.close()
        if self.source is not None:
            self.source.close()
        data.end_workers_at_exit(self.loader)
        session.restore_sigterm()
        if self._display is not None:
            self._display.close()

    def restore_position(self, session: _session.Session) -> Resume | None:
        """Number this loop and restore its position; return the point to resume from, also if a later loop wrote it."""
        self.number = session.number_loop()
        session.loops_started += 1
        if self.number == 1 and session.trainings is None and run_by_paceline() and not is_follower():
            log(
                "a second track() loop restarts progress at 0 %: to meet a deadline, use one loop over all epochs, or "
                "expect_trainings(n) before the first of n trainings"
            )
        resume = session.checkpoint.resume if session.checkpoint is not None else None
        if resume is None or resume.position.loop < self.number:
            return None
        position = resume.position
        if position.loop > self.number:
            return resume
        begun = position.batch or not self._within_epochs  # the next epoch of track_epochs may have another length
        if begun and self._given_length is not None and position.epoch_length not in (None, self._given_length):
            accepted = f"{position.epoch_length} as in the checkpoint, or another checkpoint folder"
            raise bad_value("batches in an epoch", self._given_length, accepted)
        self.epoch, self.done, self.stopped = position.epoch, position.done, position.stopped
        if self.monitor is not None:
            self.monitor.restore(position.curve)
            # The epoch's metric may have been reported but is not in the curve yet.
            if position.metric_reported or (position.batch == self._length and not self._within_epochs):
                self.monitor.expect_report()
            self.epochs = max(self.monitor.epochs, self.epoch)
        self._epoch_done = position.done - position.batch
        self.total = self.done if self.stopped else self._planned_total()
        if position.ended and self.over:
            log(f"training had ended before the checkpoint was written ({self.done} batches done): nothing left to do")
            data.rewind(self.loader, resume.now)
        return resume

    def report_epoch_end(self, session: _session.Session, now_s: float) -> None:
        """Report that a validation may follow, so that the controller does not mistake it for a slow batch."""
        if now_s - self._epoch_began_s >= _SHORTEST_REPORTED_EPOCH_S:
            self._show_progress(session, "epoch_end")
            self._epoch_end_shown = self._reports_epoch_ends = True

    def end_epoch(self) -> None:
        """Advance to the next epoch, and update the forecast of the number of epochs."""
        if self.batch == 0:
            raise bad_value("loader", f"0 batches in epoch {self.epoch}", "at least 1 batch")
        if self._length is not None:
            self._epoch_batches = self.batch  # the loader's length may be an estimate
        if self._epoch_end_shown:  # the next batch ends the pause, which includes the loader's start-up: show it now
            self._epoch_end_shown = False
            self._next_check_s = self._next_show_s = _NOW
        self.epoch += 1
        self._epoch_done = self.done
        if self.monitor is not None:
            self.epochs = self.monitor.forecast(self.epoch, self.epochs)
        self.total = self._planned_total()

    @property
    def over(self) -> bool:
        """Whether the loop has no more batches."""
        return self.stopped or self.epoch >= self.epochs

    def _planned_total(self) -> int:
        if self._given_total is not None or self._length is None:
            # The given total refers to ``max_epochs`` epochs.
            fraction = self.epochs / self.monitor.max_epochs if self.monitor is not None else 1
            return max(round((self._given_total or 1) * fraction), self.done, 1)
        return max(self._epoch_done + max(self.epochs - self.epoch, 0) * self._epoch_batches, self.done)

    def _run_due_checks(self, session: _session.Session, now_s: float) -> bool:
        """Save, show progress and adapt to the CPU share if due; return whether to interrupt or end the epoch."""
        if self.stopped:
            return True
        saver = session.checkpoint
        resumable = saver is None or saver.steps is None or saver.steps.complete(self.done)
        is_due = saver is not None and now_s >= saver.next_save_s and not self.nearly_done(now_s, saver.interval_s)
        self.total = max(self.total, self.done)
        if session.terminating and resumable:
            self._save(session)
            session.exit_terminated()
        if now_s >= self._next_share_s and self._adapt_to_share(now_s):
            return True
        if is_due and resumable:
            if self._save(session):
                self._show_progress(session, "checkpoint")
        elif now_s >= self._next_show_s:
            self._show_progress(session, "progress")
        next_save_s = saver.next_save_s if saver is not None else float("inf")
        self._next_check_s = min(self._next_show_s, self._next_share_s, next_save_s)
        return False

    def nearly_done(self, now_s: float, interval_s: float) -> bool:
        """Return whether the final checkpoint is so close that a checkpoint now would only delay the last batches.

        More batches done than the total mean that the total was estimated too low, and that the end is not known.
        """
        done, elapsed_s = self.done - self._start_point[0], now_s - self._start_point[1]
        return elapsed_s > 0 and 0 <= (self.total - self.done) * elapsed_s < _SKIP_FRACTION * interval_s * done

    def finish(self, session: _session.Session, *, save: bool = True) -> None:
        """End the loop: save the final checkpoint and show that the training is done."""
        if self.source is not None:
            self.source.end(stopped=self.stopped)
        self.total = max(self.done, 1)
        if save and session.checkpoint is not None:
            self._show_progress(session, "progress")  # before the save, which may take some time
            self._save(session, ended=True)
        self._show_progress(session, "finish")

    def _save(self, session: _session.Session, *, ended: bool = False) -> bool:
        if session.checkpoint is None or self.source is None:
            return False
        self.source.before_save()
        now = data.snapshot(self.loader)
        if session.shared is not None:
            now["shared"] = session.shared.capture()
        # Between two epochs there is no epoch to resume: the next epoch starts with the current states.
        start = self.source.epoch_start if self.batch else now
        return session.checkpoint.save(self.position(ended=ended), start, now, session.reported_values())

    def position(self, *, ended: bool = False) -> Position:
        """Return the position in the training data."""
        return Position(
            loop=self.number,
            epoch=self.epoch,
            batch=self.batch,
            done=self.done,
            total=self.total,
            epoch_length=self._given_length,
            ended=ended,
            stopped=self.stopped,
            curve=self.monitor.points if self.monitor is not None else (),
            metric_reported=self.monitor is not None and self.monitor.reported,
        )

    def _adapt_to_share(self, now_s: float) -> bool:
        self._next_share_s = now_s + _SHARE_INTERVAL_S
        if self._gpu_share is not None:
            self._gpu_share.refresh()
            now_s -= self._gpu_share.waited_s  # the speed of a thread count does not depend on the share of the GPUs
        return self.source is not None and self.source.adapt(now_s)

    def _show_progress(self, session: _session.Session, event: str) -> None:
        now_s = session.clock()
        values = session.reported_values()
        done, total = self.own_progress
        progress = Progress(
            done=done,
            total=total,
            epoch=min(self.epoch, self.epochs - 1),
            epochs=self.epochs,
            event=event,
            loss=values.pop("loss", None),
            metrics=values,
            spent=self.source.spent if self.source is not None else {},
            device=self._device or _default_device(),
            threads=thread_count(),
            devices_in_force=self.source.devices if self.source is not None else None,
            save_s=session.checkpoint.save_s if session.checkpoint is not None else None,
            validation_s=self._validation_s(now_s),
            tail_s=None if self._tail is None else self._tail.seconds(self._batch_s(now_s), self._epoch_batches),
            resize_s=self._resize_s,
            gpu_s=None if self._gpu_share is None else self._gpu_share.used_s,
            may_end_early=self.monitor is not None,
            monotonic_s=now_s,
            wall_s=time.time(),
        )
        session.show(progress, self._display)
        if self._display is not None:
            self._next_show_s = now_s + self._display.interval_s

    def _validation_s(self, now_s: float) -> float | None:
        """Return the seconds that a validation should take at the speed so far; ``None`` if unknown.

        If the epochs are too short for their ends to be reported, the measured speed includes the validations.
        """
        if self.epoch and not self._reports_epoch_ends:
            return None
        batch_s = self._batch_s(now_s)
        return round(self.validation_batches * batch_s, 3) if self.validation_batches and batch_s is not None else None

    def _batch_s(self, now_s: float) -> float | None:
        """Return the mean seconds per batch of this process; ``None`` before its first batch."""
        done, elapsed_s = self.done - self._start_point[0], now_s - self._start_point[1]
        return elapsed_s / done if done else None


def _default_device() -> str:
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"
