"""Reads the scores of a running scoring job. Called by ``EvaluateOperator``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from paceline.errors import TrainingFailedError
from paceline.run.lease import JobLease
from paceline.run.outcome import describe_failure
from paceline.run.output import Output
from paceline.run.reading import ProgressReader

from ._scores import Scores
from .improvement import ResampleCollector

if TYPE_CHECKING:
    from paceline.runtime import Job


def read_scores(
    job: Job, metric: str, role: str, log: Any, lease_s: float
) -> tuple[dict[str, float], ResampleCollector]:
    """Wait for the end of a job; return its last scores and the resamples of ``metric``.

    Parameters
    ----------
    role:
        The model that the job scores, for the log and for errors.
    log:
        The task's logger, to which the job's output goes.
    lease_s:
        The job's lease in seconds, which this function renews.

    Raises
    ------
    TrainingFailedError
        If the job fails.
    InvalidInputError
        If the last report of ``metric`` is not a finite number or may be missing.
    """
    scores, resamples, output = Scores(metric), ResampleCollector(metric), Output(log, f"[{role}] ")

    def add_unreadable(line: str, reason: str) -> None:
        output.warn(f"{line} ({reason})")
        scores.add_unreadable(reason)

    reader = ProgressReader(output.add, add_unreadable)
    ended, lease = False, JobLease(job, lease_s)
    while not ended:
        lease.keep(time.monotonic())
        ended = job.wait(0.5)
        for line in job.read_lines():
            for progress in reader.feed([line], now_s=0.0):
                scores.add(progress)
                resamples.add(progress)
        output.flush(ended=ended)
    if failure := describe_failure(job.status(), output.last):
        raise TrainingFailedError(f"scoring the {role}: {failure}")
    return scores.final(role), resamples
