"""What a training asks of whoever runs it: the operator in Airflow, a plain object in tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paceline.contract import PaceSample
from paceline.control import PastRun
from paceline.run.live import LiveState
from paceline.runtime.base import Job, JobSpec, Runtime

if TYPE_CHECKING:
    from paceline.elastic.team import TeamJob

Standing = Literal["over", "goes_on", "unknown"]


class Host(Protocol):
    """One try of the task that a training belongs to."""

    store: LiveState
    log: Any
    try_number: int
    max_tries: int
    pool: str

    def origin(self, earlier: datetime | None) -> datetime:
        """The moment that durations count from, for a job that is started now; ``earlier``: that of the try before."""

    def runtime(self, name: str | None) -> Runtime:
        """Where to run; ``name`` says which runtime, where a job runs already."""

    def labels(self) -> Mapping[str, str]:
        """What tells this task's job from those of others."""

    def spec(self, scratch: Path, devices: float) -> JobSpec:
        """The job. Files for it may be made in ``scratch``, which is there until the job has started."""

    def team(self, job: Job) -> TeamJob | None:
        """The job, if it is a team of several."""

    def past_run(self) -> PastRun | None:
        """Return the measurements of the last successful run of this task, else of another task with the same code."""

    def save_measurements(self, past: Mapping[str, Any]) -> None:
        """Called with the measurements of this run once its result is stored. Must not raise."""

    def collect(self, job: Job) -> str:
        """Copy the job's output to where the user wants it, however often; returns where that is."""

    def job_is(self, job_id: str) -> None:
        """Told which job it is, before it is steered."""

    def take(self, sample: PaceSample) -> None:
        """Told every sample; must not take long."""

    def wait_for_callbacks(self) -> None:
        """Called once nothing is left to tell."""

    def standing(self) -> Standing:
        """Whether the task is over for good (marked, or cleared), goes on in another process, or nobody can say."""
