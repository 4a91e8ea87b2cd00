"""Opens the runtime of a job; with ``objective="throughput"``, that of a team which scales within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.airflow.runtimes import RuntimeSettings
    from paceline.elastic import Options
    from paceline.elastic.team import TeamJob
    from paceline.runtime import Job, JobSpec, Runtime, SupportsTeams


class ObjectiveTask(Protocol):
    """The members of ``DeadlineTrainingOperator`` that determine the runtime."""

    objective: str
    deadline: Any
    scaling: Options | Mapping[str, Any] | None

    def job_spec(self, context: Context, scratch: Path, devices: float) -> JobSpec:
        """Return the specification of one node of the job."""

    def open_runtime(self, settings: RuntimeSettings) -> Runtime:
        """Return the runtime for these settings."""


def open_runtime(task: ObjectiveTask, settings: RuntimeSettings, context: Context) -> Runtime:
    """Return the runtime of a task's job: that of the settings, or one that runs a team of its jobs."""
    if task.objective == "deadline":
        return task.open_runtime(settings)
    from paceline.elastic import Options
    from paceline.elastic.runtime import TeamRuntime

    if not settings.forms_teams:
        raise cannot_form_teams(settings.name)
    options = Options.read("scaling", task.scaling or {})
    if task.deadline is not None:  # the deadline controller determines the budget from the start
        options = replace(options, start_share=1.0)
    single = cast("SupportsTeams", task.open_runtime(settings))  # as `forms_teams` says
    return TeamRuntime(single, lambda scratch: task.job_spec(context, scratch, 1.0), options=options)


def cannot_form_teams(runtime: str) -> InvalidInputError:
    """Return the error for a runtime whose jobs cannot form a team."""
    accepted = "'docker', 'kubernetes' or another runtime that forms teams, because a job that scales has several nodes"
    return InvalidInputError("runtime", runtime, accepted)


def team_of(job: Job) -> TeamJob | None:
    """Return ``job`` if it is a team, else ``None``."""
    from paceline.elastic.team import TeamJob

    return job if isinstance(job, TeamJob) else None
