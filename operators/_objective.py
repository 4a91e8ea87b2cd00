"""A training with ``objective="throughput"``: as a team of containers that scales within its budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.elastic import Options
    from paceline.elastic.team import TeamJob
    from paceline.runtime.base import Job, JobSpec, Runtime


class Aimed(Protocol):
    """A task that says what its training is for, see ``DeadlineTrainingOperator``."""

    objective: str
    deadline: Any
    scaling: Options | None

    def job_spec(self, context: Context, scratch: Path, devices: float) -> JobSpec:
        """The training's own job."""


def where(task: Aimed, alone: Runtime, context: Context) -> Runtime:
    """Where the training runs: in one job, or as a team."""
    if task.objective == "deadline":
        return alone
    from paceline.elastic import Options
    from paceline.elastic.runtime import TeamRuntime
    from paceline.runtime import DockerRuntime

    if not isinstance(alone, DockerRuntime):
        raise InvalidInputError("runtime", alone.name, "'docker': a training that scales is several containers")
    options = task.scaling or Options()
    if task.deadline is not None:  # that says how much there is, from the beginning
        options = replace(options, start_share=1.0)
    return TeamRuntime(alone, lambda scratch: task.job_spec(context, scratch, 1.0), options=options)


def team_of(job: Job) -> TeamJob | None:
    """The job, if it is a team."""
    from paceline.elastic.team import TeamJob

    return job if isinstance(job, TeamJob) else None
