"""Drift tests on a reference and a current window of data, and their report.

Knows nothing of Airflow; ``paceline.sensors`` brings it there.
"""

from paceline.drift.compare import compare
from paceline.drift.page import to_html
from paceline.drift.report import Change, ConceptDrift, DriftReport, FeatureDrift, Histogram

__all__ = ["Change", "ConceptDrift", "DriftReport", "FeatureDrift", "Histogram", "compare", "to_html"]
