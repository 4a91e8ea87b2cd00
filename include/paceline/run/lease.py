"""Renews the lease of a job while a process controls the job."""

from __future__ import annotations

import contextlib

from paceline.errors import PacelineError
from paceline.runtime import Job

_LONGEST_PERIOD_S = 60.0


class JobLease:
    """The lease of a job. The job ends itself if no process renews the lease.

    Parameters
    ----------
    job:
        The job, started with a lease.
    lease_s:
        Time in seconds for which the job continues after a renewal.
    """

    def __init__(self, job: Job, lease_s: float) -> None:
        self._job, self._lease_s = job, lease_s
        self._due_s = float("-inf")

    def keep(self, now_s: float) -> None:
        """Renew the lease if a tenth of it has passed, or a minute. During an engine outage, try again later."""
        if now_s >= self._due_s:
            self._due_s = now_s + min(self._lease_s / 10, _LONGEST_PERIOD_S)
            with contextlib.suppress(PacelineError):
                self._job.renew(self._lease_s)
