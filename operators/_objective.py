"""A training with ``objective="throughput"``: as a team of containers that scales within its budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context

    from paceline.elastic import Options
    from paceline.runtime.base import JobSpec, Runtime


class Aimed(Protocol):
    """A task that says what its training is for, see ``DeadlineTrainingOperator``."""

    objective: str
    scaling: Options | None

    def job_spec(self, context: Context, scratch: Path, devices: float) -> JobSpec:
        """The training's own job."""


def where(task: Aimed, alone: Runtime, context: Context) -> Runtime:
    """Where the training runs: in one job, or as a team."""
    if task.objective == "deadline":
        return alone
    from paceline.elastic.runtime import TeamRuntime
    from paceline.runtime import DockerRuntime

    if not isinstance(alone, DockerRuntime):
        raise InvalidInputError("runtime", alone.name, "'docker': a training that scales is several containers")
    return TeamRuntime(alone, lambda scratch: task.job_spec(context, scratch, 1.0), options=task.scaling)


def allow(job: Any, budget: float) -> None:
    """Tell a team that was found again what it may have: it knows only what it had."""
    if hasattr(job, "take_steps"):
        job.resize(budget)


def steps_of(job: Any) -> Callable[[], Any]:
    """What asks a job for what has been changed in it: nothing, if it is no team."""
    found: Callable[[], Any] = getattr(job, "take_steps", tuple)
    return found
