"""Reads predictions that have a probability for each class, in one column per class, and measures their errors.

Called by ``paceline.drift.compare`` and, through ``read_prediction``, by ``DriftCheck``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.drift._classes import encode_classes, read_text, to_class
from paceline.drift._confusion import count_confusion
from paceline.drift.prediction_errors import (
    LOG_LOSS_CLIP,
    MEASURES,
    ErrorKind,
    PredictionErrors,
    are_numbers,
    compare_classes,
)
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

# The column of the most probable class, which ``with_predicted_class`` adds.
PREDICTED = "predicted class\0"
# Probabilities may be rounded, so their sum may differ from 1 by this much.
_TOLERANCE = 0.05


def read_prediction(prediction: object) -> str | dict[str, str] | None:
    """Return the column of predictions, or the column of each class's probability, with names of classes as text.

    Raises
    ------
    InvalidInputError
        For another type, fewer than two classes, and a class or column that occurs twice.

    Examples
    --------
    >>> read_prediction({0: "p_cat", 1: "p_dog", 2: "p_bird"})
    {'0': 'p_cat', '1': 'p_dog', '2': 'p_bird'}
    """
    if isinstance(prediction, Mapping):
        columns = {to_class(name): str(column) for name, column in prediction.items()}
        if 2 <= len(prediction) == len(columns) == len(set(columns.values())):
            return columns
    elif prediction is None or not isinstance(prediction, list | tuple | set):
        return None if prediction is None else str(prediction)
    raise InvalidInputError(
        "prediction",
        prediction,
        "the name of a column, or the column of each class's probability: {'cat': 'p_cat', 'dog': 'p_dog'}",
    )


def prediction_columns(prediction: str | Mapping[str, str] | None) -> list[str]:
    """Return the names of the columns of predictions."""
    if isinstance(prediction, Mapping):
        return [*prediction.values()]
    return [] if prediction is None else [prediction]


def with_predicted_class(
    reference: pd.DataFrame, current: pd.DataFrame, columns: Mapping[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both windows with the most probable class in ``PREDICTED``; the reference may lack ``columns``.

    Raises
    ------
    InvalidInputError
        For values other than probabilities, and for rows that lack some of them or in which their sum is not 1.
    """
    import numpy as np

    names = [*columns.values()]
    before, after = read_text([reference, current], names, keep_classes=False)
    classes, frames = np.array([*columns], dtype=object), []
    for window, frame in (("reference", before), ("current", after)):
        lacking = [name for name in names if name not in frame.columns]
        if lacking and len(lacking) < len(names):
            accepted = f"a column of the {window} window, which has the columns of other classes"
            raise InvalidInputError("prediction", lacking[0], accepted)
        if not lacking:
            probabilities = _read_probabilities(frame, names, window)
            predicted: NDArray[Any] = classes[np.argmax(np.nan_to_num(probabilities), axis=1)]
            predicted[np.isnan(probabilities).all(axis=1)] = None
            frame = frame.assign(**{PREDICTED: predicted})
        frames.append(frame)
    return frames[0], frames[1]


