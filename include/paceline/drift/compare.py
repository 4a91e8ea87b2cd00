"""Compares a window of production data with reference data, for example the model's training data.

Called by the sensors and triggers in ``paceline.sensors``; ``compare`` accepts any two data frames.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from paceline.contract import DriftReport
from paceline.drift._columns import (
    Column,
    check_column,
    choose_columns,
    shorten,
    shorten_name,
    without_infinite,
)
from paceline.drift._feature_comparison import FeatureComparison, compare_features
from paceline.drift._frames import ArrowFrame, check_window, with_order, with_same_precision
from paceline.drift._judgement import check_importance
from paceline.drift._model_error import compare_errors
from paceline.drift._settings import DriftSettings
from paceline.drift._verdict import overall_verdict, too_short_reason
from paceline.drift.class_probabilities import prediction_columns, read_prediction
from paceline.drift.malformed import check_values, describe_markers
from paceline.drift.quality import (
    describe_severe,
    find_broken_columns,
    find_implausible_values,
    find_missing_predictions,
    find_stale_rows,
    limit_problems,
)
from paceline.drift.seasons import describe_too_few_rows, match_windows, read_seasons
from paceline.drift.text_order import sort_text
from paceline.drift.units import (
    check_groups,
    check_roles,
    describe_dependence,
    describe_too_few_groups,
    find_groups,
    find_times,
)
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd


def compare(
    reference: pd.DataFrame | ArrowFrame,
    current: pd.DataFrame | ArrowFrame,
    *,
    columns: Sequence[str] | None = None,
    categorical: Collection[str] = (),
    prediction: str | Mapping[str, str] | None = None,
    actual: str | None = None,
    time: str | None = None,
    groups: str | None = None,
    season: str | None = None,
    segments: str | None = None,
    settings: DriftSettings = DriftSettings(),  # noqa: B008  (frozen)
    reference_name: str = "reference",
    current_name: str = "current",
    reference_rows: int | None = None,
    current_rows: int | None = None,
    now: datetime | None = None,
) -> DriftReport:
    """Test whether ``current`` has drifted from ``reference``, for each feature and for the whole window.

    A feature has drifted if its test is significant after Benjamini-Hochberg correction over all features, and if the
    difference is large enough to matter. The first condition limits false alarms for any number of features; the second
    prevents alarms about negligible differences in many rows. If no feature has drifted, a classifier tries to
    distinguish the windows, which finds changes in the joint distribution. The window has drifted if at least one
    feature or all of them jointly have drifted, or if the model's realised or estimated error rose. If the current
    window has a severe data quality problem (see ``QualitySettings``), the verdict is not drift but bad data.

    Parameters
    ----------
    reference, current:
        The windows: data frames of pandas, Polars, pyarrow, DuckDB or any other library with Arrow's stream interface
        (``__arrow_c_stream__``). For concept drift, the rows of both windows must be in time order, unless ``time`` is
        given.
    columns:
        Columns to compare; by default every column of the reference except ``prediction``, ``actual``, ``time``,
        ``groups`` and ``season``.
    categorical:
        Columns whose values are labels even if they look like numbers.
    prediction, actual:
        Columns with the recorded prediction and its later label; name both or neither. For probabilities of several
        classes, ``prediction`` maps each class to the column of its probability: ``{"cat": "p_cat", "dog": "p_dog"}``.
        The reference may lack these columns, and the current window may lack ``actual``: the error of rows without
        labels is estimated from the reference.
    time:
        Column that orders the rows, locates a change and delimits the periods of the estimate. With at least ten
        different times in each window, the tests take into account that neighbouring times depend on each other.
    groups:
        Column of the groups whose rows depend on each other: the customer, the day, the session. The tests then count
        independent groups instead of rows.
    season:
        Column of the seasons, so that like is compared with like; or ``"weekday"``, ``"hour"`` or ``"hour of week"`` of
        the column ``time``. Each season has the same share of the compared rows in both windows.
    segments:
        Column whose values, at most 20, divide the windows into segments. The features of each segment are tested, too,
        and the correction for many tests covers them.
    settings:
        Thresholds and methods.
    reference_name, current_name:
        Descriptions of the windows for the report.
    reference_rows, current_rows:
        Number of rows in the whole window, if ``reference`` or ``current`` is a sample of them.
    now:
        Time at which the age of the newest row is determined; by default the current time.

    Raises
    ------
    InvalidInputError
        For an empty reference, unknown columns, and values in the reference that cannot be compared. Columns of types
        without a comparison (JSON, bytes) are skipped, and infinite values count as missing, unless ``columns`` names
        the column.

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
    check_column_pair(prediction, actual)
    prediction = read_prediction(prediction)
    predictions = prediction_columns(prediction)
    actual, time = (None if name is None else str(name) for name in (actual, time))
    check_roles({"groups": groups, "season": season, "segments": segments}, (*predictions, actual), time)
    reference, current = check_window("reference", reference), check_window("current", current)
    if not len(reference):
        raise InvalidInputError("reference", "0 rows", f"at least {settings.minimum_samples} rows (minimum_samples)")
    for window, frame in (("reference", reference), ("current", current)):
        check_values(frame, window, time, (*predictions, actual))

    for own in settings.features:
        check_column("settings.features", own, reference, "reference")
    excluded = {name for name in (*predictions, actual, time, groups, season) if name is not None}
    notes: list[str] = []
    chosen, new = choose_columns(reference, current, columns=columns, categorical=categorical, excluded=excluded)
    check_importance(chosen, settings)
    if columns is None:
        reference = _without_infinite(chosen, reference, "reference", notes)
        current = _without_infinite(chosen, current, "current", notes)
    reference, current = with_same_precision(chosen, reference, current)
    for field, name in (*(("prediction", name) for name in predictions), ("time", time)):
        if name is not None:
            check_column(field, name, current, "current")
    if actual is not None and actual not in current.columns:
        check_column("actual", actual, reference, "reference or current")
        notes.append(f"The current window has no column {actual}, so its rows have no labels.")
        unlabelled: pd.DataFrame = current.assign(**{actual: None})
        current = unlabelled

    if time is not None:
        windows: dict[str, pd.DataFrame] = {"reference": reference, "current": current}
        known = {name: with_order(frame[time]) for name, frame in windows.items() if time in frame.columns}
        for name, values in zip(known, sort_text(time, **known), strict=True):
            windows[name] = windows[name].assign(**{time: values})
        reference, current = windows["reference"], windows["current"]

    units = None
    if groups is not None:
        check_groups(reference, current, groups)
        units = find_groups(reference, current, groups)
    elif time is not None:
        units = find_times(reference, current, time)
    if units is None:
        notes += describe_dependence(chosen, reference, time)
    elif units[0].in_time_order and any(column.kind == "text" and not column.skipped for column in chosen):
        notes.append(
            "The tests of text and of data quality do not take into account that neighbouring times depend on each "
            "other."
        )

    for window, frame, rows in (("reference", reference, reference_rows), ("current", current, current_rows)):
        if rows is not None and rows > len(frame):
            notes.append(f"A random sample of {len(frame):,} of {rows:,} rows stands for the {window} window.")
    for column in chosen:
        if column.kind in ("categorical", "text") and not column.skipped:
            notes += describe_markers(reference[column.name], current[column.name])
    problems = find_broken_columns(chosen, new, settings.quality)
    problems += find_stale_rows(current, time, settings.quality, now)
    found, concept, estimate = FeatureComparison(), None, None
    before, after = reference, current  # the rows whose features are compared
    too_short = too_short_reason(len(reference), len(current), settings.minimum_samples)
    too_few = ""  # why the features are not compared, although the windows are long enough
    if season is not None and not too_short:
        seasons = read_seasons(reference, current, season, time)
        before, after, units, note = match_windows(reference, current, seasons, units)
        notes.append(note)
        too_few = describe_too_few_rows(season, seasons, len(before), len(after), settings.minimum_samples)
    if groups is not None and units is not None:
        too_few = too_few or describe_too_few_groups(groups, units)
    if too_short:
        verdict, reason = "not enough data", too_short
    else:
        if not too_few:
            found = compare_features(chosen, before, after, segments, settings, units)
            notes += found.notes
        if prediction is not None and actual is not None:
            current_per_row = (current_rows or 0) / len(current)
            concept, estimate = compare_errors(
                chosen, reference, current, prediction, actual, time, groups, season, settings, current_per_row, notes
            )
        verdict, reason = overall_verdict(found, (concept, estimate), settings)
        if too_few and verdict != "drift":
            verdict, reason = "not enough data", too_few
        problems += find_missing_predictions(next(iter(predictions), None), reference, current, settings)
        if groups is not None and units is not None:  # these tests assume independent rows
            before, after = before.iloc[units[0].first_rows()], after.iloc[units[1].first_rows()]
        if not too_few:
            sampled = (reference_rows or len(reference)) / len(reference), (current_rows or len(current)) / len(current)
            problems += find_implausible_values(
                chosen, found.features, before, after, settings, (*predictions, actual), sampled
            )
    if any(problem.severe for problem in problems):
        verdict, reason = "bad data", describe_severe(problems)
    quality, more = limit_problems(problems)
    return DriftReport(
        verdict=verdict,  # type: ignore[arg-type]
        reason=reason,
        reference_rows=reference_rows or len(reference),
        current_rows=current_rows or len(current),
        features=found.features,
        concept=concept,
        joint=found.joint,
        estimate=estimate,
        reference=_add_time_span(reference_name, reference, time),
        current=_add_time_span(current_name, current, time),
        notes=(*notes, *more),
        settings=settings.to_dict(),
        quality=quality,
        segments=found.segments,
    )


