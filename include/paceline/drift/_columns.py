"""Chooses the columns to compare and their kinds; raises ``InvalidInputError`` for columns that cannot be compared.

Called by ``paceline.drift.compare`` before the statistics.
"""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

Kind = Literal["numeric", "categorical"]


@dataclass(frozen=True)
class Column:
    """A column to compare; if ``skipped`` is not empty, the reason not to compare the column."""

    name: str
    kind: Kind
    skipped: str = ""


def check_window(field: str, frame: object) -> pd.DataFrame:
    """Check that ``frame`` is a table with unique column names, and return it."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InvalidInputError(field, type(frame).__name__, "a pandas DataFrame")
    if not len(frame.columns):
        raise InvalidInputError(field, "a table without columns", "a table with columns")
    duplicated = frame.columns[frame.columns.duplicated()]
    if len(duplicated):
        raise InvalidInputError(field, duplicated[0], "unique column names")
    return frame


def check_column(field: str, name: str, frame: pd.DataFrame, window: str) -> None:
    """Raise InvalidInputError if ``name`` is not a column of ``frame``; suggest the closest names."""
    if name in frame.columns:
        return
    available = [str(column) for column in frame.columns]
    lowered = {column.lower(): column for column in available}
    close = [lowered[hit] for hit in difflib.get_close_matches(str(name).lower(), lowered, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    shown = ", ".join(available[:20]) + (", …" if len(available) > 20 else "")
    raise InvalidInputError(field, name, f"a column of the {window} window ({hint}the columns are {shown})")


def choose_columns(
    reference: pd.DataFrame,
    current: pd.DataFrame,
    *,
    columns: Sequence[str] | None,
    categorical: Collection[str],
    excluded: Collection[str],
) -> tuple[list[Column], list[str]]:
    """Return the columns to compare, and notes for the report.

    ``columns=None`` means every column of the reference except ``excluded``.
    """
    notes: list[str] = []
    if columns is not None and (isinstance(columns, str) or not len(columns)):
        raise InvalidInputError("columns", columns, "a list with at least one column name, or None for all")
    if isinstance(categorical, str):
        raise InvalidInputError("categorical", categorical, "a list of column names")
    explicit = columns is not None
    names = list(dict.fromkeys(columns)) if columns is not None else []
    if not explicit:
        names = [name for name in reference.columns if name not in excluded]
        new = [str(name) for name in current.columns if name not in reference.columns]
        new = [name for name in new if name not in excluded]
        if new:
            notes.append(f"The current window has columns that the reference lacks: {', '.join(new)}.")
    for name in names:
        check_column("columns", name, reference, "reference")
        check_column("columns", name, current, "current")
    for name in categorical:
        check_column("categorical", name, reference, "reference")
    return [_classify_column(reference[name], current[name], name in categorical, explicit) for name in names], notes


def _classify_column(reference: pd.Series[Any], current: pd.Series[Any], as_labels: bool, explicit: bool) -> Column:
    name = str(reference.name)
    kind_by_window = {}
    for window, series in (("reference", reference), ("current", current)):
        kind = "categorical" if as_labels and series.notna().any() else _column_kind(series, window)
        if kind is not None:
            kind_by_window[window] = kind
    if not kind_by_window:
        return Column(name, "numeric", "no values in either window")
    kinds = set(kind_by_window.values())
    if "time" in kinds:
        if explicit:
            raise InvalidInputError(name, "dates or times", "numbers or categories")
        return Column(name, "numeric", "dates and times are not compared")
    if kinds == {"numeric", "boolean"}:
        return Column(name, "numeric")
    if "numeric" in kinds and len(kinds) > 1:
        odd = "current" if kind_by_window["reference"] == "numeric" else "reference"
        series = current if odd == "current" else reference
        raise InvalidInputError(
            name,
            series.dropna().iloc[0],
            f"numbers in the {odd} window, as in the other window (or add the column to categorical)",
        )
    return Column(name, "numeric" if kinds == {"numeric"} else "categorical")


def _column_kind(series: pd.Series[Any], window: str) -> str | None:
    """Return ``numeric``, ``boolean``, ``categorical`` or ``time``; ``None`` if every value is missing."""
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
        raise InvalidInputError(str(series.name), series.dropna().iloc[0], "real numbers or categories")
    if types.is_numeric_dtype(series.dtype):
        return "numeric"
    values = series.dropna()
    kinds = values.map(_value_kind)
    odd = values[kinds == "other"]
    if len(odd):
        raise InvalidInputError(str(series.name), odd.iloc[0], f"numbers, text or true/false in the {window} window")
    if kinds.nunique() > 1:
        rarest = kinds.value_counts().index[-1]
        raise InvalidInputError(
            str(series.name),
            values[kinds == rarest].iloc[0],
            f"only {_KIND_TEXT[str(kinds.value_counts().index[0])]}, like most values in the {window} window "
            "(or add the column to categorical to compare its values as labels)",
        )
    return {"text": "categorical", "number": "numeric"}.get(str(kinds.iloc[0]), str(kinds.iloc[0]))


_KIND_TEXT = {"text": "text", "number": "numbers", "boolean": "true/false", "time": "dates or times"}


def _value_kind(value: object) -> str:
    import datetime
    from decimal import Decimal

    if isinstance(value, str):
        return "text"
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "boolean"
    if isinstance(value, numbers.Real | Decimal):
        return "number"
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return "time"
    return "other"


def to_numbers(series: pd.Series[Any], window: str) -> NDArray[np.float64]:
    """Return all values except missing ones as floats; raise InvalidInputError for infinite values."""
    import numpy as np

    values = series.dropna().to_numpy(dtype=float)
    infinite = np.isinf(values)
    if infinite.any():
        raise InvalidInputError(
            str(series.name),
            float(values[infinite][0]),
            f"finite numbers or missing values ({int(infinite.sum())} of {len(series)} rows of the {window} "
            "window are infinite)",
        )
    return values


def count_labels(series: pd.Series[Any]) -> dict[str, int]:
    """Count the rows of each label. 1, 1.0 and "1" are one label, because files and databases use different types.

    >>> import pandas as pd
    >>> count_labels(pd.Series([1, 1.0, "1", True, None]))
    {'1': 3, 'True': 1}
    """
    counts: dict[str, int] = {}
    # pandas' value_counts would not distinguish 1 from True.
    for value in series.dropna().tolist():
        label = to_label(value)
        counts[label] = counts.get(label, 0) + 1
    return counts


def to_label(value: object) -> str:
    """Convert a value to a label. A whole number has no decimal point in its label."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
