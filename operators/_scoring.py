"""The scoring jobs of an evaluation: they start, report their scores, and are removed. For ``EvaluateOperator``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred

from paceline.errors import TrainingFailedError, UnsuitableCodeError
from paceline.run.lease import JobLease
from paceline.run.outcome import describe_failure, unsuitable_code
from paceline.run.output import Output
from paceline.run.reading import ProgressReader
from paceline.runtime.checks import spec_digest

from ._scores import Scores
from .improvement import ResampleCollector

if TYPE_CHECKING:
    from paceline.airflow.runtimes import RuntimeSettings
    from paceline.runtime import Job, JobSpec, Runtime

    from .triggers import ScoringTrigger

_SHORT_S = 20.0  # Airflow needs longer to defer a task and to continue it


class ScoringJobs:
    """The scoring jobs of one try, for a ``with`` block at whose end they are removed, unless the task is deferred.

    Parameters
    ----------
    runtime, settings:
        The runtime, and its settings.
    find_labels:
        Returns the labels of the task's jobs. Called when they are needed first, because it reads the live state.
    lease_s:
        The jobs' lease in seconds.
    log:
        The task's logger, to which the jobs' output goes.
    ends_at:
        The time limit of the try.
    defers:
        Whether the triggerer is to wait for the end of a job that takes long.
    scored:
        The ``state`` of an earlier process of this try: the scores that it has read.
    reason:
        Why the triggerer has left the job to this process; ``None`` if this is the first process of the try.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: RuntimeSettings,
        find_labels: Callable[[], Mapping[str, str]],
        lease_s: float,
        log: Any,
        *,
        ends_at: datetime | None = None,
        defers: bool = False,
        scored: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> None:
        self._runtime, self._settings, self._lease_s, self._log = runtime, settings, lease_s, log
        self._find_labels = find_labels
        self._ends_at, self._is_continued = ends_at, reason is not None
        self._defers = defers and reason in (None, "ended")
        self._scored = dict(scored or {})
        self._job: Job | None = None
        self._is_starting = False

    @cached_property
    def _labels(self) -> Mapping[str, str]:
        return self._find_labels()

    def __enter__(self) -> ScoringJobs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, TaskDeferred):
            return
        try:
            self.remove()
        except Exception as failure:
            if kind is None:
                raise
            self._log.warning("The jobs of the task could not be removed: %s", failure)

    def remove(self) -> None:
        """Remove the job that is running or starting, also if an earlier process of this try has started it."""
        if self._job is not None:
            self._job.remove()
            self._job.close()
        if self._is_continued or self._is_starting:
            self._runtime.remove_all(self._labels)

    def score(self, spec: JobSpec, metric: str, role: str) -> tuple[dict[str, float], ResampleCollector] | None:
        """Run a job; return its last scores and the resamples of ``metric``, or ``None`` if the triggerer is to wait.

        ``role`` is the model that the job scores, for the log and for errors. Scores that an earlier process of this
        try has read are those of the same files.

        Raises
        ------
        TrainingFailedError
            If the job fails.
        InvalidInputError
            If the last report of ``metric`` is not a finite number or may be missing.
        AirflowTaskTimeout
            If a try that was deferred has reached its time limit.
        """
        self._check_time()
        digest = spec_digest(spec) if self._defers or self._is_continued else ""
        stored = self._scored.get(role)
        if stored is not None and stored["spec"] == digest:
            return stored["scores"], ResampleCollector.read(metric, stored["resamples"])
        runtime = self._runtime
        runtime.check(spec)
        self._log.info("Scoring the %s", role)
        earlier = runtime.find_job(spec.name, self._labels)
        if earlier is not None and not runtime.has_same_spec(earlier, spec):
            self._log.info("Removing the job of an earlier process of the task: it has other files")
            earlier.remove()
        self._is_starting = True
        job = self._job = runtime.start(spec)
        self._is_starting = False
        if self._defers and not job.wait(_SHORT_S):
            job.close()
            return None
        try:
            scores, resamples = self._read(job, metric, role)
        finally:
            job.remove()
            job.close()
            self._job = None
        self._scored[role] = {"spec": digest, "scores": scores, "resamples": resamples.to_json()}
        return scores, resamples

    def trigger(self, spec: JobSpec) -> ScoringTrigger:
        """Return the trigger that waits for the end of a job."""
        from ._deferred_scoring import DeferredScoring
        from .triggers import ScoringTrigger

        runtime, labels = self._settings.serialize(), dict(self._labels)
        return ScoringTrigger(DeferredScoring(runtime, spec.name, labels, self._lease_s, self._ends_at).to_json())

    @property
    def state(self) -> dict[str, Any]:
        """What the next process of this try has to know."""
        return {"runtime": self._settings.name, "scored": self._scored}

    def _read(self, job: Job, metric: str, role: str) -> tuple[dict[str, float], ResampleCollector]:
        scores, resamples, output = Scores(metric), ResampleCollector(metric), Output(self._log, f"[{role}] ")

        def add_unreadable(line: str, reason: str) -> None:
            output.warn(f"{line} ({reason})")
            scores.add_unreadable(reason)

        reader = ProgressReader(output.add, add_unreadable)
        ended, lease = False, JobLease(job, self._lease_s)
        while not ended:
            self._check_time()
            lease.keep(time.monotonic())
            ended = job.wait(0.5)
            for line in job.read_lines():
                for progress in reader.feed([line], now_s=0.0):
                    scores.add(progress)
                    resamples.add(progress)
            output.flush(ended=ended)
        if failure := describe_failure(status := job.status(), output.last):
            failure = f"scoring the {role}: {failure}"
            if advice := unsuitable_code(status, output.last):
                raise UnsuitableCodeError(f"{failure}\n{advice}", status.exit_code)
            raise TrainingFailedError(failure)
        return scores.final(role), resamples

    def _check_time(self) -> None:
        """Raise an error at the time limit of the try: that of Airflow begins again with each process."""
        if self._is_continued and self._ends_at is not None and datetime.now(timezone.utc) >= self._ends_at:
            raise AirflowTaskTimeout(f"the task has reached its execution_timeout at {self._ends_at}")
