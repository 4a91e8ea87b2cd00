"""Detects concept drift: changes in a model's error, with a streaming detector.

Called by ``paceline.drift.compare`` if predictions and labels are recorded. The detectors come from the package river.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from paceline.drift._columns import shorten
from paceline.drift._report import Change, ConceptDrift
from paceline.drift.prediction_errors import ABSOLUTE, RANKING, WRONG
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Detector = Literal["adwin", "ddm", "page_hinkley"]
DETECTORS: tuple[Detector, ...] = ("adwin", "ddm", "page_hinkley")
CURVE_POINTS = 120


def detect_concept_drift(
    reference: NDArray[np.float64],
    current: NDArray[np.float64],
    *,
    measure: str,
    detector: Detector = "adwin",
    minimum_samples: int = 100,
    error_threshold: float = 0.02,
    labels: NDArray[Any] | None = None,
    rows: NDArray[np.int64] | None = None,
    no_skill: float = 1.0,
    ceiling: float = 1.0,
    classes: NDArray[np.float64] | None = None,
    rows_per_row: float = 1.0,
) -> ConceptDrift:
    """Detect changes in the error on the current rows. The detector processes the reference rows first, as its history.

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
        Minimum number of current errors for a verdict.
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
        errors count as 1. For absolute errors, the same percentile is used instead.
    classes:
        Class (0 or 1) of each row of both windows. With classes, one detector follows all rows and two more follow one
        class each: the rows of a rare class hardly change the mean of all rows. The ranking error, which needs classes,
        is the mean of the two classes' means.
    rows_per_row:
        Number of rows of the window for each row of the sample that stands for it. The reason names both rows.

    Notes
    -----
    A. Bifet and R. Gavaldà, "Learning from time-changing data with adaptive windowing", SDM 2007 (ADWIN).
    J. Gama et al., "Learning with drift detection", SBIA 2004 (DDM). E. S. Page, "Continuous inspection
    schemes", Biometrika 41, 1954 (Page-Hinkley).

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
    stream = np.concatenate([reference, current])
    start = len(reference)
    weighed = classes if measure == RANKING else None

    def row_of(position: int) -> int:
        return position if rows is None or position < 0 else int(rows[position])

    def mean(begin: int, end: int | None) -> float:
        return _mean(stream[begin:end], None if weighed is None else weighed[begin:end])

    known = {
        "detector": detector,
        "measure": measure,
        "reference_rows": len(reference),
        "current_rows": len(current),
        "error_reference": mean(0, start) if len(reference) else None,
        "error_current": mean(start, None) if len(current) else None,
    }
    if len(current) < minimum_samples:
        reason = f"{len(current)} current rows have a prediction and a label; the minimum is {minimum_samples}."
        return ConceptDrift(verdict="not enough data", reason=reason, **known)  # type: ignore[arg-type]

    if measure == ABSOLUTE:
        base = reference if len(reference) >= minimum_samples else current
        no_skill = ceiling = float(np.quantile(base, 0.99)) or float(stream.max()) or 1.0
    scaled = np.minimum(stream / ceiling, 1.0)
    followed = [np.arange(len(stream))]
    if classes is not None:
        followed += [np.flatnonzero(classes == label) for label in (0, 1)]
    changes = []
    for part in followed:
        # By default ADWIN checks every 32nd value. A rare class may have few more values than that.
        found = _find_changes(scaled[part], detector, adwin_clock=32 if len(part) == len(stream) else 1)
        bounds = [0, *(int(part[position]) for position, _ in found), len(stream)]
        for number, (_, detected) in enumerate(found, start=1):
            if part[detected] < start:
                continue  # a change in the reference window
            row = max(0, bounds[number] - start)
            before, after = mean(bounds[number - 1], bounds[number]), mean(bounds[number], bounds[number + 1])
            at = None if labels is None else shorten(str(labels[row]))
            changes.append(Change(row_of(row), row_of(int(part[detected]) - start), before, after, at))
    smallest = error_threshold * no_skill
    if classes is not None:
        changes = _merge_changes(changes, smallest)
    rises = [c for c in changes if c.error_after - c.error_before >= smallest]
    if rises:
        first = rises[0]
        if rows_per_row > 1.0:
            place, found_at = (
                f"row {row:,} of the sample, about row {round(row * rows_per_row):,}"
                for row in (first.row, first.detected_row)
            )
        else:
            place, found_at = f"row {first.row}", f"row {first.detected_row}"
        reason = (
            f"The {measure} rose from {first.error_before:.3g} to {first.error_after:.3g} at {place}"
            f"{f' ({first.at})' if first.at else ''} of the current window; {detector} detected it at {found_at}."
        )
    else:
        reason = f"The {measure} did not rise."
    return ConceptDrift(
        verdict="drift" if rises else "no drift",
        reason=reason,
        changes=tuple(changes),
        curve=tuple((row_of(position), error) for position, error in _running_error(stream, weighed, start)),
        **known,  # type: ignore[arg-type]
    )


def _mean(errors: NDArray[np.float64], classes: NDArray[np.float64] | None) -> float:
    """Return the mean of the errors; with ``classes``, the mean of the means of the classes that occur."""
    if classes is None:
        return float(errors.mean())
    means = [float(errors[classes == label].mean()) for label in (0, 1) if (classes == label).any()]
    return sum(means) / len(means)


def _merge_changes(changes: list[Change], smallest: float) -> list[Change]:
    """Return the changes without those that another detector has found too; ``smallest`` is the smallest relevant rise.

    Changes in the same direction are the same change if their ranges from ``row`` to ``detected_row`` overlap.
    """
    kept: list[Change] = []
    for change in sorted(changes, key=lambda c: (c.error_after - c.error_before < smallest, c.detected_row)):
        if not any(
            change.is_rise == other.is_rise and change.row <= other.detected_row and other.row <= change.detected_row
            for other in kept
        ):
            kept.append(change)
    return sorted(kept, key=lambda c: c.row)


def _find_changes(stream: NDArray[np.float64], detector: Detector, adwin_clock: int) -> list[tuple[int, int]]:
    """Return for each change its estimated position, and the position at which the detector reported the change."""
    from river import drift

    kinds: Any = drift  # river's detectors have no types
    # Page-Hinkley compares a sum of errors with the threshold; river's default of 50 suits errors larger than 1.
    make = {
        "adwin": lambda: kinds.ADWIN(clock=adwin_clock),
        "ddm": lambda: kinds.binary.DDM(),
        "page_hinkley": lambda: kinds.PageHinkley(threshold=25.0, mode="up"),
    }
    monitor = make[detector]()
    found = []
    last = 0
    for i, value in enumerate(stream.tolist()):
        monitor.update(bool(value) if detector == "ddm" else value)
        if monitor.drift_detected and i > last + 1:
            last = _change_point(stream, last, i + 1)
            found.append((last, i))
    return found


def _change_point(stream: NDArray[np.float64], start: int, end: int) -> int:
    """Return the most likely position of a change in the mean: the position with the largest gap between the means.

    The detectors report only that the mean has changed; ADWIN's window starts up to a bucket before the change.
    This is the classical estimator, which standardises the gap (D. V. Hinkley, Biometrika 57, 1970).
    """
    import numpy as np

    part = stream[start:end]
    before = np.arange(1, len(part))
    sums = np.cumsum(part)
    gap = np.abs(sums[:-1] - before * sums[-1] / len(part))
    return start + 1 + int(np.argmax(gap / np.sqrt(before * (len(part) - before))))


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