def check_column_pair(prediction: object, actual: object) -> None:
    """Raise InvalidInputError if only one of the two column names is given, or the same name twice."""
    if (prediction is None) != (actual is None):
        field = "actual" if actual is None else "prediction"
        raise InvalidInputError(field, None, "a column name, because prediction and actual must be given together")
    if prediction is not None and prediction == actual:
        raise InvalidInputError("actual", actual, "another column than prediction")


def _without_infinite(columns: Sequence[Column], frame: pd.DataFrame, window: str, notes: list[str]) -> pd.DataFrame:
    """Return the rows with missing values instead of the features' infinite values, and add a note for each feature."""
    found = {}
    for name in (column.name for column in columns if column.kind == "numeric" and not column.skipped):
        values, infinite = without_infinite(frame[name])
        if infinite:
            found[name] = values
            notes.append(
                f"{shorten_name(name)}: {infinite:,} of {len(frame):,} values of the {window} window are infinite or "
                "beyond 1e300; they count as missing."
            )
    finite: pd.DataFrame = frame.assign(**found)
    return finite


def _add_time_span(name: str, frame: pd.DataFrame, time: str | None) -> str:
    if time is None or time not in frame.columns or not frame[time].notna().any():
        return name
    times = frame[time].dropna()
    return f"{name}, {shorten(str(times.min()))} to {shorten(str(times.max()))}"
