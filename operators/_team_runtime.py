"""Opens the runtime of a job: one that runs it alone, or as a team of containers which scales during training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from paceline.contract import Deadline, StoredDeadline
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.airflow.runtimes import RuntimeSettings
    from paceline.elastic import Team
    from paceline.elastic.team import TeamJob
    from paceline.runtime import Job, JobSpec, Runtime, SupportsTeams


class TeamTask(Protocol):
    """The members of ``DeadlineTrainingOperator`` that determine the runtime."""

    deadline: Any
    team: Team | None

    def job_spec(self, context: Context, scratch: Path, devices: float) -> JobSpec:
        """Return the specification of one node of the job."""

    def open_runtime(self, settings: RuntimeSettings) -> Runtime:
        """Return the runtime for these settings."""


def open_runtime(task: TeamTask, settings: RuntimeSettings, context: Context) -> Runtime:
    """Return the runtime of a task's job: that of the settings, or one that runs a team of its jobs."""
    options = task.team
    if options is None:
        return task.open_runtime(settings)
    from paceline.elastic.runtime import TeamRuntime

    if not settings.forms_teams:
        raise cannot_form_teams(settings.name)
    if StoredDeadline.read(task.deadline).parse(optional=True) != Deadline():  # it determines the size from the start
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
