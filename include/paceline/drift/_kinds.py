"""Determines the kind of a column's values: numbers, text, true/false, times or arrays of numbers.

Called by ``paceline.drift._columns``, and by ``paceline.drift.kept_rows`` for single values.
"""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from paceline.drift._vectors import is_array, is_array_text
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

_FIRST_VALUES = 20
KIND_TEXT = {
    "numeric": "numbers",
    "boolean": "true/false",
    "categorical": "text",
    "array text": "text of arrays",
    "time": "dates or times",
    "embedding": "arrays of numbers",
}


class OddValueError(InvalidInputError):
    """A column has values of a type that is not compared."""


def column_kind(series: pd.Series[Any], window: str) -> str | None:
    """Return a key of ``KIND_TEXT``; ``None`` if every value is missing."""
    from pandas.api import types

    if series.isna().all():
        return None
    if isinstance(series.dtype, types.CategoricalDtype):
        return "categorical"
    if types.is_bool_dtype(series.dtype):
        return "boolean"
    if types.is_datetime64_any_dtype(series.dtype) or types.is_timedelta64_dtype(series.dtype):
        return "time"
    if types.is_complex_dtype(series.dtype):
        raise OddValueError(str(series.name), series.dropna().iloc[0], "real numbers or categories")
    if types.is_numeric_dtype(series.dtype):
        return "numeric"
    values = series.dropna()
    kinds = values.map(value_kind)
    odd = values[kinds == "other"]
    if len(odd):
        accepted = f"numbers, text, true/false or arrays of numbers in the {window} window"
        raise OddValueError(str(series.name), odd.iloc[0], accepted)
    if kinds.nunique() > 1:
        rarest = kinds.value_counts().index[-1]
        raise InvalidInputError(
            str(series.name),
            values[kinds == rarest].iloc[0],
            f"only {KIND_TEXT[str(kinds.value_counts().index[0])]}, like most values in the {window} window "
            "(or add the column to categorical to compare its values as labels)",
        )
    if kinds.iloc[0] == "categorical" and values.head(_FIRST_VALUES).map(is_array_text).all():
        return "array text"
    return str(kinds.iloc[0])


def value_kind(value: object) -> str:
    """Return a key of ``KIND_TEXT``, or "other" for a value that cannot be compared.

    >>> value_kind("AA"), value_kind(2.5), value_kind({"temp": 2.5})
    ('categorical', 'numeric', 'other')
    """
    import datetime
    from decimal import Decimal

    if isinstance(value, str):
        return "categorical"
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "boolean"
    if isinstance(value, numbers.Real | Decimal):
        return "numeric"
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return "time"
    return "embedding" if is_array(value) else "other"
