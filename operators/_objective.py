"""Chooses the runtime of a job; with ``objective="throughput"``, a team of containers that scales within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.elastic import Options
    from paceline.elastic.team import TeamJob
    from paceline.runtime import DockerRuntime, Job, JobSpec, Runtime


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

    if not can_form_teams(single):
        raise cannot_form_teams(single.name)
    options = Options.read("scaling", task.scaling or {})
    if task.deadline is not None:  # the deadline controller determines the budget from the start
        options = replace(options, start_share=1.0)
    return TeamRuntime(single, lambda scratch: task.job_spec(context, scratch, 1.0), options=options)


def can_form_teams(runtime: Runtime) -> TypeGuard[DockerRuntime]:
    """Return whether a runtime can run a team: several containers with a network of their own."""
    from paceline.runtime import DockerRuntime

    return isinstance(runtime, DockerRuntime)


def cannot_form_teams(runtime: str) -> InvalidInputError:
    """Return the error for a runtime that cannot run a team of containers."""
    return InvalidInputError("runtime", runtime, "'docker', because a job that scales needs several containers")


def team_of(job: Job) -> TeamJob | None:
    """Return ``job`` if it is a team of containers, else ``None``."""
    from paceline.elastic.team import TeamJob

    return job if isinstance(job, TeamJob) else None
