"""Airflow operators of Paceline."""

from .evaluate import EvaluateOperator
from .promote import PromoteOperator
from .train import DeadlineTrainingOperator

__all__ = ["DeadlineTrainingOperator", "EvaluateOperator", "PromoteOperator"]
