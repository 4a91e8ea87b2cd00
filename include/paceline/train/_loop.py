"""The loop over batches: counts, shows progress, follows the CPU share, saves, resumes and stops early.

Made by ``track``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import _data, _session, _threads
from ._checkpoint import Position, Resume
from ._display import Display, choose_display
from ._follower import Follower
from ._lead import Lead
from ._monitor import Converged, Monitor
from ._share import CpuShare
from ._values import bad_value, log, whole_number
from .job import EXIT_TERMINATED, run_by_paceline
from .progress import Progress

if TYPE_CHECKING:
    from .asynchronous.worker import TrainingWorker

T = TypeVar("T")

# Seconds between two readings of the CPU share, rounded up to a whole batch.
_SHARE_INTERVAL_S = 0.5
# The ends of shorter epochs are not reported.
_SHORTEST_REPORTED_EPOCH_S = 1.0
# No save this shortly before the final one, as a fraction of the time between two saves.
_FINAL_STRETCH = 0.2
_NOW = float("-inf")


class Loop(Generic[T]):
    """One ``track`` loop. Made by ``track``; iterate over it once.

    Parameters
    ----------
    loader, epochs, total, device, threads, until, validation:
        As for ``track``.
    display:
        Output for progress; ``None`` chooses it by the environment.
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
        display: Display | None = None,
    ) -> None:
        self.epochs = whole_number("epochs", epochs)
        self.epoch = 0
        self.done = 0
        self._loader = loader
        self._length = _data.length(loader)
        self._given_total = None if total is None else whole_number("total", total)
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise bad_value("loader", loader, "a DataLoader or another iterable")
        if self._length == 0:
            raise bad_value("loader", "0 batches", "at least 1 batch; is the data set empty, or drop_last too much?")
        if self._length is None and total is None:
            raise bad_value("total", None, "the number of batches in all epochs, as the loader has no length")
        if self.epochs > 1 and isinstance(loader, Iterator):
            accepted = "an iterable that yields the batches once per epoch, not an iterator that is exhausted after one"
            raise bad_value("loader", type(loader).__name__, accepted)
        self._device = None if device is None else str(device)
        self._share = CpuShare()
        self._threads = _threads.Threads(None if threads is None else whole_number("threads", threads), self._share)
        if until is not None and not isinstance(until, Converged):
            raise bad_value("until", until, 'a paceline.train.Converged, such as Converged("accuracy")')
        self._validation = _data.validation_batches(validation, loader)
        self.monitor = None if until is None else Monitor(until, self.epochs)
        self._display = display
        self._epoch_done = 0  # batches done at the start of the epoch
        self._epoch_batches = self._length or 0
        self._epoch_began_s = _NOW
        self._epoch_end_shown = self._reports_epoch_ends = False
        self._last_of_epoch = -1  # batches done at the start of the epoch's last batch, if known
        self._stopped = self._iterated = self._regroup = False
        self._is_last: bool | None = None  # of its epoch, if a server leases the batches
        self._lead: Lead | None = None
        self._worker: TrainingWorker | None = None
        self._next_check_s = _NOW
        self._next_show_s = self._next_share_s = _NOW
        self._began = (0, 0.0)  # batches done, and time, at the start of the loop in this process
        self._epoch_start: dict[str, Any] = {}
        self._number = 0
        self._reports = 0  # of the monitored metric so far
        self.total = self._planned_total()

    def __len__(self) -> int:
        return self.total

    @property
    def batch(self) -> int:
        """Batches done in this epoch."""
        return self.done - self._epoch_done

    @property
    def epoch_end(self) -> bool:
        """Whether this batch is the epoch's last. Never true for a loader without a length."""
        if self._is_last is not None:
            return self._is_last
        return self._length is not None and self.batch + 1 >= self._length

    def stop_early(self) -> None:
        """End the loop after this batch. See ``paceline.train.stop_early``."""
        if self._worker is not None and self._worker.profiling:
            return
        self._stopped = True
        self._next_check_s = _NOW

    def check_now(self) -> None:
        """Check for saves, progress and signals right after this batch."""
        self._next_check_s = _NOW

    def __iter__(self) -> Iterator[T]:
        if self._iterated:
            raise RuntimeError("this track(...) was iterated over before: call track() again for another loop")
        self._iterated = True
        session = _session.current
        if session.loop is not None:
            log("a track() loop inside another runs as a plain loop: only the outer loop shows progress and resumes")
            return self._plain()
        if isinstance(session.role, Follower):
            return session.role.batches(self, self._loader, session)
        return self._run(session)

    def set_position(self, epoch: int, batch: int, done: int) -> None:
        """Set the position to that of another process of the same training."""
        self.epoch, self.done, self._epoch_done = epoch, done, done - batch

    def set_server_progress(self, epoch: int, done: int, total: int, epochs: int, *, last: bool) -> None:
        """Set the progress that the server of a training on several machines reports."""
        self.epoch, self.done, self.total, self.epochs, self._is_last = epoch, done, total, epochs, last

    def _plain(self) -> Iterator[T]:
        for epoch in range(self.epochs):
            self.epoch, self._epoch_done = epoch, self.done
            for batch in self._loader:
                yield batch
                self.done += 1
                if self._stopped:
                    return

    def _run(self, session: _session.Session) -> Iterator[T]:
        resume = self._begin(session)
        if resume is not None and resume.position.loop > self._number:
            return  # this loop was over when the checkpoint was written
        was_over = resume is not None and resume.position.ended and self._is_over()
        left = False
        display = self._display = self._display or choose_display()
        clock = session.clock
        session.loop = self
        session.handle_sigterm()
        session.skip_exit_gc()
        lead = self._lead = session.role if isinstance(session.role, Lead) else None
        worker = self._worker = session.join_distributed() if lead is None and self._number == 0 else None
        try:
            if lead is not None:
                lead.begin(self._number, self._loader, session.parts)
            self._began = (self.done, clock())
            self._follow_share(clock())
            self._show(session, "start")
            while not self._is_over():
                self._epoch_began_s = clock()
                self._last_of_epoch = self._epoch_done + self._length - 1 if self._length and not worker else -1
                for batch in self._open(resume):
                    if self.done == self._last_of_epoch:
                        self._report_epoch_end(session, clock())
                    if lead is not None:
                        lead.go()
                    yield batch
                    self.done += 1
                    if clock() >= self._next_check_s and self._check(session, clock()):
                        break
                if worker is not None:
                    if self._stopped:
                        worker.stop()
                    break
                if self._regroup and lead is not None:
                    resume = self._form_group(session, lead)
                elif not self._stopped:
                    resume = None
                    self._end_epoch()
            self._end(session, save=not was_over)
        except GeneratorExit:
            if self._stopped:  # break after stop_early(): the batch counts
                self.done += 1
                if worker is not None:
                    worker.stop()
                self._end(session)
            left = True
            raise
        finally:
            session.loop = None
            if lead is not None:
                lead.close()
            if worker is not None:
                worker.close()
            session.restore_sigterm()
            display.close()
            if left and session.terminating:
                session.resend_sigterm()
        if session.terminating:
            raise SystemExit(EXIT_TERMINATED)

    def _begin(self, session: _session.Session) -> Resume | None:
        self._number = session.loops_begun
        session.loops_begun += 1
        if self._number == 1 and run_by_paceline():
            log("a second track() loop restarts progress at 0 %: use one loop to meet a deadline, track(..., epochs=n)")
        resume = session.checkpoint.resume if session.checkpoint is not None else None
        if resume is None or resume.position.loop < self._number:
            return None
        position = resume.position
        if position.loop > self._number:
            return resume
        if self._length is not None and position.epoch_length not in (None, self._length):
            accepted = f"{position.epoch_length} batches in an epoch as in the checkpoint, or another checkpoint folder"
            raise bad_value("loader", f"{self._length} batches", accepted)
        self.epoch, self.done, self._stopped = position.epoch, position.done, position.stopped
        if self.monitor is not None:
            self.monitor.restore(position.curve)
            if position.batch == self._length:  # its metric was reported and is not yet in the curve
                self._reports = -1
            self.epochs = max(self.monitor.epochs, self.epoch)
        self._epoch_done = position.done - position.batch
        self.total = self.done if self._stopped else self._planned_total()
        if position.ended and self._is_over():
            log(f"the training in the checkpoint had ended ({self.done} batches done): nothing left to do")
            _data.rewind(self._loader, resume.now)
        return resume

    def _open(self, resume: Resume | None) -> Iterator[T]:
        if self._worker is not None:
            return self._worker.batches(self, self._loader, _session.current)
        if resume is None:
            self._epoch_start = _data.snapshot(self._loader)
            if self._lead is not None:
                return self._lead.open_epoch(self._position())
            return _data.open_epoch(self._loader, self.epoch)
        self._epoch_start = resume.epoch_start
        if self._lead is not None:
            return self._lead.reopen_epoch(resume)
        return _data.reopen_epoch(self._loader, self.epoch, resume.position.batch, resume.epoch_start, resume.now)

    def _report_epoch_end(self, session: _session.Session, now_s: float) -> None:
        """Report that a validation may follow, so that the controller does not take it for a slow batch."""
        if now_s - self._epoch_began_s >= _SHORTEST_REPORTED_EPOCH_S:
            self._show(session, "epoch_end")
            self._epoch_end_shown = self._reports_epoch_ends = True

    def _end_epoch(self) -> None:
        if self.batch == 0:
            raise bad_value("loader", f"0 batches in epoch {self.epoch}", "at least 1 batch")
        if self._length is not None:
            self._epoch_batches = self.batch  # the loader's length may have been an estimate
        if self._epoch_end_shown:  # the next batch ends the pause, which includes the opening of the loader
            self._epoch_end_shown = False
            self._next_check_s = self._next_show_s = _NOW
        self.epoch += 1
        self._epoch_done = self.done
        if self.monitor is not None:
            self._update_epochs(self.monitor, _session.current)
        self.total = self._planned_total()

    def _update_epochs(self, monitor: Monitor, session: _session.Session) -> None:
        """After an epoch, set the number of epochs to the monitor's forecast."""
        metric = monitor.until.metric
        times, value = session.newest(metric)
        if times == self._reports:
            if self.epoch == 2 and not monitor.points:
                log(f"until: {metric} was not reported in the first two epochs: no forecast")
            return
        self._reports = times
        before = self.epochs
        monitor.add(self.epoch, value)
        self.epochs = max(monitor.epochs, self.epoch)
        if monitor.end_reason is not None:
            log(f"the training ends after {self.epoch} epochs: {monitor.end_reason}")
        elif self.epochs != before:
            log(f"forecast by {metric}: {self.epochs} epochs")

    def _is_over(self) -> bool:
        return self._stopped or self.epoch >= self.epochs

    def _planned_total(self) -> int:
        if self._given_total is not None or self._length is None:
            # The given total is for the maximum of epochs.
            share = self.epochs / self.monitor.max_epochs if self.monitor is not None else 1
            return max(round((self._given_total or 1) * share), self.done, 1)
        return max(self._epoch_done + max(self.epochs - self.epoch, 0) * self._epoch_batches, self.done)

    def _check(self, session: _session.Session, now_s: float) -> bool:
        """Do what is due between two batches; return whether to stop."""
        if self._stopped:
            return True
        self.total = max(self.total, self.done)
        saver = session.checkpoint
        if session.terminating:
            self._save(session)
            raise SystemExit(EXIT_TERMINATED)
        if now_s >= self._next_share_s:
            self._follow_share(now_s)
            if self._regroup:
                return True
        if saver is not None and now_s >= saver.next_save_s and not self._nearly_done(now_s, saver.interval_s):
            if self._save(session):
                self._show(session, "checkpoint")
        elif now_s >= self._next_show_s:
            self._show(session, "progress")
        next_save_s = saver.next_save_s if saver is not None else float("inf")
        self._next_check_s = min(self._next_show_s, self._next_share_s, next_save_s)
        return False

    def _nearly_done(self, now_s: float, interval_s: float) -> bool:
        """Return whether the final save is so near that a save now would only delay the last batches."""
        done, passed_s = self.done - self._began[0], now_s - self._began[1]
        return passed_s > 0 and (self.total - self.done) * passed_s < _FINAL_STRETCH * interval_s * done

    def _end(self, session: _session.Session, *, save: bool = True) -> None:
        self.total = self.done
        if self._lead is not None:
            self._lead.dismiss()
        if save and session.checkpoint is not None:
            self._show(session, "progress")  # the save may take a moment
            self._save(session, ended=True)
        self._show(session, "finish")

    def _save(self, session: _session.Session, *, ended: bool = False) -> bool:
        if session.checkpoint is None:
            return False
        position = self._position(ended=ended)
        now = _data.snapshot(self._loader)
        # After the last epoch there is none to reopen: an epoch added later starts from here.
        start = self._epoch_start if self.batch else now
        return session.checkpoint.save(position, start, now, session.reported())

    def _position(self, *, ended: bool = False) -> Position:
        return Position(
            loop=self._number,
            epoch=self.epoch,
            batch=self.batch,
            done=self.done,
            total=self.total,
            epoch_length=self._length,
            ended=ended,
            stopped=self._stopped,
            curve=self.monitor.points if self.monitor is not None else (),
        )

    def _form_group(self, session: _session.Session, lead: Lead) -> Resume:
        """Let processes join and leave; return where the training continues."""
        self._regroup = False
        self._next_check_s = _NOW
        resume = Resume(self._position(), self._epoch_start, _data.snapshot(self._loader), {})
        lead.form_group(resume)
        self._show(session, "resized")
        return resume

    def _follow_share(self, now_s: float) -> None:
        if self._lead is not None:
            self._regroup = self._lead.follow(self._lead.devices(self._share.read()))
        else:
            self._threads.follow(self.done, now_s)
        self._next_share_s = now_s + _SHARE_INTERVAL_S

    def _show(self, session: _session.Session, event: str) -> None:
        now_s = session.clock()
        values = session.reported()
        session.last = Progress(
            done=self.done,
            total=max(self.total, self.done),
            epoch=min(self.epoch, self.epochs - 1),
            epochs=self.epochs,
            event=event,
            loss=values.pop("loss", None),
            metrics=values,
            spent=self._worker.spent if self._worker is not None else {},
            device=self._device or _default_device(),
            threads=_threads.current(),
            devices=self._lead.world_size if self._lead is not None else None,
            save_s=session.checkpoint.save_s if session.checkpoint is not None else None,
            validation_s=self._validation_s(now_s),
            monotonic_s=now_s,
            wall_s=time.time(),
        )
        if self._display is not None:
            self._display.show(session.last)
            self._next_show_s = now_s + self._display.interval_s

    def _validation_s(self, now_s: float) -> float | None:
        """Return the forecast duration of the validation after an epoch, by the speed so far.

        Ends of short epochs are not reported: the measured speed includes their validations.
        """
        if self.epoch and not self._reports_epoch_ends:
            return None
        done, passed_s = self.done - self._began[0], now_s - self._began[1]
        return round(self._validation * passed_s / done, 3) if self._validation and done else None


def _default_device() -> str:
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"
