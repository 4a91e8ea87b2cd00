"""Chooses the runtime of a job; with ``objective="throughput"``, a team of containers that scales within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.elastic import Options
    from paceline.elastic.team import TeamJob
    from paceline.runtime import Job, JobSpec, Runtime


class ObjectiveTask(Protocol):
    """The members of ``DeadlineTrainingOperator`` that determine the runtime."""

    objective: str
    deadline: Any
    scaling: Options | Mapping[str, Any] | None

    def job_spec(self, context: Context, scratch: Path, devices: float) -> JobSpec:
        """Return the specification of one container of the job."""


def runtime_for(task: ObjectiveTask, single: Runtime, context: Context) -> Runtime:
    """Return ``single`` for a job in one container, else a team runtime that starts containers with ``single``."""
    if task.objective == "deadline":
        return single
    from paceline.elastic import Options
    from paceline.elastic.runtime import TeamRuntime
    from paceline.runtime import DockerRuntime

    if not isinstance(single, DockerRuntime):
        raise InvalidInputError("runtime", single.name, "'docker', because a job that scales needs several containers")
    options = Options.read("scaling", task.scaling or {})
    if task.deadline is not None:  # the deadline controller determines the budget from the start
        options = replace(options, start_share=1.0)
    return TeamRuntime(single, lambda scratch: task.job_spec(context, scratch, 1.0), options=options)


def team_of(job: Job) -> TeamJob | None:
    """Return ``job`` if it is a team of containers, else ``None``."""
    from paceline.elastic.team import TeamJob

    return job if isinstance(job, TeamJob) else None