def compute_class_errors(
    reference: pd.DataFrame,
    current: pd.DataFrame,
    columns: Mapping[str, str],
    actual: str,
    *,
    error: ErrorKind = "auto",
    detector: str = "adwin",
    minimum_samples: int = 100,
) -> PredictionErrors:
    """Return the error of each row with probabilities and a label. The windows come from ``with_predicted_class``.

    Parameters
    ----------
    columns:
        The column of each class's probability. A label without a column has the probability 0.
    error:
        - ``"brier"`` (``"auto"``, except with the detector DDM): half the sum, over the classes, of the squared
          difference between the probability and the label (1 for the label's class, otherwise 0). With two classes,
          it equals the Brier score of one of them.
        - ``"log_loss"``: negative logarithm of the probability of the label, clipped to ``LOG_LOSS_CLIP``.
        - ``"wrong"``: whether the most probable class is not the label.

    Raises
    ------
    InvalidInputError
        For another kind of error, and for labels that are not among the classes.

    Notes
    -----
    G. W. Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather Review 78, 1950.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"a": [0.7, 0.2], "b": [0.2, 0.2], "c": [0.1, 0.6], "label": ["a", "b"]})
    >>> columns = {"a": "a", "b": "b", "c": "c"}
    >>> _, window = with_predicted_class(frame[:0], frame, columns)
    >>> compute_class_errors(frame[:0], window, columns, "label").current.round(2).tolist()
    [0.07, 0.52]
    """
    import numpy as np
    import pandas as pd

    if error in ("absolute", "auc"):
        accepted = "'brier', 'log_loss', 'wrong' or 'auto', because prediction has a column for each class"
        raise InvalidInputError("error", error, accepted)
    if not {PREDICTED, actual} <= set(reference.columns):
        reference = current[:0]
    before, after = ((frame[PREDICTED].notna() & frame[actual].notna()).to_numpy() for frame in (reference, current))
    frames = [reference[before], current[after]]
    start, rows = len(frames[0]), np.flatnonzero(after)
    labels = [value for frame in frames for value in frame[actual].tolist()]
    classes = encode_classes([value for frame in frames for value in frame[PREDICTED].tolist()], labels, start)
    wrong = compare_classes(classes, rows, "prediction", actual, minimum_samples, possible=columns)
    unknown = [name for name in dict.fromkeys(to_class(label) for label in labels[:start]) if name not in columns]
    unused = [name for name in columns if name not in set(map(to_class, labels))]
    if unknown and unused:  # probably a misspelt class
        accepted = f"classes that are labels in {actual} ({unknown[0]!r} has no column)"
        raise InvalidInputError("prediction", unused[0], accepted)
    if error == "wrong" or (error == "auto" and detector == "ddm"):
        return wrong

    table = np.concatenate([_to_matrix(frame, [*columns.values()]) for frame in frames])
    position = {name: number for number, name in enumerate(columns)}
    places = np.array([position.get(name, -1) for name in classes.names], dtype=np.int64)[classes.truth]
    of_label = np.where(places >= 0, table[np.arange(len(table)), places], 0.0)
    counts = pd.Series(classes.names, dtype=object).take(classes.truth).value_counts()
    # As for two classes, half a row is added to each class.
    smoothed = np.array([counts.get(name, 0) + 0.5 for name in dict.fromkeys([*columns, *counts.index])])
    rates = smoothed / smoothed.sum()
    if error == "log_loss":
        values = -np.log(np.clip(of_label, LOG_LOSS_CLIP, 1 - LOG_LOSS_CLIP))
        no_skill, ceiling = float(-(rates * np.log(rates)).sum()), float(-np.log(rates.min() / 2))
    else:
        error = "brier"
        values = ((table**2).sum(axis=1) - 2 * of_label + 1) / 2
        no_skill, ceiling = float(1 - (rates**2).sum()) / 2, 1.0
    return PredictionErrors(
        MEASURES[error],
        values[:start],
        values[start:],
        rows,
        no_skill,
        ceiling,
        confusions=count_confusion(classes),
    )


def _to_matrix(frame: pd.DataFrame, names: list[str]) -> NDArray[np.float64]:
    import numpy as np

    return np.column_stack([frame[name].to_numpy(dtype=float, na_value=np.nan) for name in names])


def _read_probabilities(frame: pd.DataFrame, names: list[str], window: str) -> NDArray[np.float64]:
    import numpy as np

    for name in names:
        known = frame[name].dropna()
        if not are_numbers(known):
            odd = next((value for value in known.tolist() if isinstance(value, str)), known.iloc[0])
            raise InvalidInputError(name, odd, f"probabilities between 0 and 1 in the {window} window")
    table = _to_matrix(frame, names)
    outside = np.argwhere((table < 0) | (table > 1))
    if len(outside):
        row, column = outside[0].tolist()
        accepted = f"a probability between 0 and 1 in row {row:,} of the {window} window"
        raise InvalidInputError(names[column], float(table[row, column]), accepted)
    missing = np.isnan(table)
    partly = np.argwhere(missing & ~missing.all(axis=1, keepdims=True))
    if len(partly):
        row, column = partly[0].tolist()
        accepted = f"a probability in row {row:,} of the {window} window, as in the columns of the other classes"
        raise InvalidInputError(names[column], None, accepted)
    sums = table.sum(axis=1)
    wrong = np.flatnonzero(np.abs(sums - 1) > _TOLERANCE)
    if len(wrong):
        row = int(wrong[0])
        shown = ", ".join(f"{name} {value:.3g}" for name, value in list(zip(names, table[row], strict=True))[:10])
        raise InvalidInputError(
            "prediction",
            round(float(sums[row]), 4),
            f"columns whose sum is 1 in each row, unlike row {row:,} of the {window} window ({shown}"
            f"{', …' if len(names) > 10 else ''})",
        )
    return table
