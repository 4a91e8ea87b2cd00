"""Compares the model's error in two windows: realised, in rows with labels, and estimated, in rows without.

Called by ``paceline.drift.compare`` if predictions and labels are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.drift._columns import Column
from paceline.drift._estimates import estimate_performance
from paceline.drift._performance import PerformanceEstimate
from paceline.drift._report import ConceptDrift
from paceline.drift._settings import DriftSettings
from paceline.drift.concept import detect_concept_drift
from paceline.drift.prediction_errors import compute_errors

if TYPE_CHECKING:
    import pandas as pd


def compare_errors(
    columns: Sequence[Column],
    reference: pd.DataFrame,
    current: pd.DataFrame,
    prediction: str,
    actual: str,
    time: str | None,
    settings: DriftSettings,
    rows_per_row: float,
) -> tuple[ConceptDrift, PerformanceEstimate | None]:
    """Return the change of the realised error, and the estimated error of the rows without labels.

    ``rows_per_row`` is the number of rows of the current window for each row of the sample that stands for it.
    """
    if time is not None:
        current = current.sort_values(time, kind="stable")
        if time in reference.columns:
            reference = reference.sort_values(time, kind="stable")
    errors = compute_errors(
        reference,
        current,
        prediction,
        actual,
        error=settings.error,
        threshold=settings.threshold,
        detector=settings.detector,
    )
    concept = detect_concept_drift(
        errors.reference,
        errors.current,
        measure=errors.measure,
        detector=settings.detector,
        minimum_samples=settings.minimum_samples,
        error_threshold=settings.error_threshold,
        labels=None if time is None else current[time].to_numpy()[errors.rows],
        rows=errors.rows,
        no_skill=errors.no_skill,
        ceiling=errors.ceiling,
        classes=errors.classes,
        rows_per_row=rows_per_row,
    )
    concept = replace(concept, auc_reference=errors.auc_reference, auc_current=errors.auc_current)
    estimate = estimate_performance(columns, reference, current, prediction, actual, errors, settings, time)
    return concept, estimate
