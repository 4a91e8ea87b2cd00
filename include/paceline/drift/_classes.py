"""Reads predictions and labels as numbers or classes, and rejects those that cannot be equal to each other.

Called by ``paceline.drift.prediction_errors`` and ``paceline.drift._model_error``.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from paceline.drift._columns import shorten, to_label
from paceline.drift.malformed import MISSING_MARKERS
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

# Zeros in front, as in 007, belong to a code.
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_TRUTH = {"true": 1.0, "false": 0.0}
# The greatest number of different labels that are read as ids of classes if they are whole numbers.
MAX_CLASS_IDS = 20
# The share of rows below which predictions and labels do not match.
_SMALLEST_SHARE = 0.01
_EXAMPLES = 3


@dataclass(frozen=True)
class Classes:
    """The predicted class and the label of each row of both windows, as positions in ``names``.

    The rows of the reference end before ``start``.
    """

    names: list[str]
    predicted: NDArray[np.int64]
    truth: NDArray[np.int64]
    start: int


def to_class(value: object) -> str:
    """Return the name of a class. Equal numbers of any type, or as text, have the same name.

    >>> from decimal import Decimal
    >>> {to_class(value) for value in (1, 1.0, True, Decimal("1.00"), "1", "1.0")}
    {'1'}
    >>> to_class("yes "), to_class("007"), to_class(0.5)
    ('yes ', '007', '0.5')
    """
    if isinstance(value, str):
        text = value.strip()
        if _parse(text) is None:
            return value
        value = float(text) if "e" in text.lower() else Decimal(text)
    if isinstance(value, numbers.Integral) or _is_truth(value):
        return str(int(value))  # type: ignore[call-overload]
    return to_label(float(value) if isinstance(value, numbers.Real) else value)  # numpy's float32 is not a float


def encode_classes(predicted: Sequence[Any], truth: Sequence[Any], start: int) -> Classes:
    """Return the class of each prediction and each label."""
    import numpy as np
    import pandas as pd

    values, found = pd.factorize(np.array([*predicted, *truth], dtype=object))
    merged, names = pd.factorize(np.array([to_class(value) for value in found.tolist()], dtype=object))
    codes = merged[values].astype(np.int64)
    return Classes(names.tolist(), codes[: len(predicted)], codes[len(predicted) :], start)


def read_text(
    frames: Sequence[pd.DataFrame], columns: Sequence[str], *, keep_classes: bool = True
) -> list[pd.DataFrame]:
    """Return the windows with numbers instead of text, if all values of ``columns`` are numbers or text of numbers.

    ``true`` and ``false`` are 1 and 0, and text that marks missing values is missing. If all columns have text of whole
    numbers, they remain text with ``keep_classes``: these are names of classes.
    """
    kinds = [{kind for frame in frames if name in frame for kind in _find_kinds(frame[name])} for name in columns]
    if any("text" in found for found in kinds) or all(found <= {"number"} for found in kinds):
        return [*frames]
    if keep_classes and all(found <= {"whole"} for found in kinds):
        return [*frames]
    return [frame.assign(**{name: _to_numbers(frame[name]) for name in columns if name in frame}) for frame in frames]


def are_class_ids(predicted: NDArray[np.float64], truth: NDArray[np.float64]) -> bool:
    """Return whether numbers are ids of classes: few different whole numbers, and predictions that labels can equal.

    >>> import numpy as np
    >>> labels = np.array([0.0, 3.0, 2.0, 3.0])
    >>> are_class_ids(labels[::-1], labels), are_class_ids(labels + 0.1, labels), are_class_ids(labels + 1, labels)
    (True, False, False)
    """
    import numpy as np

    known = np.unique(truth)
    return (
        0 < len(known) <= MAX_CLASS_IDS
        and bool((known == np.round(known)).all())
        and bool((predicted == np.round(predicted)).all())
        and float(np.isin(predicted, known).mean()) >= 1 - _SMALLEST_SHARE
    )


def choose_for_numbers(
    predicted: NDArray[np.float64], truth: NDArray[np.float64], prediction: str, actual: str, minimum_rows: int
) -> tuple[Literal["wrong", "absolute"], str]:
    """Return the kind of error for numbers other than labels of 0 and 1, and a note if it is a choice."""
    import numpy as np

    if are_class_ids(predicted, truth):
        return "wrong", (
            f"The whole numbers in {prediction} and {actual} are read as classes (error='wrong'). If they are "
            "quantities, set DriftSettings(error='absolute')."
        )
    known = np.unique(truth)
    if not (known == np.round(known)).all():
        return "absolute", ""
    if (predicted == np.round(predicted)).all():
        return "absolute", (
            f"The whole numbers in {prediction} and {actual} are read as quantities (error='absolute'). If they are "
            "classes, set DriftSettings(error='wrong')."
        )
    is_probability = bool(((predicted >= 0) & (predicted <= 1)).all())
    if is_probability and 0 not in known and len(known) > 1 and len(truth) >= minimum_rows:
        raise InvalidInputError(
            actual,
            float(known[0]),
            f"labels of 0 and 1, because {prediction!r} has probabilities between 0 and 1 (or error='absolute', if "
            "both are quantities)",
        )
    return "absolute", ""


def check_match(
    classes: Classes, prediction: str, actual: str, minimum_rows: int, *, possible: Iterable[str] = ()
) -> None:
    """Raise InvalidInputError if predictions and labels have (nearly) no value in common.

    A model may never predict some of the labels. In each window, however, labels that are never predicted and that the
    other window does not have, or predictions that are never a label, are written in another way.

    Parameters
    ----------
    classes:
        All rows with a prediction and a label.
    prediction, actual:
        Names of the columns, for the message.
    minimum_rows:
        Number of rows below which all predictions of a good model may be wrong by chance.
    possible:
        Classes that the model can predict, besides those that it predicts.
    """
    import numpy as np

    positions = {name: number for number, name in enumerate(classes.names)}
    can_predict = np.array([positions[name] for name in possible if name in positions], dtype=np.int64)
    given, truth = classes.predicted, classes.truth
    predicted = np.concatenate([given, can_predict])
    all_rows, before, after = slice(None), slice(None, classes.start), slice(classes.start, None)

    never_true, never_given = ([classes.names[code] for code in codes] for codes in _differences(predicted, truth))
    blanks = {name.strip() for name in never_true} & {name.strip() for name in never_given}
    if blanks:
        shown = [[name for name in names if name.strip() in blanks] for names in (never_true, never_given)]
        raise _mismatch(shown, "the windows", prediction, actual)
    if len(truth) < minimum_rows:
        return
    if max(_share(given, truth), _share(truth, predicted)) < _SMALLEST_SHARE:
        window = "both windows" if 0 < classes.start < len(truth) else "the window"
        raise _mismatch(_examples(classes, all_rows), window, prediction, actual)
    for window, rows, other in (("reference", before, after), ("current", after, before)):
        if len(truth[rows]) < minimum_rows or not len(truth[other]):
            continue
        known_labels = _share(truth[rows], np.concatenate([predicted, truth[other]]))
        if min(known_labels, _share(given[rows], np.concatenate([truth, given[other]]))) < _SMALLEST_SHARE:
            raise _mismatch(_examples(classes, rows), f"the {window} window", prediction, actual)


def _differences(first: NDArray[np.int64], second: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    import numpy as np

    return np.setdiff1d(first, second).tolist(), np.setdiff1d(second, first).tolist()


def _share(values: NDArray[np.int64], known: NDArray[np.int64]) -> float:
    import numpy as np

    return float(np.isin(values, known).mean())


def _examples(classes: Classes, rows: slice) -> list[list[str]]:
    """Return the most frequent predictions and labels, most frequent first."""
    import numpy as np

    counts = [np.bincount(codes[rows], minlength=1) for codes in (classes.predicted, classes.truth)]
    return [[classes.names[code] for code in np.argsort(-one, kind="stable") if one[code]] for one in counts]


def _mismatch(values: list[list[str]], window: str, prediction: str, actual: str) -> InvalidInputError:
    shown = [", ".join(repr(shorten(name)) for name in names[:_EXAMPLES]) for names in values]
    folded = [{name.strip().casefold() for name in names} for names in values]
    hint = " (equal except for case or blanks)" if folded[0] & folded[1] else ""
    return InvalidInputError(
        prediction,
        values[0][0],
        f"values that {actual!r} has too, or probabilities of labels that are 0 and 1: in {window}, {prediction!r} has "
        f"{shown[0]} and {actual!r} has {shown[1]}, which never match{hint}",
    )


def _find_kinds(series: pd.Series[Any]) -> set[str]:
    """Return the kinds of a column's values: "number", text of a "whole" number, "decimal" or "truth", or "text"."""
    from pandas.api import types

    if types.is_numeric_dtype(series.dtype) or types.is_bool_dtype(series.dtype):
        return {"number"} if series.notna().any() else set()
    kinds: set[str] = set()
    for value in series.dropna().unique().tolist():
        kind = _kind(value)
        if kind == "text":
            return {"text"}
        kinds.add(kind)
    return kinds - {""}


def _kind(value: object) -> str:
    if not isinstance(value, str):
        return "number" if isinstance(value, numbers.Real | Decimal) or _is_truth(value) else "text"
    text = value.strip()
    if not text or text in MISSING_MARKERS:
        return ""
    if text.lower() in _TRUTH:
        return "truth"
    number = _parse(text)
    return "text" if number is None else "whole" if number.is_integer() else "decimal"


def _is_truth(value: object) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # numpy's true/false is not a number


def _parse(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _to_numbers(series: pd.Series[Any]) -> pd.Series[Any]:
    def to_number(value: object) -> object:
        if not isinstance(value, str):
            return value
        text = value.strip().lower()
        return _TRUTH.get(text, _parse(text))

    converted: pd.Series[Any] = series.astype(object).map(to_number).infer_objects()
    return converted
