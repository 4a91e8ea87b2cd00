"""Drift tests of a current window of data against a reference window, and their report.

Independent of Airflow; ``paceline.sensors`` is the integration.
"""

from paceline.drift.compare import compare
from paceline.drift.page import to_html
from paceline.drift.report import Change, ConceptDrift, DriftReport, FeatureDrift, Histogram
from paceline.drift.settings import DriftSettings

__all__ = ["Change", "ConceptDrift", "DriftReport", "DriftSettings", "FeatureDrift", "Histogram", "compare", "to_html"]
