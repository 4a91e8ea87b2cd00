"""Detects outages of the engine that runs the job, and restarts a job that the engine or a lost device has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable

from paceline.contract import RunTotals
from paceline.errors import RuntimeUnavailableError
from paceline.run._journal import Journal
from paceline.run.clock import Clock
from paceline.runtime import Job, JobStatus

_MAX_RESTARTS = 3
_ENDED_BY_SIGNAL = (137, 143)  # SIGKILL, SIGTERM
_POLLS, _POLL_EVERY_S = 25, 0.3
_LONG_S = 30.0


class Outage:
    """Tracks the engine's outages, and restarts the job if one of them or the loss of a device has ended it.

    It restarts the job at most three times in a row without progress.

    Parameters
    ----------
    job, journal, clock:
        The job, the journal and the clock of the control loop.
    now:
        Function that returns the time in seconds after the loop's origin.
    earlier:
        Totals of earlier controlling processes, with their restarts of the job.
    """

    def __init__(
        self,
        job: Job,
        journal: Journal,
        clock: Clock,
        now: Callable[[], float],
        earlier: RunTotals | None = None,
    ) -> None:
        self.restarts = earlier.restarts if earlier is not None else 0
        self.without_progress = earlier.restarts_without_progress if earlier is not None else 0
        self.most_done = earlier.done_before if earlier is not None else -1.0  # when the job ended
        self._job = job
        self._journal = journal
        self._clock = clock
        self._now = now
        self._since_s: float | None = None
        self._occurred = False  # whether an outage occurred since the last start of the job
        self._readings = 0  # usage readings since the outage began

    @property
    def active(self) -> bool:
        """Whether the engine is known to be unavailable."""
        return self._since_s is not None

    def record_failure(self, error: Exception) -> None:
        """Record that the engine did not answer."""
        self._occurred, self._readings = True, 0
        if self._since_s is None:
            self._since_s = self._now()
            message = "The engine is not responding: the allocation cannot be changed until it responds. %s"
            self._journal.event(self._since_s, "engine_unreachable", message, error, level=logging.WARNING)

    @property
    def is_long(self) -> bool:
        """Whether the engine has not responded for half a minute."""
        return self._since_s is not None and self._now() - self._since_s >= _LONG_S

    def add_reading(self) -> None:
        """Record a new usage reading. The second reading after an outage shows that the job survived.

        The first reading may have been measured before the outage.
        """
        self._readings += 1
        if self._readings > 1:
            self._occurred = False
            self.record_answer()

    def record_answer(self) -> None:
        """Record that the engine answered."""
        if self._since_s is not None:
            now_s = self._now()
            away_s, self._since_s = now_s - self._since_s, None
            self._journal.event(now_s, "engine_responding", "The engine is responding again after %.0f s", away_s)

    def restart_after(self, status: JobStatus, done: float) -> bool:
        """If an outage ended the job, restart the job from its checkpoint; return whether control continues.

        The same applies to a job that was stopped, for example because no process renewed its lease in the outage, and
        to a job that has ended because it lost a device. ``done``: what the job had done by then.
        """
        if status.state != "exited" or (status.exit_code == 0 and not status.stopped):
            return False
        if not (status.device_lost or self._occurred or status.stopped or self._is_engine_shutting_down(status)):
            return False
        if self.active:
            return True  # restart the job once the engine is back
        if done > self.most_done:
            self.most_done, self.without_progress = done, 0
        if self.without_progress >= _MAX_RESTARTS:
            return False
        try:
            self._job.restart()
        except RuntimeUnavailableError as error:  # the engine answers but cannot start jobs yet
            self.record_failure(error)
            return True
        self._occurred = False
        self.restarts += 1
        self.without_progress += 1
        if status.device_lost:
            message = "The job lost a device during a batch (exit code %s): restarting it from its checkpoint"
        else:
            message = "The job was stopped (exit code %s), not by its code: restarting it from its checkpoint"
        self._journal.event(self._now(), "restarted", message, status.exit_code, level=logging.WARNING)
        return True

    def _is_engine_shutting_down(self, status: JobStatus) -> bool:
        """Return whether the engine is shutting down: it ends its jobs a few seconds before it stops answering."""
        if not self._job.has_engine or status.exit_code not in _ENDED_BY_SIGNAL or status.out_of_memory:
            return False
        for _ in range(_POLLS):
            self._clock.sleep(_POLL_EVERY_S)
            try:
                self._job.status()
            except RuntimeUnavailableError as error:
                self.record_failure(error)
                return True
        return False
