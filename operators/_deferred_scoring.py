"""Waits in the triggerer for the end of a scoring job of ``EvaluateOperator``. ``ScoringTrigger`` runs it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from paceline.airflow.runtimes import stored_settings
from paceline.errors import DetachedError, JobLostError, PacelineError, RuntimeUnavailableError, TaskStoppedError
from paceline.run import ControlElsewhereError
from paceline.run.host import TaskStatus
from paceline.run.lease import JobLease
from paceline.runtime import Job, JobStatus, Runtime

from ._job_control import JobControl, Stored

_EVERY_S = 1.0
_FIND_WITHIN_S = 300.0


@dataclass(frozen=True)
class DeferredScoring(Stored):
    """What the triggerer needs to watch a scoring job.

    Parameters
    ----------
    runtime:
        Settings of the job's runtime, as ``RuntimeSettings.serialize`` returns them.
    name, labels:
        Name of the job, and the labels of all jobs of its task.
    lease_s:
        The job's lease in seconds.
    ends_at:
        The task's time limit.
    """

    runtime: dict[str, Any]
    name: str
    labels: dict[str, str]
    lease_s: float
    ends_at: datetime | None = None


class ScoringControl(JobControl):
    """The control of a scoring job, which renews its lease and waits for its end."""

    job_type: ClassVar[type[DeferredScoring]] = DeferredScoring
    _job: DeferredScoring

    def _new_steps(self) -> ScoringSteps:
        return ScoringSteps(self._job, self._leaves, self._find_status, self._log)


class ScoringSteps:
    """The steps in which the triggerer waits for the end of a scoring job. A worker process then reads its output.

    Parameters
    ----------
    job:
        The job.
    leaves:
        Called in each step, and with the status of an ended job; returns whether a worker process is to continue.
    find_status:
        Returns the task's status in Airflow.
    log:
        The log of the trigger.
    """

    def __init__(
        self,
        job: DeferredScoring,
        leaves: Callable[[JobStatus | None], bool],
        find_status: Callable[[], TaskStatus],
        log: Any,
    ) -> None:
        self._job, self._leaves, self._find_status, self._log = job, leaves, find_status, log
        self._runtime: Runtime = stored_settings(job.runtime).open()
        self.stop_requested = threading.Event()

    def steps(self) -> Generator[float, float, None]:
        """Yield the seconds until the next step, until the job has ended or its task has reached its time limit.

        Raises ControlElsewhereError then, JobLostError if there is no job, RuntimeUnavailableError if its engine does
        not respond for five minutes, and TaskStoppedError after ``stop_requested`` is set.
        """
        job = yield from self._find()
        lease = JobLease(job, self._job.lease_s)
        try:
            while True:
                lease.keep(time.monotonic())
                job.read_lines()  # else, a queue that is full would hide the end
                if self._leaves(JobStatus("exited") if job.wait(0.0) else None):
                    raise ControlElsewhereError("a worker process reads the scores")
                yield from self._wait()
        finally:
            job.close()

    def _find(self) -> Generator[float, float, Job]:
        ends_s, is_failing = time.monotonic() + _FIND_WITHIN_S, False
        while True:
            try:
                job = self._runtime.find_job(self._job.name, self._job.labels)
            except RuntimeUnavailableError as error:
                if time.monotonic() >= ends_s:
                    raise
                if not is_failing:
                    self._log.warning("Waiting for the engine: %s", error)
                is_failing = True
                yield from self._wait()
                continue
            if job is None:
                raise JobLostError(f"the job {self._job.name} no longer exists")
            return job

    def _wait(self) -> Generator[float, float, None]:
        yield _EVERY_S
        if self.stop_requested.is_set():
            raise TaskStoppedError("the task was stopped")

    def request_stop(self) -> None:
        """Request the end of the steps."""
        self.stop_requested.set()

    def end(self) -> PacelineError:
        """Remove the jobs of the task if it is over; return the error that says so."""
        if self._find_status() != "over":
            return DetachedError("This triggerer no longer waits for the job, which continues")
        self._runtime.remove_all(self._job.labels)
        return TaskStoppedError("The task is over: its jobs are removed")
