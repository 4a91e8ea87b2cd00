"""Determines the kind of a column's values: numbers, text, true/false, times or arrays of numbers.

Called by ``paceline.drift._columns``, and by ``paceline.drift.kept_rows`` for single values.
"""

from __future__ import annotations

import numbers
import re
from typing import TYPE_CHECKING, Any

from paceline.drift._vectors import is_array, is_array_text
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

_FIRST_VALUES = 20
# A column is text if its values have this number of words in the median, and this share of them is distinct.
_LEAST_WORDS, _LEAST_DISTINCT = 3, 0.5
_EXAMINED, _MAX_CHARACTERS = 200, 500
# Some languages write no spaces (Chinese, Japanese, Thai and others): two of their characters count as a word.
_WORD = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]{2}|(?<!\S)(?!\S*(?:\d|://|@))\S*?[^\W\d_]{2}\S*"
)
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
    if types.infer_dtype(values) == "string":
        values = values.drop_duplicates()  # of text, which is much faster
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


def is_text(series: pd.Series[Any]) -> bool:
    """Return whether a column of strings is free text, rather than categories, identifiers or times.

    >>> import pandas as pd
    >>> is_text(pd.Series([f"order {number} has not arrived yet" for number in range(99)]))
    True
    >>> is_text(pd.Series([f"https://shop/order/{number}" for number in range(99)]))
    False
    """
    import pandas as pd

    values = series.dropna()
    if isinstance(series.dtype, pd.CategoricalDtype) or values.nunique() < _LEAST_DISTINCT * len(values):
        return False
    examined = values.iloc[:: max(1, len(values) // _EXAMINED)].map(lambda value: str(value)[:_MAX_CHARACTERS])
    if examined.map(lambda value: len(_WORD.findall(value))).median() < _LEAST_WORDS:
        return False
    # JavaScript, for example, writes the name of the time zone after a date.
    without_zone = examined.str.replace(r"\s*\(.*\)$", "", regex=True)
    return bool(pd.to_datetime(without_zone, errors="coerce", format="mixed", utc=True).isna().mean() > 0.5)
