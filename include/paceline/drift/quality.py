"""Finds data quality problems in the current window: broken columns, stale, implausible and repeated rows.

Called by ``paceline.drift.compare``. Broken data must be distinguished from drift, because training on broken data
harms the model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from paceline.contract import FeatureDrift, ProblemKind, QualityProblem
from paceline.drift._categories import align, new_category_test
from paceline.drift._columns import Column, check_column, count_labels, shorten_name, to_numbers
from paceline.drift._duplicates import count_duplicates
from paceline.drift._quality_settings import KINDS, QualitySettings
from paceline.drift._settings import DriftSettings
from paceline.drift._statistics import missing_test
from paceline.drift.malformed import check_order
from paceline.drift.text_order import sort_text
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

MAX_PROBLEMS = 50  # maximum number of problems in a report
_NAMES = 5  # maximum number of columns or categories that a sentence names


@dataclass(frozen=True)
class PossibleProblem:
    """A possible problem, with the p-value of the hypothesis that it is due to chance."""

    kind: ProblemKind
    column: str
    reason: str
    p_value: float


def find_broken_columns(
    columns: Sequence[Column], new: Sequence[str], settings: QualitySettings
) -> list[QualityProblem]:
    """Return the columns that are missing, new, or of another type."""
    found = [_problem(one.problem, one.name, one.skipped, settings) for one in columns if one.problem is not None]
    found += [_problem("new column", name, "the reference lacks the column", settings) for name in new]
    return _without_ignored(found, settings)


def find_stale_rows(
    current: pd.DataFrame, time: str | None, settings: QualitySettings, now: datetime | None = None
) -> list[QualityProblem]:
    """Return a problem if the newest value of the column ``time`` is older than ``max_age_s`` at the time ``now``.

    Values later than ``now`` do not count, because a wrong clock would otherwise hide old rows. If no other values
    remain, that is a problem, too. An empty window is no problem here: it has too little data for any verdict.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"day": ["2030-01-01", "2030-01-02"]})
    >>> now = datetime(2030, 1, 4, tzinfo=timezone.utc)
    >>> [problem] = find_stale_rows(frame, "day", QualitySettings(max_age_s=86_400), now)
    >>> problem.reason
    'the newest value is from 2030-01-02 00:00 UTC, 2 days, 0:00:00 ago, and the limit is 1 day, 0:00:00'
    """
    import pandas as pd

    check_age_column(time, settings)
    if settings.max_age_s is None or time is None or "stale" in settings.ignored:
        return []
    check_column("time", time, current, "current")
    if not len(current):
        return []
    values = current[time].dropna()
    if not len(values):
        return [_problem("stale", time, "no row has a time, so the age of the data is unknown", settings)]
    check_order(values, "current")
    [values] = sort_text(time, current=values)
    try:
        if pd.api.types.is_numeric_dtype(values.dtype):
            raise ValueError("numbers")
        times = pd.to_datetime(values, utc=True, format="ISO8601" if values.dtype.kind not in "Mm" else None)
    except (ValueError, TypeError) as error:
        unread = values[pd.to_datetime(values, utc=True, format="ISO8601", errors="coerce").isna()]
        odd = (unread if len(unread) else values).iloc[:1].tolist()[0]
        accepted = "dates or times (ISO 8601 if they are text), because max_age_s is set"
        raise InvalidInputError(time, odd, accepted) from error
    now = now or datetime.now(timezone.utc)
    newest = times[times <= now].max()
    if pd.isna(newest):
        return [_problem("stale", time, f"all times are later than now, {now:%Y-%m-%d %H:%M %Z}", settings)]
    age = now - newest.to_pydatetime()
    limit = timedelta(seconds=settings.max_age_s)
    if age <= limit:
        return []
    ago = timedelta(seconds=round(age.total_seconds()))
    reason = f"the newest value is from {newest:%Y-%m-%d %H:%M} UTC, {ago} ago, and the limit is {limit}"
    return [_problem("stale", time, reason, settings)]


def check_age_column(time: str | None, settings: QualitySettings) -> None:
    """Raise InvalidInputError if ``max_age_s`` is set but there is no column with times."""
    if settings.max_age_s is not None and time is None:
        raise InvalidInputError("time", time, "a column with dates or times, because max_age_s is set")


def find_missing_predictions(
    prediction: str | None, reference: pd.DataFrame, current: pd.DataFrame, settings: DriftSettings
) -> list[QualityProblem]:
    """Return a problem if no current row has a prediction and chance does not explain this."""
    if prediction not in reference.columns or current[prediction].notna().any():
        return []
    before, now = (frame[prediction].isna() for frame in (reference, current))
    p_value = missing_test(int(before.sum()), len(before), len(now), len(now)).p_value
    column = FeatureDrift(str(prediction), "numeric", "skipped", missing_reference=float(before.mean()))
    column = replace(column, missing_current=1.0, missing_adjusted_p_value=p_value)
    found = _find_missing(column, settings)
    return _without_ignored([found] if found else [], settings.quality)


def find_implausible_values(
    columns: Sequence[Column],
    features: Sequence[FeatureDrift],
    reference: pd.DataFrame,
    current: pd.DataFrame,
    settings: DriftSettings,
    model_columns: Collection[str | None] = (),
    rows_per_row: tuple[float, float] = (1.0, 1.0),
) -> list[QualityProblem]:
    """Return missing, implausible and repeated values that chance does not explain.

    ``features`` are the results for ``columns``, with the tests of missing values. ``model_columns`` contain
    predictions and labels; they are ignored in the search for equal rows, because unknown labels are equal. For each
    window that is a random sample, ``rows_per_row`` has the number of rows for each of its rows. The false discovery
    rate of the other tests together is ``settings.significance``.
    """
    from scipy.stats import false_discovery_control

    quality = settings.quality
    compared = {column.name for column in columns if not column.skipped}
    found = [_find_missing(feature, settings) for feature in features if feature.name in compared]
    suspicions = [
        _find_outside(column.name, reference, current, quality)
        for column in columns
        if column.kind == "numeric" and not column.skipped
    ]
    suspicions += [
        _find_new_categories(feature.name, reference, current, quality)
        for feature in features
        if feature.new_categories
    ]
    if not any(column.problem for column in columns):  # more rows are equal if a column is left out
        arrays = {column.name for column in columns if column.kind == "embedding" or column.is_odd}
        suspicions.append(_find_duplicates({*arrays, *model_columns}, reference, current, quality, rows_per_row))
    known = [one for one in suspicions if one is not None]
    # Each column without such values adds a test with the p-value 1.
    plain = sum(not column.skipped and column.kind in ("numeric", "categorical") for column in columns) + 1 - len(known)
    adjusted = false_discovery_control([one.p_value for one in known] + [1.0] * plain).tolist()
    found += [
        _problem(one.kind, one.column, one.reason, quality)
        for one, p_value in zip(known, adjusted, strict=False)
        if p_value <= settings.significance and one.reason
    ]
    return _without_ignored([one for one in found if one is not None], quality)


def limit_problems(problems: Sequence[QualityProblem]) -> tuple[tuple[QualityProblem, ...], list[str]]:
    """Return the most severe problems, and a note if there are more."""
    rank = {kind: number for number, kind in enumerate(KINDS)}
    ordered = sorted(problems, key=lambda one: (not one.severe, rank[one.kind], one.column))
    more = len(ordered) - MAX_PROBLEMS
    return tuple(ordered[:MAX_PROBLEMS]), [f"{more} more data quality problems are not listed."] if more > 0 else []


def describe_severe(problems: Sequence[QualityProblem]) -> str:
    """Return the severe problems as a sentence.

    >>> describe_severe([QualityProblem("missing column", "temp", "the current window lacks the column", True)])
    'Bad data: temp: the current window lacks the column.'
    """
    severe = [
        f"{shorten_name(one.column)}: {one.reason}" if one.column else one.reason for one in problems if one.severe
    ]
    return f"Bad data: {'; '.join(severe[:_NAMES])}{_and_more(len(severe))}."


def _problem(kind: ProblemKind, column: str, reason: str, settings: QualitySettings) -> QualityProblem:
    return QualityProblem(kind, column, reason, kind in settings.severe)


def _without_ignored(problems: Sequence[QualityProblem], settings: QualitySettings) -> list[QualityProblem]:
    return [problem for problem in problems if problem.kind not in settings.ignored]


def _find_missing(feature: FeatureDrift, settings: DriftSettings) -> QualityProblem | None:
    """Return a problem if more values are missing, unless the test of the drift check explains this by chance.

    Without a test, the rise counts: an outage of a sensor is one event, but its values are missing all the same. The
    kind is then never "no values", which is severe: the column may have values only in winter.
    """
    before, after = feature.missing_reference, feature.missing_current
    p_value = feature.missing_adjusted_p_value
    if after - before < settings.of_feature(feature.name).missing_threshold:
        return None
    if p_value is not None and p_value > settings.significance:
        return None
    reason = f"the share of missing values rose from {before:.1%} to {after:.1%}"
    if p_value is None:
        reason += " (too few independent rows to test this)"
    kind: ProblemKind = "no values" if after == 1.0 and p_value is not None else "missing values"
    return _problem(kind, feature.name, reason, settings.quality)


def _find_outside(
    name: str, reference: pd.DataFrame, current: pd.DataFrame, settings: QualitySettings
) -> PossibleProblem | None:
    before, after = to_numbers(reference[name], "reference"), to_numbers(current[name], "current")
    if not len(before) or not len(after):
        return None
    low, high = float(before.min()), float(before.max())
    outside = int(((after < low) | (after > high)).sum())
    if not outside:
        return None
    share, reason = outside / len(after), ""
    if share >= settings.range_threshold:
        span = f"{after.min():.4g} to {after.max():.4g}, and the reference's from {low:.4g} to {high:.4g}"
        reason = f"{share:.1%} of the values are outside the reference's range: they range from {span}"
    return PossibleProblem("out of range", name, reason, outside_p_value(len(before), len(after), outside))


def outside_p_value(rows_reference: int, rows_current: int, outside: int) -> float:
    """Return the probability that at least ``outside`` current rows are outside the range of the reference by chance.

    If all rows are in random order, this is the probability that at most one row of the reference is among the first
    ``outside + 1`` rows. For any distribution of the values, the number of rows beyond both ends of the range is
    distributed like the number beyond the second-largest value of the reference. Equal values make the probability
    smaller.

    Notes
    -----
    S. S. Wilks, "Determination of sample sizes for setting tolerance limits", Ann. Math. Stat. 12, 1941.

    Examples
    --------
    >>> round(outside_p_value(100, 100, 1), 2), outside_p_value(500, 500, 25) < 1e-5
    (0.75, True)
    """
    from scipy.stats import hypergeom

    return float(hypergeom(rows_reference + rows_current, rows_reference, outside + 1).cdf(1))


def _find_new_categories(
    name: str, reference: pd.DataFrame, current: pd.DataFrame, settings: QualitySettings
) -> PossibleProblem:
    before, after = count_labels(reference[name]), count_labels(current[name])
    new = {label: rows for label, rows in after.items() if label not in before}
    p_value, by_chance = new_category_test(*align(before, after))
    rows, reason = sum(after.values()), ""
    share = sum(new.values()) / rows
    if share - by_chance >= settings.category_threshold:
        names = sorted(new, key=lambda label: (-new[label], label))
        shown = ", ".join(map(shorten_name, names[:_NAMES]))
        reason = f"{share:.1%} of the values have new categories: {shown}{_and_more(len(names))}"
        if by_chance >= settings.category_threshold:
            reason += f" ({by_chance:.1%} expected by chance)"
    return PossibleProblem("new categories", name, reason, p_value)


def _find_duplicates(
    left_out: set[str | None],
    reference: pd.DataFrame,
    current: pd.DataFrame,
    settings: QualitySettings,
    rows_per_row: tuple[float, float],
) -> PossibleProblem | None:
    names = [name for name in reference.columns if name in current.columns and str(name) not in left_out]
    size = min(len(reference), len(current))
    if not names or not size:
        return None
    try:
        before, after = count_duplicates(reference[names], current[names], rows_per_row)
    except TypeError:  # unhashable values, in columns that are not compared
        return None
    test = missing_test(before, size, after, size)
    rise, reason = (after - before) / size, ""
    if rise >= settings.duplicate_threshold:
        reason = f"the share of duplicated rows rose from {before / size:.1%} to {after / size:.1%}"
        if max(len(reference), len(current)) > size:
            reason += f" (estimated for {size:,} rows of each window)"
    return PossibleProblem("duplicated rows", "", reason, test.p_value if rise > 0 else 1.0)


def _and_more(count: int) -> str:
    return f" and {count - _NAMES} more" if count > _NAMES else ""
