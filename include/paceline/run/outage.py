"""What the control loop does when the engine that runs the job does not answer, or has taken the job down with it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from paceline.errors import RuntimeUnavailableError
from paceline.run.clock import Clock
from paceline.run.journal import Journal
from paceline.runtime.base import Job, JobStatus

_MOST_RESTARTS = 3
_ENDED_BY_SIGNAL = (137, 143)  # SIGKILL, SIGTERM
_MOMENTS, _MOMENT_S = 25, 0.3


class Outage:
    """The engine's absences, and the job's restarts after them.

    Parameters
    ----------
    job, journal, clock:
        Those of the control loop.
    now:
        The time in the loop's seconds.
    restarts:
        How often the job was started again before, by another process.
    """

    def __init__(self, job: Job, journal: Journal, clock: Clock, now: Callable[[], float], restarts: int = 0) -> None:
        self.restarts = restarts
        self._job = job
        self._journal = journal
        self._clock = clock
        self._now = now
        self._since_s: float | None = None
        self._happened = False  # since the job was started last
        self._readings = 0  # of what the job uses, since the absence began

    @property
    def lasts(self) -> bool:
        """Whether the engine is away, as far as is known."""
        return self._since_s is not None

    def begins(self, error: Exception) -> None:
        """The engine did not answer."""
        self._happened, self._readings = True, 0
        if self._since_s is None:
            self._since_s = self._now()
            message = "The engine does not answer: the allocation stays as it is until it does. %s"
            self._journal.event(self._since_s, "engine_away", message, error, level=logging.WARNING)

    def measured(self) -> None:
        """There is a new reading of what the job uses: it has run on, and if it ends later it does so by itself.

        The first one after an absence was perhaps on its way before.
        """
        self._readings += 1
        if self._readings > 1:
            self._happened = False
            self.is_over()

    def is_over(self) -> None:
        """The engine answered."""
        if self._since_s is not None:
            now_s = self._now()
            away_s, self._since_s = now_s - self._since_s, None
            self._journal.event(now_s, "engine_back", "The engine answers again after %.0f s", away_s)

    def goes_on_after(self, status: JobStatus) -> bool:
        """A job that its engine took down with itself is started again in place and resumes from its checkpoint."""
        if status.state != "exited" or status.exit_code == 0:
            return False
        if not self._happened and not self._is_about_to_begin(status):
            return False
        if self.lasts:
            return True  # not before it is back
        if self.restarts >= _MOST_RESTARTS:
            return False
        try:
            self._job.restart()
        except RuntimeUnavailableError as error:  # it answers, and cannot start anything yet
            self.begins(error)
            return True
        self._happened = False
        self.restarts += 1
        message = "The engine took the job down (exit code %s): starting it again from its checkpoint"
        self._journal.event(self._now(), "restarted", message, status.exit_code, level=logging.WARNING)
        return True

    def _is_about_to_begin(self, status: JobStatus) -> bool:
        """Whether the engine is on its way down: it ends its jobs first, and answers for a moment after that."""
        if status.exit_code not in _ENDED_BY_SIGNAL or status.out_of_memory:
            return False
        for _ in range(_MOMENTS):
            self._clock.sleep(_MOMENT_S)
            try:
                self._job.status()
            except RuntimeUnavailableError as error:
                self.begins(error)
                return True
        return False
