"""Reads predictions and labels of any type as numbers or as classes.

Called by ``paceline.drift.prediction_errors`` and ``paceline.drift._model_error``.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from paceline.drift._columns import to_label
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
# The largest share of predictions of ids that no label has.
_LARGEST_SHARE = 0.01


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
        if parse_number(text) is None:
            return value
        value = float(text) if "e" in text.lower() else Decimal(text)
    if isinstance(value, numbers.Integral) or is_truth(value):
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
        and float(np.isin(predicted, known).mean()) >= 1 - _LARGEST_SHARE
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
        return "number" if isinstance(value, numbers.Real | Decimal) or is_truth(value) else "text"
    text = value.strip()
    if _is_missing(text):
        return ""
    if text.lower() in _TRUTH:
        return "truth"
    number = parse_number(text)
    return "text" if number is None else "whole" if number.is_integer() else "decimal"


def is_truth(value: object) -> bool:
    """Return whether a value is true or false; numpy's true/false is not a number."""
    return type(value).__name__ in ("bool", "bool_")


def parse_number(text: str) -> float | None:
    """Return the number that a text without blanks is, or None."""
    return float(text) if _NUMBER.fullmatch(text) else None


def _to_numbers(series: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column without "text" (see ``_find_kinds``) as numbers."""

    def to_number(value: object) -> object:
        if not isinstance(value, str):
            return value
        text = value.strip()
        return None if _is_missing(text) else _TRUTH[text.lower()] if text.lower() in _TRUTH else float(text)

    values = series.dropna().unique().tolist()
    converted: pd.Series[Any] = series.astype(object).map({value: to_number(value) for value in values}).infer_objects()
    return converted


def _is_missing(text: str) -> bool:
    return not text or text in MISSING_MARKERS
