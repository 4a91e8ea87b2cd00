"""Compares the model's error in two windows: realised, in rows with labels, and estimated, in rows without.

Called by ``paceline.drift.compare`` if predictions and labels are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.contract import ConceptDrift, PerformanceEstimate
from paceline.drift._classes import read_text
from paceline.drift._columns import Column
from paceline.drift._dependence import Units
from paceline.drift._estimates import estimate_performance
from paceline.drift._settings import DriftSettings
from paceline.drift.class_probabilities import PREDICTED, compute_class_errors, with_predicted_class
from paceline.drift.concept import detect_concept_drift
from paceline.drift.prediction_errors import PredictionErrors, compute_errors
from paceline.drift.seasons import read_seasons
from paceline.drift.units import FEWEST_REFERENCE_TIMES, FEWEST_UNITS, find_groups

if TYPE_CHECKING:
    import pandas as pd


def compare_errors(
    columns: Sequence[Column],
    reference: pd.DataFrame,
    current: pd.DataFrame,
    prediction: str | Mapping[str, str],
    actual: str,
    time: str | None,
    groups: str | None,
    season: str | None,
    settings: DriftSettings,
    rows_per_row: float,
    notes: list[str],
) -> tuple[ConceptDrift, PerformanceEstimate | None]:
    """Return the change of the realised error, and the estimated error of the rows without labels.

    ``rows_per_row`` is the number of rows of the current window for each row of the sample that stands for it. Remarks
    are appended to ``notes``.
    """
    import numpy as np

    if isinstance(prediction, Mapping):
        reference, current = with_predicted_class(reference, current, prediction)
    else:
        reference, current = read_text(
            [reference, current], [prediction, actual], keep_classes=settings.error in ("auto", "wrong")
        )
    if time is not None:
        current = current.sort_values(time, kind="stable")
        if time in reference.columns:
            reference = reference.sort_values(time, kind="stable")
    errors = _compute(reference, current, prediction, actual, settings)
    notes += [errors.note] if errors.note else []
    recorded = prediction
    if isinstance(prediction, Mapping):
        # The estimate learns the errors from the probabilities and from the most probable class.
        columns, prediction = [*columns, *(Column(name, "numeric") for name in prediction.values())], PREDICTED
    has_label = np.zeros(len(reference), dtype=bool)
    if len(errors.reference):
        has_label = (reference[prediction].notna() & reference[actual].notna()).to_numpy()
    known = reference[has_label]
    labelled = current.iloc[errors.rows]
    seasons = None
    if season is not None:
        found = read_seasons(reference, current, season, time)
        last = len(found.names) + 1  # rows of an unknown season, -1, are a season, too
        seasons = found.reference[has_label] % last, found.current[errors.rows] % last
    concept = detect_concept_drift(
        errors.reference,
        errors.current,
        measure=errors.measure,
        detector=settings.detector,
        minimum_samples=settings.minimum_samples,
        significance=settings.significance,
        error_threshold=settings.error_threshold,
        labels=None if time is None else current[time].to_numpy()[errors.rows],
        rows=errors.rows,
        no_skill=errors.no_skill,
        ceiling=errors.ceiling,
        classes=errors.classes,
        rows_per_row=rows_per_row,
        units=_points_in_time(known, labelled, time) if groups is None else find_groups(known, labelled, groups),
        seasons=seasons,
    )
    before, after = errors.confusions
    concept = replace(
        concept,
        auc_reference=errors.auc_reference,
        auc_current=errors.auc_current,
        confusion_reference=before,
        confusion_current=after,
    )
    if groups is not None:  # the estimate assumes independent rows
        reference, current = _one_of_each(known, groups), _one_of_each(current, groups, without=actual)
        errors = _compute(reference, current, recorded, actual, settings)
    estimate = estimate_performance(columns, reference, current, prediction, actual, errors, settings, time)
    if estimate is not None and estimate.error is not None and season is not None:
        notes.append("The estimate of the model's error compares all rows, not only rows of equal seasons.")
    if estimate is not None and estimate.warning and estimate.verdict != "withheld":
        notes.append(f"The estimated model error is unreliable. {estimate.warning}")
    return concept, estimate


def _compute(
    reference: pd.DataFrame,
    current: pd.DataFrame,
    prediction: str | Mapping[str, str],
    actual: str,
    settings: DriftSettings,
) -> PredictionErrors:
    options: dict[str, Any] = {
        "error": settings.error,
        "detector": settings.detector,
        "minimum_samples": settings.minimum_samples,
    }
    if isinstance(prediction, Mapping):
        return compute_class_errors(reference, current, prediction, actual, **options)
    return compute_errors(reference, current, prediction, actual, threshold=settings.threshold, **options)


def _one_of_each(frame: pd.DataFrame, groups: str, without: str | None = None) -> pd.DataFrame:
    """Return one row of each group, in order: the first row in which ``without`` is missing, or else the first one."""
    ordered = frame.reset_index(drop=True)
    if without is not None:
        ordered = ordered.sort_values(without, key=lambda values: values.notna(), kind="stable")
    single: pd.DataFrame = ordered[~ordered.duplicated(groups) | ordered[groups].isna()].sort_index()
    return single


def _points_in_time(reference: pd.DataFrame, current: pd.DataFrame, time: str | None) -> tuple[Units, Units] | None:
    """Return the points in time of the rows, which are in time order, or None if there are too few of them to compare.

    Rows of the same time, for example of one day, may depend on each other.
    """
    import pandas as pd

    if time is None or (len(reference) and time not in reference.columns):
        return None
    times = [frame[time] if len(frame) else current[time][:0] for frame in (reference, current)]
    # Without a reference, a change inside the window is to be found, which takes more points in time.
    if times[0].nunique() < FEWEST_REFERENCE_TIMES and (len(reference) or times[1].nunique() < FEWEST_UNITS):
        return None
    before, after = (Units(pd.factorize(values, use_na_sentinel=False)[0], in_time_order=True) for values in times)
    return before, after
