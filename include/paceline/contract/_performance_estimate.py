"""The estimated error of predictions without labels, as part of a drift report.

``paceline.drift._estimates`` creates these values; ``DriftReport`` contains them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class EstimatedPeriod:
    """The estimate for consecutive rows of the current window, from time ``start`` to ``end``.

    ``error`` is the estimated error of all ``rows`` with a prediction. ``realised_error`` is the error of the
    ``labelled_rows`` among them, or None if there are fewer than ``minimum_samples``. ``standard_error`` and
    ``unsupported`` as in ``PerformanceEstimate``.
    """

    start: str
    end: str
    rows: int
    error: float
    standard_error: float
    labelled_rows: int = 0
    realised_error: float | None = None
    unsupported: float | None = None


@dataclass(frozen=True)
class PerformanceEstimate:
    """The model's error, estimated from predictions and features without labels.

    A second model learns from the reference which predictions tend to be wrong. The estimate assumes that this relation
    has not changed, so it cannot detect concept drift. Where the assumption cannot or does not hold, the estimate has a
    ``warning`` and a wider interval, and the verdict is ``"withheld"`` if it could be the opposite.

    Parameters
    ----------
    method:
        ``"CBPE"`` (confidence-based performance estimation) for probabilities and scores, ``"DLE"`` (direct loss
        estimation) for numbers and classes.
    verdict:
        Whether the estimated error of the rows without labels has risen. ``"skipped"`` if all rows have labels,
        ``"withheld"`` if the verdict depends on rows that the reference does not support, or on a ``difference`` that
        the rows with labels show.
    reason:
        The verdict in one sentence.
    measure:
        Measure of the error, as in ``ConceptDrift``.
    reference_rows, reference_error:
        Number of rows with a prediction and a label in the reference, and their realised error.
    rows, error:
        Number of current rows with a prediction but no label, and their estimated error.
    standard_error:
        Half the distance from ``error`` within which the error that the labels will show is expected in 95 % of cases.
        It includes any error of unsupported rows, and a significant ``difference``; otherwise, it is the standard
        deviation.
    p_value:
        p-value of the hypothesis that the expected error of these rows is not above that of the reference.
    labelled_rows:
        Number of current rows with a prediction and a label. The estimate ignores these labels.
    labelled_error, labelled_standard_error:
        Estimated error of these rows, and its standard deviation if the assumption holds.
    realised_error:
        Error of these rows according to their labels.
    difference:
        ``realised_error`` less ``labelled_error``.
    periods:
        The estimate by time, if a time column is known.
    unsupported:
        Share of the ``rows`` that are unlike any rows of the reference. None in reports of earlier versions.
    warning:
        Why the estimate is unreliable, or "".
    """

    method: Literal["CBPE", "DLE"]
    verdict: Literal["drift", "no drift", "not enough data", "skipped", "withheld"]
    reason: str
    measure: str
    reference_rows: int = 0
    reference_error: float | None = None
    rows: int = 0
    error: float | None = None
    standard_error: float | None = None
    p_value: float | None = None
    labelled_rows: int = 0
    labelled_error: float | None = None
    labelled_standard_error: float | None = None
    realised_error: float | None = None
    difference: float | None = None
    periods: tuple[EstimatedPeriod, ...] = ()
    unsupported: float | None = None
    warning: str = ""
