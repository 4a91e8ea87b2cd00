"""Rejects values that a comparison cannot process, with the column and the value.

Called by ``paceline.drift.compare``, and by the sensors for the column that identifies a window.
"""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

# Text with which tools mark missing values, as in pandas. In a column of text, it is a category like any other.
MISSING_MARKERS = (
    *("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "-nan", "-NaN", "#N/A", "#NA"),
    *("#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
_MAX_BITS = 14_000  # Python does not convert longer integers to text


def check_values(frame: pd.DataFrame, window: str, time: str | None, labels: Iterable[str | None]) -> None:
    """Raise InvalidInputError for the first malformed value of a window.

    Parameters
    ----------
    frame, window:
        The rows, and the name of the window for the message.
    time:
        The column whose values have to be in an order.
    labels:
        The columns of predictions and labels, which have to be single values.
    """
    import pandas as pd

    for name in frame.columns:
        if pd.api.types.is_object_dtype(frame[name].dtype):
            _check_readable(frame[name], window)
    if time is not None and time in frame.columns:
        check_order(frame[time], window)
    for label in labels:
        if label is not None and label in frame.columns and pd.api.types.is_object_dtype(frame[label].dtype):
            for value in frame[label].tolist():
                if pd.api.types.is_list_like(value):
                    raise InvalidInputError(label, value, f"numbers, text or true/false in the {window} window")


def check_order(series: pd.Series[Any], window: str) -> None:
    """Raise InvalidInputError if values of different kinds have no common order, for example times and text."""
    import pandas as pd

    if not pd.api.types.is_object_dtype(series.dtype):
        return
    _check_readable(series, window)
    values = series.dropna()
    kinds = values.map(_order_kind)
    counts = kinds.value_counts()
    if len(counts) == 1:
        try:
            values.sort_values()
            values.map(hash)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                str(series.name), values.iloc[0], f"times, dates, numbers or text in the {window} window"
            ) from error
    elif len(counts):
        accepted = f"only {counts.index[0]}, like most values in the {window} window"
        raise InvalidInputError(str(series.name), values[kinds == counts.index[-1]].iloc[0], accepted)


def describe_markers(reference: pd.Series[Any], current: pd.Series[Any]) -> list[str]:
    """Return a note if text that marks missing values, such as NA, is among the categories of a column.

    >>> import pandas as pd
    >>> describe_markers(pd.Series(["NA", "yes"], name="late"), pd.Series(["no", "yes"], name="late"))
    ['late: 1 value of the reference and 0 of the current window may mean missing values (NA), but are categories.']
    """
    found = [values[values.isin(MISSING_MARKERS)] for values in (reference, current)]
    before, after = map(len, found)
    if not before + after:
        return []
    names = ", ".join(sorted({str(value) for values in found for value in values}))
    return [
        f"{reference.name}: {before} value{'' if before == 1 else 's'} of the reference and {after} of the current "
        f"window may mean missing values ({names}), but are categories."
    ]


def _check_readable(series: pd.Series[Any], window: str) -> None:
    """Raise InvalidInputError for a value with which pandas or Python itself fails."""
    for value in series.tolist():
        if isinstance(value, Decimal) and value.is_snan():
            raise InvalidInputError(str(series.name), value, f"numbers or missing values in the {window} window")
        if isinstance(value, str) and not _is_encodable(value):
            raise InvalidInputError(str(series.name), value, f"text that UTF-8 can represent in the {window} window")
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise InvalidInputError(str(series.name), value, f"numbers of at most 4,300 digits in the {window} window")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _order_kind(value: object) -> str:
    """Return the kind of a value in an ordered column. Values of two kinds have no common order."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | numbers.Real | Decimal):
        return "numbers"
    if isinstance(value, datetime.datetime):
        return "times with a time zone" if value.tzinfo is not None else "times without a time zone"
    for kind, name in (
        (datetime.date, "dates"),
        (datetime.time, "times of day"),
        (datetime.timedelta, "durations"),
    ):
        if isinstance(value, kind):
            return name
    return "times without a time zone" if type(value).__name__ == "datetime64" else type(value).__name__
