"""Measures a model's error on each labelled row of two windows, with the same kind of error in both.

Called by ``paceline.drift.compare``; ``paceline.drift.concept`` looks for changes in the errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paceline.contract import Confusion
from paceline.drift._classes import Classes, choose_for_numbers, encode_classes, is_truth
from paceline.drift._columns import to_numbers
from paceline.drift._confusion import count_confusion
from paceline.drift._matching import check_match
from paceline.drift._ranking import compute_auc, rank_errors
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

ErrorKind = Literal["auto", "wrong", "absolute", "log_loss", "brier", "auc"]
ERROR_KINDS: tuple[ErrorKind, ...] = ("auto", "wrong", "absolute", "log_loss", "brier", "auc")
WRONG, ABSOLUTE, RANKING = "share of wrong predictions", "mean absolute error", "ranking error"
MEASURES: dict[ErrorKind, str] = {
    "wrong": WRONG,
    "absolute": ABSOLUTE,
    "log_loss": "mean log loss",
    "brier": "Brier score",
    "auc": RANKING,
}
# Kinds of errors for labels of 0 and 1 with probabilities or scores.
TWO_CLASS_KINDS: tuple[ErrorKind, ...] = ("log_loss", "brier", "auc")
# Probabilities are clipped to this distance from 0 and 1, because a certain but wrong one has an infinite log loss.
LOG_LOSS_CLIP = 1e-6
# The largest accepted prediction or label. The trees of ``LossModel`` add up errors in single precision (at most 3e38).
MAX_NUMBER = 1e30


@dataclass(frozen=True)
class PredictionErrors:
    """The model's error on each labelled row of both windows.

    Parameters
    ----------
    measure:
        Name of the mean of the errors; see ``ConceptDrift``.
    reference, current:
        Errors in row order.
    rows:
        Row number of each current error in the current window.
    no_skill, ceiling:
        Scale of the errors; see ``detect_concept_drift``.
    classes:
        Label (0 or 1) of each row of both windows for probabilities and scores, otherwise None.
    auc_reference, auc_current:
        Area under the ROC curve of each window, or None without probabilities or scores, or without rows of both
        classes.
    confusions:
        Counts of labels and predicted classes in the reference and in the current window, or None without classes.
    note:
        Remark for the report, or "".
    """

    measure: str
    reference: NDArray[np.float64]
    current: NDArray[np.float64]
    rows: NDArray[np.int64]
    no_skill: float = 1.0
    ceiling: float = 1.0
    classes: NDArray[np.float64] | None = None
    auc_reference: float | None = None
    auc_current: float | None = None
    confusions: tuple[Confusion | None, Confusion | None] = (None, None)
    note: str = ""


def compute_errors(
    reference: pd.DataFrame | None,
    current: pd.DataFrame,
    prediction: str,
    actual: str,
    *,
    error: ErrorKind = "auto",
    threshold: float = 0.5,
    detector: str = "adwin",
    minimum_samples: int = 100,
) -> PredictionErrors:
    """Return the error of each row with a prediction and a label, with the same kind of error in both windows.

    Parameters
    ----------
    reference, current:
        The windows; the reference may be None or lack the columns.
    prediction, actual:
        Columns of the predictions and labels.
    error:
        Kind of error. With ``"auto"``, the values of both windows together decide: ``"absolute"`` for numbers, unless
        they are ids of classes (see ``are_class_ids``); ``"brier"`` for labels of 0 and 1 with probabilities, except
        with the detector DDM; otherwise ``"wrong"``.

        - ``"wrong"``: 0 for a right and 1 for a wrong prediction.
        - ``"absolute"``: absolute difference.
        - ``"brier"``: squared difference between the probability and the label (0 or 1).
        - ``"log_loss"``: negative logarithm of the probability of the label, clipped to ``LOG_LOSS_CLIP``.
        - ``"auc"``: share of the reference's rows of the other class that are ranked on the wrong side of the row. Its
          mean in the reference is 1 - AUC. Scores may be any numbers.
    threshold:
        Probability from which a prediction counts as class 1, for ``"wrong"``.
    detector:
        Detector that will process the errors.
    minimum_samples:
        Number of rows below which the values of predictions and labels may differ by chance.

    Raises
    ------
    InvalidInputError
        For an error kind that does not suit the values, predictions that no label can equal, probabilities outside 0 to
        1, and numbers beyond ``MAX_NUMBER``.

    Notes
    -----
    G. W. Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78, 1950.
    M. S. Pepe and T. Cai, "The analysis of placement values for evaluating discriminatory measures", Biometrics 60,
    2004 (errors of the kind ``"auc"``).

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"predicted": [0.9, 0.2, 0.6, None], "late": [1, 1, 0, 0]})
    >>> compute_errors(None, frame, "predicted", "late").current.round(2).tolist()
    [0.01, 0.64, 0.36]
    >>> compute_errors(None, frame, "predicted", "late", error="wrong", threshold=0.7).current.tolist()
    [0.0, 1.0, 0.0]
    """
    import numpy as np

    if reference is None or not {prediction, actual} <= set(reference.columns):
        reference = current[:0]
    before, after = ((frame[prediction].notna() & frame[actual].notna()).to_numpy() for frame in (reference, current))
    start, rows = int(before.sum()), np.flatnonzero(after)
    # Each column's values in both windows.
    columns = [(reference[name][before], current[name][after]) for name in (prediction, actual)]

    if not all(are_numbers(series) for column in columns for series in column if len(series)):
        if error not in ("auto", "wrong"):
            raise InvalidInputError(
                "error", error, f"'wrong' or 'auto', because {prediction!r} and {actual!r} are labels"
            )
        given, true = ([value for series in column for value in series.tolist()] for column in columns)
        return compare_classes(encode_classes(given, true, start), rows, prediction, actual, minimum_samples)

    predicted, truth = (
        np.concatenate([read_numbers(old, "reference"), read_numbers(new, "current")]) for old, new in columns
    )
    binary = bool(np.isin(truth, (0, 1)).all())
    scored = binary and not np.isin(predicted, (0, 1)).all()
    note = ""
    if error == "auto" and binary:
        error = "brier" if scored and detector != "ddm" else "wrong"
    elif error == "auto":
        error, note = choose_for_numbers(predicted, truth, prediction, actual, minimum_samples)
    check_values(error, prediction, actual, predicted, binary=binary)
    if error == "wrong" and not binary:
        classes = encode_classes(predicted.tolist(), truth.tolist(), start)
        return compare_classes(classes, rows, prediction, actual, minimum_samples, note)
    values, no_skill, ceiling = compute_row_errors(error, predicted, truth, start, threshold, binary=binary)
    confusions: tuple[Confusion | None, Confusion | None] = (None, None)
    if error not in ("absolute", "auc"):  # scores have no threshold
        decided = (predicted >= threshold).astype(np.int64)
        confusions = count_confusion(Classes(["0", "1"], decided, truth.astype(np.int64), start))
    return PredictionErrors(
        MEASURES[error],
        values[:start],
        values[start:],
        rows,
        no_skill,
        ceiling,
        truth if error in TWO_CLASS_KINDS else None,
        compute_auc(predicted[:start], truth[:start]) if scored else None,
        compute_auc(predicted[start:], truth[start:]) if scored else None,
        confusions,
        note,
    )


def compare_classes(
    classes: Classes,
    rows: NDArray[np.int64],
    prediction: str,
    actual: str,
    minimum_rows: int,
    note: str = "",
    *,
    possible: Iterable[str] = (),
) -> PredictionErrors:
    """Return whether each predicted class is wrong; see ``check_match`` for the parameters and errors."""
    check_match(classes, prediction, actual, minimum_rows, possible=possible)
    is_wrong = (classes.predicted != classes.truth).astype(float)
    start = classes.start
    return PredictionErrors(
        WRONG, is_wrong[:start], is_wrong[start:], rows, confusions=count_confusion(classes), note=note
    )


def are_numbers(series: pd.Series[Any]) -> bool:
    """Return whether all values are numbers or true/false.

    A column with missing or decimal values may have the dtype object.
    """
    import numbers
    from decimal import Decimal

    from pandas.api import types

    if types.is_object_dtype(series.dtype):
        return all(isinstance(value, numbers.Real | Decimal) or is_truth(value) for value in series.infer_objects())
    return types.is_numeric_dtype(series.dtype) or types.is_bool_dtype(series.dtype)


def read_numbers(series: pd.Series[Any], window: str) -> NDArray[np.float64]:
    """Return predictions or labels as floats; raise InvalidInputError for numbers beyond ``MAX_NUMBER``."""
    import numpy as np

    values = to_numbers(series, window)
    huge = values[np.abs(values) > MAX_NUMBER]
    if len(huge):
        accepted = f"numbers between {-MAX_NUMBER:g} and {MAX_NUMBER:g} in the {window} window"
        raise InvalidInputError(str(series.name), float(huge[0]), accepted)
    return values


def check_values(
    error: ErrorKind, prediction: str, actual: str, predicted: NDArray[np.float64], *, binary: bool
) -> None:
    """Raise InvalidInputError if the kind of error does not suit the labels (``binary``: 0 and 1) or predictions."""
    if error in TWO_CLASS_KINDS and not binary:
        raise InvalidInputError(
            "error", error, f"'absolute', 'wrong' or 'auto', because {actual!r} has numbers other than 0 and 1"
        )
    outside = predicted[(predicted < 0) | (predicted > 1)]
    if len(outside) and binary and error not in ("absolute", "auc"):
        raise InvalidInputError(
            prediction,
            float(outside[0]),
            f"a class or a probability between 0 and 1: {actual!r} contains only 0 and 1 "
            "(or error='absolute' or error='auc')",
        )


def compute_row_errors(
    error: ErrorKind,
    predicted: NDArray[np.float64],
    truth: NDArray[np.float64],
    start: int,
    threshold: float,
    *,
    binary: bool,
) -> tuple[NDArray[np.float64], float, float]:
    """Return the errors, and their ``no_skill`` and ``ceiling``. The rows of the reference end before ``start``."""
    import numpy as np

    # Half a row is added to each class, so that the rate is never 0 or 1.
    rate = (float(truth.sum()) + 0.5) / (len(truth) + 1)
    if error == "absolute":
        return np.abs(predicted - truth), 1.0, 1.0  # the detector takes the scale from the errors
    if error == "brier":
        return (predicted - truth) ** 2, rate * (1 - rate), 1.0
    if error == "log_loss":
        clipped = np.clip(predicted, LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP)
        losses = -np.log(np.where(truth == 1, clipped, 1 - clipped))
        entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
        # ADWIN's bound grows with the range of its values. Cap losses at a probability of half the rarer class's rate,
        # so that a wrong prediction still counts more than the prediction of that rate.
        return losses, float(entropy), float(-np.log(min(rate, 1 - rate) / 2))
    if error == "auc":
        positives, negatives = predicted[:start][truth[:start] == 1], predicted[:start][truth[:start] == 0]
        if not len(positives) or not len(negatives):
            raise InvalidInputError(
                "error",
                error,
                "another kind of error, or a reference with predictions and labels of both classes (it has "
                f"{len(positives)} rows with the label 1 and {len(negatives)} with 0)",
            )
        return rank_errors(predicted, truth, positives, negatives), 0.5, 0.5
    is_wrong = (predicted >= threshold) != (truth == 1) if binary else predicted != truth
    return is_wrong.astype(float), 1.0, 1.0
