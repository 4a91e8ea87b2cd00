"""Detects concept drift with a streaming detector on a model's errors.

Called by ``paceline.drift.compare`` if predictions and labels are recorded. The detectors come from the package river.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from paceline.drift._columns import to_label, to_numbers
from paceline.drift._report import Change, ConceptDrift
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

Detector = Literal["adwin", "ddm", "page_hinkley"]
DETECTORS: tuple[Detector, ...] = ("adwin", "ddm", "page_hinkley")
ErrorKind = Literal["auto", "wrong", "absolute"]
ERROR_KINDS = ("auto", "wrong", "absolute")
WRONG, ABSOLUTE = "share of wrong predictions", "mean absolute error"
CURVE_POINTS = 120


def compute_errors(
    frame: pd.DataFrame, prediction: str, actual: str, *, error: ErrorKind = "auto", window: str = "current"
) -> tuple[NDArray[np.float64], str, NDArray[np.int64]]:
    """Return the error of each row with a prediction and an actual label, in row order.

    With ``error="auto"``, errors are absolute if the labels are numbers. If they are text, true/false or only 0 and 1,
    a right prediction has the error 0 and a wrong prediction 1; numeric predictions are probabilities (threshold 0.5).

    Returns
    -------
    The errors, their measure, and the row number of each error.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"predicted": [0.9, 0.2, 0.6, None], "late": [1, 1, 1, 0]})
    >>> compute_errors(frame, "predicted", "late")[0].tolist()
    [0.0, 1.0, 0.0]
    """
    import numpy as np
    from pandas.api import types

    labelled = (frame[prediction].notna() & frame[actual].notna()).to_numpy()
    rows = np.flatnonzero(labelled)
    predicted, truth = frame[prediction][labelled], frame[actual][labelled]
    if not len(rows):
        return np.empty(0), ABSOLUTE if error == "absolute" else WRONG, rows
    both_numbers = all(types.is_numeric_dtype(s) or types.is_bool_dtype(s) for s in (predicted, truth))
    binary = both_numbers and bool(truth.isin([0, 1]).all())
    if both_numbers:
        predicted_numbers, truth_numbers = to_numbers(predicted, window), to_numbers(truth, window)
        if error == "absolute" or (error == "auto" and not binary):
            return np.abs(predicted_numbers - truth_numbers), ABSOLUTE, rows
        if binary:
            outside = (predicted_numbers < 0) | (predicted_numbers > 1)
            if outside.any():
                raise InvalidInputError(
                    prediction,
                    float(predicted_numbers[outside][0]),
                    f"a class or a probability between 0 and 1: {actual!r} contains only 0 and 1 (or error='absolute')",
                )
            return ((predicted_numbers >= 0.5) != (truth_numbers == 1)).astype(float), WRONG, rows
    elif error == "absolute":
        raise InvalidInputError("error", error, f"'wrong' or 'auto', because {prediction!r} and {actual!r} are labels")
    pairs = zip(predicted.tolist(), truth.tolist(), strict=True)
    return np.array([float(to_label(p) != to_label(t)) for p, t in pairs]), WRONG, rows


def detect_concept_drift(
    reference: NDArray[np.float64],
    current: NDArray[np.float64],
    *,
    measure: str,
    detector: Detector = "adwin",
    minimum_samples: int = 100,
    error_threshold: float = 0.02,
    labels: NDArray[Any] | None = None,
) -> ConceptDrift:
    """Detect changes of the error in the current rows. The detector processes the reference rows first, as its history.

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
        Smallest relevant rise, relative to the error of predictions that are always wrong (1) or, for absolute errors,
        to the 99th percentile of the earlier errors.
    labels:
        Label of each current row, used for ``Change.at``.

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
    if detector == "ddm" and measure == ABSOLUTE:
        raise InvalidInputError("detector", detector, "adwin or page_hinkley, because the errors are absolute")
    known = {
        "detector": detector,
        "measure": measure,
        "reference_rows": len(reference),
        "current_rows": len(current),
        "error_reference": float(reference.mean()) if len(reference) else None,
        "error_current": float(current.mean()) if len(current) else None,
    }
    if len(current) < minimum_samples:
        reason = f"{len(current)} current rows have a prediction and a label; the minimum is {minimum_samples}."
        return ConceptDrift(verdict="not enough data", reason=reason, **known)  # type: ignore[arg-type]

    stream = np.concatenate([reference, current])
    start = len(reference)
    base = reference if len(reference) >= minimum_samples else current
    scale = float(np.quantile(base, 0.99)) or float(stream.max()) or 1.0 if measure == ABSOLUTE else 1.0
    found = _find_changes(np.minimum(stream / scale, 1.0), detector)
    bounds = [0, *(position for position, _ in found), len(stream)]
    changes = []
    for number, (position, detected) in enumerate(found):
        if detected < start:
            continue  # a change in the reference window
        row = max(0, position - start)
        before, after = stream[bounds[number] : position], stream[position : bounds[number + 2]]
        at = None if labels is None else str(labels[row])
        changes.append(Change(row, detected - start, float(before.mean()), float(after.mean()), at))
    rises = [c for c in changes if c.error_after - c.error_before >= error_threshold * scale]
    if rises:
        first = rises[0]
        where = f"row {first.row}" + (f" ({first.at})" if first.at else "")
        reason = (
            f"The {measure} rose from {first.error_before:.3g} to {first.error_after:.3g} at {where} of the "
            f"current window; {detector} detected it at row {first.detected_row}."
        )
    else:
        reason = f"The {measure} did not rise."
    return ConceptDrift(
        verdict="drift" if rises else "no drift",
        reason=reason,
        changes=tuple(changes),
        curve=_running_error(stream, start),
        **known,  # type: ignore[arg-type]
    )


def _find_changes(stream: NDArray[np.float64], detector: Detector) -> list[tuple[int, int]]:
    """Return for each change its estimated position, and the position at which the detector reported the change."""
    from river import drift

    kinds: Any = drift  # river's detectors have no types
    # Page-Hinkley compares a sum of errors with the threshold; river's default of 50 suits errors larger than 1.
    make = {
        "adwin": lambda: kinds.ADWIN(),
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


def _running_error(stream: NDArray[np.float64], start: int) -> tuple[tuple[int, float], ...]:
    import numpy as np

    width = max(1, min(len(stream) // 20, 500))
    running = np.convolve(stream, np.ones(width) / width, mode="valid")
    step = max(1, -(-len(running) // CURVE_POINTS))
    return tuple((i + width - 1 - start, round(float(running[i]), 5)) for i in range(0, len(running), step))
