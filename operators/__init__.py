"""Airflow operators of Paceline."""

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
