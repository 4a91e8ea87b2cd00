"""Drift tests of a current window of data against a reference window, and their report.

Independent of Airflow; ``paceline.sensors`` is the integration.
"""

from paceline.drift._page import to_html
from paceline.drift._report import Change, ConceptDrift, DriftReport, FeatureDrift, Histogram
from paceline.drift._settings import DriftSettings
from paceline.drift.compare import compare

__all__ = ["Change", "ConceptDrift", "DriftReport", "DriftSettings", "FeatureDrift", "Histogram", "compare", "to_html"]
