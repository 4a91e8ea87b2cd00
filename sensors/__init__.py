"""Airflow sensors and triggers of Paceline: ``from paceline.sensors import DriftSensor``."""

from paceline.drift import DriftSettings, FeatureSettings, QualitySettings

from .drift import DriftSensor
from .triggers import DriftEventTrigger, DriftTrigger

__all__ = ["DriftEventTrigger", "DriftSensor", "DriftSettings", "DriftTrigger", "FeatureSettings", "QualitySettings"]
