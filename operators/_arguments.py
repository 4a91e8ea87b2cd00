"""Checks a training task's arguments when the DAG is parsed, and converts them to settings when the task runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from airflow.sdk.configuration import conf

from paceline.airflow.arguments import number, one_of, optional_number, optional_path_or_url
from paceline.airflow.values import is_template
from paceline.contract import Deadline, StoredDeadline
from paceline.control import CONTROLLERS, LATE_WEIGHT, Gains, Limits
from paceline.errors import InvalidInputError
from paceline.run.feasibility import ON_INFEASIBLE
from paceline.run.settings import Settings
from paceline.runtime.checks import check_devices

from ._team_runtime import cannot_form_teams

if TYPE_CHECKING:
    from airflow.sdk import Context

    from paceline.airflow.runtimes import RuntimeSettings
    from paceline.elastic import Team

DEADLINE_FROM = ("run", "task")
ON_DRAIN = ("leave", "stop")
ON_CHANGE = ("resume", "restart")
MIN_DEVICES = 0.1  # the default
AUTO = "auto"  # of `checkpoint_to`
_ALPHA = "a number in (0, 1]"
_LATE_WEIGHT, _POSITIVE = "[paceline] late_weight", "a number greater than 0"
_CHOICES = {
    "deadline_from": DEADLINE_FROM,
    "on_infeasible": ON_INFEASIBLE,
    "on_drain": ON_DRAIN,
    "on_change": ON_CHANGE,
}


class Arguments(Protocol):
    """The arguments of ``DeadlineTrainingOperator`` that determine its settings."""

    template_fields: Sequence[str]
    team: Team | None
    runtime: RuntimeSettings | str
    deadline: Any
    deadline_from: str
    alpha: float | str
    min_devices: float | str
    max_devices: float | str | None
    quantum: float
    cores_per_device: float | None
    control_period: float
    on_infeasible: str
    on_drain: str
    on_change: str
    lease_s: float
    needs_progress: bool
    on_deadline_alert: Sequence[Callable[..., Any]]
    controller: str | Gains
    shared: bool
    output_path: Any
    checkpoint_to: Any

    @property
    def runtime_settings(self) -> RuntimeSettings:
        """The settings of the runtime."""

    @property
    def shared_gpus(self) -> float:
        """Number, or part, of GPUs of whose time the devices are a share; 0 if they are cores or whole GPUs."""

    def read_templates(self, context: Context) -> None:
        """Check and convert the rendered template fields; see ``JobOperator``."""


def check(task: Arguments, *, rendered: bool = False) -> None:
    """Raise InvalidInputError for the first invalid argument. Skip templates unless they are ``rendered``."""

    def is_unrendered(field: str) -> bool:
        return not rendered and field in task.template_fields and is_template(getattr(task, field))

    for field, choices in _CHOICES.items():
        if not is_unrendered(field):
            one_of(choices)(field, getattr(task, field))
    if not is_unrendered("deadline"):
        _deadline(task)
    if not is_unrendered("alpha") and not 0 < number("alpha", task.alpha, _ALPHA) <= 1:
        raise InvalidInputError("alpha", task.alpha, _ALPHA)
    if number("control_period", task.control_period, "a number of seconds greater than 0") <= 0:
        raise InvalidInputError("control_period", task.control_period, "a number of seconds greater than 0")
    least = 0.0 if is_unrendered("min_devices") else number("min_devices", task.min_devices)
    most = None if is_unrendered("max_devices") else optional_number("max_devices", task.max_devices)
    if task.team is not None:
        _check_team(task, task.team, most, rendered=rendered)
    quantum = number("quantum", task.quantum, "a number greater than 0")
    Limits(least, max(least, quantum) if most is None else most, task.quantum)
    settings = task.runtime_settings
    if task.shared_gpus and not settings.shares_gpus:
        accepted = (
            f"1, or no quantum for an allocation of cores, because a job with runtime={settings.name!r} has whole GPUs"
        )
        raise InvalidInputError("quantum", task.quantum, accepted)
    if 0 < settings.gpus < 1 and task.quantum >= 1:
        accepted = "a number below 1, or none, because the job has a part of a GPU"
        raise InvalidInputError("quantum", task.quantum, accepted)
    if task.cores_per_device is not None:
        check_devices(task.cores_per_device, "cores_per_device")
        if task.cores_per_device != 1 and not (task.shared_gpus or (settings.gpus and task.quantum >= 1)):
            accepted = "1, unless the runtime's gpus and a quantum make GPUs the devices of the allocation"
            raise InvalidInputError("cores_per_device", task.cores_per_device, accepted)
    if not is_unrendered("output_path"):
        task.output_path = optional_path_or_url("output", task.output_path)
    if not is_unrendered("checkpoint_to") and task.checkpoint_to != AUTO:
        task.checkpoint_to = optional_path_or_url("checkpoint_to", task.checkpoint_to)
    if task.controller not in CONTROLLERS and not isinstance(task.controller, Gains):
        raise InvalidInputError("controller", task.controller, f"one of {', '.join(CONTROLLERS)}, or Gains(...)")


def read_team(value: object) -> Team | None:
    """Return the options of a team; ``None`` for a job that is none."""
    if value is None:
        return None
    from paceline.elastic import Team

    return Team.read("team", value)


def _check_team(task: Arguments, team: Team, most: float | None, *, rendered: bool) -> None:
    """Raise InvalidInputError for the first argument that does not suit a team of containers."""
    if most is not None:
        team.check_budget(most)
    settings = task.runtime_settings
    if not settings.forms_teams:
        raise cannot_form_teams(settings.name)
    if settings.gpus:
        accepted = "0, because a team trains on cores"
        raise InvalidInputError("runtime.gpus", settings.gpus, accepted)
    if settings.network is not None and (rendered or not is_template(settings.network)):
        accepted = "None, because the nodes of a team use a private network"
        raise InvalidInputError("runtime.network", settings.network, accepted)


def read(task: Arguments, context: Context) -> Settings:
    """Return the settings of a task whose templates are rendered. Raise InvalidInputError for an invalid argument."""
    task.read_templates(context)
    check(task, rendered=True)
    most = optional_number("max_devices", task.max_devices)
    if most is None and task.quantum >= 1 and task.runtime_settings.gpus:
        most = float(task.runtime_settings.gpus)
    least = number("min_devices", task.min_devices)
    if task.team is not None:
        least = max(least, task.team.initial_cores)
    deadline, value = _deadline(task), StoredDeadline.read(task.deadline).value
    written = value if isinstance(value, (str, int, float)) else deadline.duration_s
    return Settings(
        deadline=deadline,
        written=deadline.at.isoformat() if deadline.at is not None else written,
        alpha=number("alpha", task.alpha, _ALPHA),
        min_devices=least,
        max_devices=most,
        quantum=task.quantum,
        cores_per_device=task.cores_per_device or 1.0,
        shared_gpus=task.shared_gpus,
        period_s=task.control_period,
        on_infeasible=task.on_infeasible,
        controller=task.controller,
        shared=task.shared,
        lease_s=task.lease_s,
        on_change=task.on_change,
        late_weight=_late_weight(),
        needs_progress=task.needs_progress,
    )


def _deadline(task: Arguments) -> Deadline:
    """Return the deadline. It may have passed: ``on_infeasible`` sets the response."""
    return StoredDeadline.read(task.deadline).parse(optional=task.team is not None)


def _late_weight() -> float:
    """Return the option ``late_weight`` of ``[paceline]``."""
    value = conf.get("paceline", "late_weight", fallback=str(LATE_WEIGHT))
    weight = number(_LATE_WEIGHT, value, _POSITIVE)
    if weight <= 0:
        raise InvalidInputError(_LATE_WEIGHT, value, _POSITIVE)
    return weight
