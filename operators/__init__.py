"""Airflow operators of Paceline."""

from .train import DeadlineTrainingOperator

__all__ = ["DeadlineTrainingOperator"]
