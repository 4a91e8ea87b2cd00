"""Detects concept drift: a higher error of the model than in the reference, and the place where it rose.

Called by ``paceline.drift.compare`` if predictions and labels are recorded. The detectors come from the package river.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from paceline.contract import Change, ConceptDrift
from paceline.drift._changes import locate_changes
from paceline.drift._columns import shorten
from paceline.drift._dependence import Units as Units  # for callers
from paceline.drift._level import ErrorRows, compare_means, mean_error
from paceline.drift.detectors import DETECTORS, Detector
from paceline.drift.prediction_errors import ABSOLUTE, RANKING, WRONG
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CURVE_POINTS = 120


def detect_concept_drift(
    reference: NDArray[np.float64],
    current: NDArray[np.float64],
    *,
    measure: str,
    detector: Detector = "adwin",
    minimum_samples: int = 100,
    significance: float = 0.01,
    error_threshold: float = 0.02,
    labels: NDArray[Any] | None = None,
    rows: NDArray[np.int64] | None = None,
    no_skill: float = 1.0,
    ceiling: float = 1.0,
    classes: NDArray[np.float64] | None = None,
    rows_per_row: float = 1.0,
    units: tuple[Units, Units] | None = None,
    seasons: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> ConceptDrift:
    """Test whether the error on the current rows is higher than on the reference rows, and locate changes.

    The current window has drifted if its mean error is significantly higher than that of the reference, or that of the
    rows after a change which the detector has found inside the window. The detector processes the reference rows first,
    as its history. Without reference errors, rows after a change are compared with the rows before it.

    Parameters
    ----------
    reference, current:
        Errors in time order; ``reference`` may be empty.
    measure:
        Measure of the errors; see ``ConceptDrift``.
    detector:
        ``"adwin"``, ``"ddm"`` (only for right and wrong predictions) or ``"page_hinkley"``, with river's default
        settings, except Page-Hinkley's threshold, which is set for errors between 0 and 1.
    minimum_samples:
        Minimum number of current errors for a verdict, and of reference errors for a comparison with them.
    significance:
        Significance level of the tests.
    error_threshold:
        Smallest relevant rise in the measure, relative to ``no_skill``.
    labels:
        Label of each current error, used for ``Change.at``.
    rows:
        Row number of each current error in the current window; by default, each row has an error.
    no_skill:
        Measure of predictions without skill: 1 for right and wrong predictions, the measure of always predicting the
        base rate for probabilities, and 0.5 for the ranking error. For absolute errors, the 99th percentile of the
        earlier errors is used instead.
    ceiling:
        Scale for the detector, which processes values between 0 and 1: errors are divided by ``ceiling``, and larger
        errors count as 1. For absolute errors, the same percentile is used instead, and the tests also count larger
        errors as this percentile.
    classes:
        Class (0 or 1) of each row of both windows. With classes, one detector follows all rows and two more follow one
        class each: the rows of a rare class hardly change the mean of all rows. The ranking error, which needs classes,
        is the mean of the two classes' means.
    rows_per_row:
        Number of rows of the window for each row of the sample that stands for it. The reason names both rows.
    units:
        Units between which the rows of the reference and of the current window may be independent: groups, or points in
        time. By default each row is a point in time, so neighbouring rows may depend on each other.
    seasons:
        Season of each row of the reference and of the current window, as numbers from 0 (for instance the weekday).
        Only rows of the same season are compared: the detector processes the errors without the differences between the
        reference's seasons, and current rows of a season that the reference lacks do not count in the tests.

    Notes
    -----
    A. Bifet and R. Gavaldà, "Learning from time-changing data with adaptive windowing", SDM 2007 (ADWIN).
    J. Gama et al., "Learning with drift detection", SBIA 2004 (DDM). E. S. Page, "Continuous inspection
    schemes", Biometrika 41, 1954 (Page-Hinkley). The p-value of rows after a change is multiplied by the number of
    places and lengths at which such rows might have been found (Bonferroni).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> result = detect_concept_drift((rng.random(1000) < 0.1) * 1.0, (rng.random(1000) < 0.4) * 1.0, measure=WRONG)
    >>> result.verdict, result.changes[0].row < 50
    ('drift', True)
    """
    import numpy as np

    if detector not in DETECTORS:
        raise InvalidInputError("detector", detector, "one of " + ", ".join(DETECTORS))
    if detector == "ddm" and measure != WRONG:
        raise InvalidInputError(
            "detector",
            detector,
            f"adwin or page_hinkley, because the measure is the {measure} (ddm processes right and wrong predictions: "
            "error='wrong')",
        )
    errors = np.concatenate([reference, current])
    start = len(reference)
    weighed = classes if measure == RANKING else None
    season = None if seasons is None else np.concatenate(seasons)
    shown = errors if season is None else _without_season(errors, season, start)

    def mean(begin: int, end: int, values: NDArray[np.float64] = shown) -> float:
        return mean_error(values[begin:end], None if weighed is None else weighed[begin:end])

    def row_of(position: int) -> int:
        return position if rows is None or position < 0 else int(rows[position])

    known: dict[str, Any] = {
        "detector": detector,
        "measure": measure,
        "reference_rows": len(reference),
        "current_rows": len(current),
        "error_reference": mean(0, start, errors) if len(reference) else None,
        "error_current": mean(start, len(errors), errors) if len(current) else None,
    }
    if len(current) < minimum_samples:
        reason = f"{len(current)} current rows have a prediction and a label; the minimum is {minimum_samples}."
        return ConceptDrift(verdict="not enough data", reason=reason, **known)

    tested = errors
    if measure == ABSOLUTE:
        scale = reference if start >= minimum_samples else current
        no_skill = ceiling = float(np.quantile(scale, 0.99)) or float(errors.max()) or 1.0
        tested = np.minimum(errors, ceiling)
    scaled = np.minimum(errors / ceiling, 1.0)
    if season is not None and detector != "ddm":  # ddm processes only 0 and 1
        scaled = _without_season(scaled, season, start)
    followed = [np.arange(len(errors))]
    if classes is not None:
        followed += [np.flatnonzero(classes == label) for label in (0, 1)]
    stream = ErrorRows(tested, _join_units(units, start, len(current)), weighed, season)
    has_reference = start >= minimum_samples
    smallest = error_threshold * no_skill

    changes: list[Change] = []
    worse: dict[Change, float] = {}  # the p-value of each change after which the error is too high
    for found in locate_changes(stream, scaled, followed, start, detector, significance, has_reference=has_reference):
        row = max(0, found.position - start)
        change = Change(
            row_of(row),
            row_of(found.detected - start),
            mean(found.begin, found.position),
            mean(found.position, found.end),
            None if labels is None else shorten(str(labels[row])),
        )
        changes.append(change)
        base = np.arange(start) if has_reference else np.arange(found.begin, found.position)
        rise, _ = compare_means(stream.take(base), stream.take(np.arange(start + row, found.end)))
        if change.is_rise and rise >= smallest and found.p_value <= significance:
            worse[change] = found.p_value
    if classes is not None:
        changes = _merge_changes(changes, worse)
    rises = [change for change in changes if change in worse]
    reason = f"The {measure} did not rise within the current window."
    is_worse = False
    if has_reference:
        rise, p_value = compare_means(stream.take(np.arange(start)), stream.take(np.arange(start, len(errors))))
        is_worse = rise >= smallest and p_value <= significance
        reason = _describe_level(known, rise, p_value, significance, smallest)
    if rises:
        first = rises[0]
        levels = f"{first.error_before:.3g} to {first.error_after:.3g}"
        if not is_worse:
            if has_reference:
                levels = f"{known['error_reference']:.3g} in the reference to {first.error_after:.3g}"
            reason = f"The {measure} rose from {levels} ({_format_p_value(worse[first])})"
        else:
            reason += f" It rose from {levels}"
        reason += _describe_place(first, detector, rows_per_row)
    return ConceptDrift(
        verdict="drift" if is_worse or rises else "no drift",
        reason=reason,
        changes=tuple(changes),
        curve=tuple((row_of(position), error) for position, error in _running_error(shown, weighed, start)),
        **known,
    )


def _describe_level(known: dict[str, Any], rise: float, p_value: float, significance: float, smallest: float) -> str:
    """Return how the mean errors of both windows differ."""
    before, after = known["error_reference"], known["error_current"]
    levels = f"from {before:.3g} in the reference to {after:.3g} in the current window ({_format_p_value(p_value)})"
    if p_value > significance:
        return f"The {known['measure']} did not rise significantly: {levels}."
    small = "" if rise >= smallest else f", by less than the relevant rise of {smallest:.3g}"
    return f"The {known['measure']} rose {levels}{small}."


def _format_p_value(p_value: float) -> str:
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.2g}"


def _describe_place(change: Change, detector: Detector, rows_per_row: float) -> str:
    """Return where a change began and where the detector reported it."""
    place, found_at = f"row {change.row}", f"row {change.detected_row}"
    if rows_per_row > 1.0:
        place, found_at = (
            f"row {row:,} of the sample, about row {round(row * rows_per_row):,}"
            for row in (change.row, change.detected_row)
        )
    at = f" ({change.at})" if change.at else ""
    return f" at {place}{at} of the current window; {detector} detected it at {found_at}."


def _join_units(units: tuple[Units, Units] | None, reference: int, current: int) -> Units:
    """Return the units of both windows; by default, each row is a point in time."""
    import numpy as np

    if units is None:
        return Units(np.arange(reference + current), in_time_order=True)
    before, after = units
    first = int(before.codes.max(initial=-1)) + 1
    return Units(np.concatenate([before.codes, after.codes + first]), before.in_time_order and after.in_time_order)


def _without_season(errors: NDArray[np.float64], seasons: NDArray[np.int64], start: int) -> NDArray[np.float64]:
    """Return the errors without the differences between the means of the reference's seasons.

    The rows of the reference end before ``start``. Without a reference, the seasons are those of all rows.
    """
    import numpy as np

    known = slice(0, start or None)
    counts = np.bincount(seasons[known], minlength=int(seasons.max()) + 1)
    sums = np.bincount(seasons[known], errors[known], len(counts))
    overall = errors[known].mean()
    means = np.divide(sums, counts, out=np.full(len(counts), overall), where=counts > 0)
    adjusted: NDArray[np.float64] = errors - means[seasons] + overall
    return adjusted


def _merge_changes(changes: list[Change], worse: Collection[Change]) -> list[Change]:
    """Return the changes without those that another detector has found too; prefer those in ``worse``.

    Changes in the same direction are the same change if their ranges from ``row`` to ``detected_row`` overlap.
    """
    kept: list[Change] = []
    for change in sorted(changes, key=lambda c: (c not in worse, c.detected_row)):
        if not any(
            change.is_rise == other.is_rise and change.row <= other.detected_row and other.row <= change.detected_row
            for other in kept
        ):
            kept.append(change)
    return sorted(kept, key=lambda c: c.row)


def _running_error(
    stream: NDArray[np.float64], classes: NDArray[np.float64] | None, start: int
) -> tuple[tuple[int, float], ...]:
    import numpy as np

    width = max(1, min(len(stream) // 20, 500))
    groups = [np.ones(len(stream))] if classes is None else [classes == 0.0, classes == 1.0]
    means = []
    for group in groups:
        if group.any():
            sums, counts = (np.convolve(part, np.ones(width), mode="valid") for part in (stream * group, group * 1.0))
            # Where a rare class has no rows, use its mean over the whole stream.
            overall = stream[group > 0].mean()
            means.append(np.where(counts > 0.5, sums / np.maximum(counts, 1.0), overall))
    running = np.mean(means, axis=0)
    step = max(1, -(-len(running) // CURVE_POINTS))
    return tuple((i + width - 1 - start, round(float(running[i]), 5)) for i in range(0, len(running), step))
