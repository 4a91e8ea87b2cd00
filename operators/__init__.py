"""Airflow operators of Paceline."""

from .evaluate import EvaluateOperator
from .fleet_training import train_on_fleet
from .promote import PromoteOperator
from .server import ParameterServerOperator
from .train import DeadlineTrainingOperator
from .worker import WorkerTrainingOperator

__all__ = [
    "DeadlineTrainingOperator",
    "EvaluateOperator",
    "ParameterServerOperator",
    "PromoteOperator",
    "WorkerTrainingOperator",
    "train_on_fleet",
]
