"""Airflow operators of Paceline. Each is imported when it is used first, because DAG files and triggers use few."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.airflow.runtimes import Docker, Kubernetes, Process

    from .approve import ApproveOperator
    from .arbitrate import ArbiterOperator
    from .evaluate import EvaluateOperator
    from .fleet_result import FleetResultOperator
    from .fleet_training import train_on_fleet
    from .notify import LogNotifier
    from .profile import ProfileOperator
    from .promote import PromoteOperator
    from .schedule import ScheduleOperator
    from .server import ParameterServerOperator
    from .train import DeadlineTrainingOperator
    from .worker import WorkerTrainingOperator

_MODULES = {
    "ApproveOperator": ".approve",
    "ArbiterOperator": ".arbitrate",
    "DeadlineTrainingOperator": ".train",
    "Docker": "paceline.airflow.runtimes",
    "EvaluateOperator": ".evaluate",
    "FleetResultOperator": ".fleet_result",
    "Kubernetes": "paceline.airflow.runtimes",
    "LogNotifier": ".notify",
    "ParameterServerOperator": ".server",
    "Process": "paceline.airflow.runtimes",
    "ProfileOperator": ".profile",
    "PromoteOperator": ".promote",
    "ScheduleOperator": ".schedule",
    "WorkerTrainingOperator": ".worker",
    "train_on_fleet": ".fleet_training",
}

__all__ = [
    "ApproveOperator",
    "ArbiterOperator",
    "DeadlineTrainingOperator",
    "Docker",
    "EvaluateOperator",
    "FleetResultOperator",
    "Kubernetes",
    "LogNotifier",
    "ParameterServerOperator",
    "Process",
    "ProfileOperator",
    "PromoteOperator",
    "ScheduleOperator",
    "WorkerTrainingOperator",
    "train_on_fleet",
]


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value
