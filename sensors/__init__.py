"""Airflow sensors and triggers of Paceline: ``from paceline.sensors import DriftSensor``."""

from .drift import DriftSensor
from .triggers import DriftEventTrigger, DriftTrigger

__all__ = ["DriftEventTrigger", "DriftSensor", "DriftTrigger"]
