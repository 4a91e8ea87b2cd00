"""Drift tests that compare a current window of data with a reference window, and the report of the results.

Independent of Airflow; ``paceline.sensors`` is the integration.
"""

from paceline.drift._page import to_html
from paceline.drift._report import Change, ConceptDrift, DriftReport, FeatureDrift, Histogram
from paceline.drift._settings import DriftSettings
from paceline.drift.compare import compare

__all__ = ["Change", "ConceptDrift", "DriftReport", "DriftSettings", "FeatureDrift", "Histogram", "compare", "to_html"]
