"""Compare a window of production data with the reference data of the model's training.

Called by the sensors and triggers in ``paceline.sensors``; it accepts any two data frames.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from paceline.drift.columns import check_column, check_window, choose_columns
from paceline.drift.concept import DETECTORS, ERROR_KINDS, Detector, ErrorKind, detect_concept_drift, errors_of
from paceline.drift.features import Measured, Thresholds, measure, verdicts
from paceline.drift.report import ConceptDrift, DriftReport, FeatureDrift, Verdict
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd


def compare(
    reference: pd.DataFrame,
    current: pd.DataFrame,
    *,
    columns: Sequence[str] | None = None,
    categorical: Collection[str] = (),
    prediction: str | None = None,
    actual: str | None = None,
    time: str | None = None,
    significance: float = 0.01,
    psi_threshold: float = 0.1,
    effect_threshold: float = 0.1,
    missing_threshold: float = 0.05,
    error_threshold: float = 0.02,
    minimum_samples: int = 100,
    detector: Detector = "adwin",
    error: ErrorKind = "auto",
    reference_name: str = "reference",
    current_name: str = "current",
) -> DriftReport:
    """Return whether ``current`` has drifted from ``reference``, for each feature and for the whole window.

    A feature has drifted if its test is significant after Benjamini-Hochberg correction over all features, and if the
    difference is large enough to matter. The first condition limits false alarms for any number of features, the second
    prevents alarms about negligible differences in many rows. The window has drifted if a feature has, or if the error
    of the model rose.

    Parameters
    ----------
    reference, current:
        The windows. For concept drift, the rows of each have to be in time order, unless ``time`` is given.
    columns:
        Columns to compare; by default every column of the reference except ``prediction``, ``actual`` and ``time``.
    categorical:
        Columns whose values are labels even if they look like numbers.
    prediction, actual:
        Columns with the recorded prediction and its later label; both or none. The reference window may lack them.
    time:
        Column that orders the rows and locates a change.
    significance:
        False discovery rate: without drift, about this share of windows raises an alarm. The default of 1 % is well
        below the commonly accepted 5 %, and costs little power at hundreds of rows.
    psi_threshold, effect_threshold:
        A difference matters if its population stability index reaches ``psi_threshold`` (0.1 is the usual limit of
        stable data) or its KS statistic or Cramér's V reaches ``effect_threshold`` (0.1: shares of rows differ by ten
        points).
    missing_threshold:
        Smallest change in the share of missing values that matters (0.05: five points).
    error_threshold:
        Smallest rise of the model's error that matters (0.02: two points).
    minimum_samples:
        Fewest rows in a window, and fewest values of a feature in it; with fewer, there is no drift verdict.
    detector, error:
        How errors are monitored; see ``paceline.drift.concept``.
    reference_name, current_name:
        Descriptions of the windows for the report.

    Raises
    ------
    InvalidInputError
        For an empty reference, missing or renamed columns, infinite or mixed values, thresholds out of range.

    Notes
    -----
    Y. Benjamini and Y. Hochberg, "Controlling the false discovery rate", J. R. Stat. Soc. B 57, 1995.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> reference = pd.DataFrame(rng.normal(size=(500, 3)), columns=["temp", "wind", "rain"])
    >>> current = pd.DataFrame(rng.normal(size=(500, 3)), columns=["temp", "wind", "rain"])
    >>> compare(reference, current).verdict
    'no drift'
    >>> current["wind"] += 0.5
    >>> compare(reference, current).drifted_features
    ['wind']
    """
    limits = check_settings(
        significance=significance,
        psi_threshold=psi_threshold,
        effect_threshold=effect_threshold,
        missing_threshold=missing_threshold,
        error_threshold=error_threshold,
        minimum_samples=minimum_samples,
        detector=detector,
        error=error,
        prediction=prediction,
        actual=actual,
    )
    reference, current = check_window("reference", reference), check_window("current", current)
    if not len(reference):
        raise InvalidInputError("reference", "0 rows", f"at least {minimum_samples} rows (minimum_samples)")

    excluded = {name for name in (prediction, actual, time) if name is not None}
    chosen, notes = choose_columns(reference, current, columns=columns, categorical=categorical, leave_out=excluded)
    for field, name in (("prediction", prediction), ("actual", actual), ("time", time)):
        if name is not None:
            check_column(field, name, current, "current")

    features: list[FeatureDrift] = []
    concept = None
    too_short = _too_short(len(reference), len(current), limits.minimum_samples)
    if too_short:
        verdict, reason = "not enough data", too_short
    else:
        measured = [measure(column, reference, current, limits) for column in chosen]
        features = verdicts(measured, limits)
        if prediction is not None and actual is not None:
            concept = _concept(reference, current, prediction, actual, time, detector, error, limits, error_threshold)
        verdict, reason = _overall_verdict(features, concept, measured)
    return DriftReport(
        verdict=verdict,  # type: ignore[arg-type]
        reason=reason,
        reference_rows=len(reference),
        current_rows=len(current),
        features=tuple(features),
        concept=concept,
        reference=_with_span(reference_name, reference, time),
        current=_with_span(current_name, current, time),
        notes=tuple(notes),
        settings={
            "significance": significance,
            "psi_threshold": psi_threshold,
            "effect_threshold": effect_threshold,
            "missing_threshold": missing_threshold,
            "error_threshold": error_threshold,
            "minimum_samples": minimum_samples,
            "detector": detector,
        },
    )


def check_settings(
    *,
    significance: object,
    psi_threshold: object,
    effect_threshold: object,
    missing_threshold: object,
    error_threshold: object,
    minimum_samples: object,
    detector: object,
    error: object,
    prediction: object,
    actual: object,
) -> Thresholds:
    """Return the thresholds; raise InvalidInputError for invalid settings of ``compare``. Needs no data."""
    _share("error_threshold", error_threshold)
    for field, value, accepted in (("detector", detector, DETECTORS), ("error", error, ERROR_KINDS)):
        if value not in accepted:
            raise InvalidInputError(field, value, "one of " + ", ".join(accepted))
    if (prediction is None) != (actual is None):
        field = "actual" if actual is None else "prediction"
        raise InvalidInputError(field, None, "a column name, as prediction and actual go together")
    return Thresholds(
        _share("significance", significance),
        _at_least_zero("psi_threshold", psi_threshold),
        _share("effect_threshold", effect_threshold),
        _share("missing_threshold", missing_threshold),
        _whole("minimum_samples", minimum_samples),
    )


def _concept(
    reference: pd.DataFrame,
    current: pd.DataFrame,
    prediction: str,
    actual: str,
    time: str | None,
    detector: Detector,
    error: ErrorKind,
    limits: Thresholds,
    error_threshold: float,
) -> ConceptDrift:
    if time is not None:
        current = current.sort_values(time, kind="stable")
        if time in reference.columns:
            reference = reference.sort_values(time, kind="stable")
    errors, measured, rows = errors_of(current, prediction, actual, error=error)
    before = errors[:0]
    if {prediction, actual} <= set(reference.columns):
        found, as_measured, _ = errors_of(reference, prediction, actual, error=error, window="reference")
        # A reference without labels, or with another kind of error (only 0 and 1 by chance), is no baseline.
        before = found if as_measured == measured else before
    labels = None if time is None else current[time].to_numpy()[rows]
    return detect_concept_drift(
        before,
        errors,
        measure=measured,
        detector=detector,
        minimum_samples=limits.minimum_samples,
        error_threshold=error_threshold,
        labels=labels,
    )


def _overall_verdict(
    features: Sequence[FeatureDrift], concept: ConceptDrift | None, measured: Sequence[Measured]
) -> tuple[Verdict, str]:
    drifted = [feature.name for feature in features if feature.verdict == "drift"]
    tested = [feature for feature in features if feature.verdict != "skipped"]
    parts = []
    if drifted:
        names = ", ".join(drifted[:5]) + (f" and {len(drifted) - 5} more" if len(drifted) > 5 else "")
        parts.append(f"Drift in {len(drifted)} of {len(tested)} features: {names}.")
    if concept is not None and concept.verdict == "drift":
        parts.append(concept.reason)
    if parts:
        return "drift", " ".join(parts)
    if not tested and any(item.too_few for item in measured):
        return "not enough data", "No feature has enough values in both windows."
    return "no drift", f"No drift in {len(tested)} feature{'' if len(tested) == 1 else 's'}."


def _too_short(reference: int, current: int, minimum: int) -> str:
    short = [
        f"{name}: got {rows} rows, expected at least {minimum} (minimum_samples)"
        for name, rows in (("reference", reference), ("current", current))
        if rows < minimum
    ]
    return "; ".join(short)


def _with_span(name: str, frame: pd.DataFrame, time: str | None) -> str:
    if time is None or time not in frame.columns or not frame[time].notna().any():
        return name
    times = frame[time].dropna()
    return f"{name}, {times.min()} to {times.max()}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _share(field: str, value: object) -> float:
    number = _number(value)
    if number is None or not 0 < number < 1:
        raise InvalidInputError(field, value, "a number between 0 and 1, both excluded")
    return number


def _at_least_zero(field: str, value: object) -> float:
    number = _number(value)
    if number is None or not 0 <= number < float("inf"):
        raise InvalidInputError(field, value, "a number of at least 0")
    return number


def _whole(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        raise InvalidInputError(field, value, "a whole number of at least 2")
    return value
