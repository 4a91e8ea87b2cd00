"""Drift tests that compare a current window of data with a reference window, and the report of the results.

Independent of Airflow; ``paceline.sensors`` is the integration.
"""

from paceline.contract import (
    NEEDS_TRAINING,
    Change,
    ConceptDrift,
    Confusion,
    DriftReport,
    EstimatedPeriod,
    FeatureDrift,
    Histogram,
    JointDrift,
    PerformanceEstimate,
    QualityProblem,
    SegmentDrift,
)
from paceline.drift._feature_settings import FeatureSettings
from paceline.drift._page import to_html
from paceline.drift._quality_settings import QualitySettings
from paceline.drift._settings import DriftSettings
from paceline.drift.compare import compare

__all__ = [
    "NEEDS_TRAINING",
    "Change",
    "ConceptDrift",
    "Confusion",
    "DriftReport",
    "DriftSettings",
    "EstimatedPeriod",
    "FeatureDrift",
    "FeatureSettings",
    "Histogram",
    "JointDrift",
    "PerformanceEstimate",
    "QualityProblem",
    "QualitySettings",
    "SegmentDrift",
    "compare",
    "to_html",
]
