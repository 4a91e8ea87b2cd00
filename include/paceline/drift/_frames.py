"""Converts the windows to pandas data frames, from any library that has Arrow's stream interface.

Called by ``paceline.drift.compare``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

    from paceline.drift._columns import Column

_ACCEPTED = (
    "a pandas DataFrame, or a data frame with Arrow's stream interface (Polars, pyarrow, DuckDB and others); "
    "convert other objects with their method to_pandas, to_arrow or collect"
)
_HALF_PRECISION = ("float16", "halffloat[pyarrow]")
_INTEGERS = tuple(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))


class ArrowFrame(Protocol):
    """A data frame with Arrow's PyCapsule interface: of Polars, pyarrow, DuckDB and other libraries."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as an Arrow C stream."""


def check_window(field: str, frame: object) -> pd.DataFrame:
    """Check that ``frame`` is a table with unique column names, and return it in pandas with text as names."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        frame = _to_pandas(field, frame)
    if not len(frame.columns):
        raise InvalidInputError(field, "a table without columns", "a table with columns")
    table: pd.DataFrame = frame.set_axis(frame.columns.map(str), axis="columns").reset_index(drop=True)
    duplicated = table.columns[table.columns.duplicated()]
    if len(duplicated):
        raise InvalidInputError(field, duplicated[0], "unique column names")
    # Neither pandas nor Arrow can group values of half precision.
    halves = [name for name in table.columns if str(table[name].dtype) in _HALF_PRECISION]
    table = table.astype(dict.fromkeys(halves, "float32"))
    return table


def _to_pandas(field: str, frame: object) -> pd.DataFrame:
    """Convert a data frame of another library. Integers next to missing values stay integers."""
    import pyarrow as pa  # type: ignore[import-untyped]
    from pandas.api.types import pandas_dtype

    if not (hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "__arrow_c_array__")):
        raise InvalidInputError(field, type(frame).__name__, _ACCEPTED)
    try:
        rows = pa.table(frame)
    except (pa.ArrowException, TypeError) as error:  # one column, or a type that only the other library has
        raise InvalidInputError(field, f"{type(frame).__name__} ({error})", _ACCEPTED) from error
    kinds = {getattr(pa, name.lower())(): pandas_dtype(name) for name in _INTEGERS}
    converted: pd.DataFrame = rows.to_pandas(types_mapper=kinds.get)
    return converted


def with_same_precision(
    columns: Sequence[Column], reference: pd.DataFrame, current: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both windows with single precision in the columns that have it in one of them: 0.1 is 0.1 in both."""
    names = [
        column.name
        for column in columns
        if column.name in current.columns
        and {str(frame[column.name].dtype).lower() for frame in (reference, current)} == {"float32", "float64"}
    ]
    same = dict.fromkeys(names, "float32")
    return reference.astype(same), current.astype(same)


def with_order(series: pd.Series[Any]) -> pd.Series[Any]:
    """Return a categorical column as plain values, which sort as times, numbers or text do.

    >>> import pandas as pd
    >>> with_order(pd.Series(["2030-01-02", "2030-01-01"], dtype="category")).max()
    '2030-01-02'
    """
    import pandas as pd

    if not isinstance(series.dtype, pd.CategoricalDtype):
        return series
    values: pd.Series[Any] = pd.Series(series.to_numpy(), series.index, name=series.name)
    return values
