"""``RowSample``: a uniform random sample, in order, of the rows of a table that arrives in parts.

With ``Newest``, the greatest value of a column, ``paceline.airflow.windows`` reads files of any size in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from paceline.drift.malformed import check_order
from paceline.drift.text_order import TextOrder
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

Table = TypeVar("Table", bound=Any)


class RowSample(Generic[Table]):
    """All rows of a table up to ``max_rows`` rows, else a uniform random sample of ``max_rows`` rows in their order.

    Every row gets a random key, and the rows with the smallest keys are kept. The keys have a fixed seed, so that equal
    tables have equal samples.

    Parameters
    ----------
    max_rows:
        Size of the sample in rows, at least 1.
    concat:
        Function that joins parts: ``pandas.concat`` or ``pyarrow.concat_tables``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> sample = RowSample(3, pa.concat_tables)
    >>> for start in range(0, 1000, 100):
    ...     sample.add(pa.table({"row": range(start, start + 100)}))
    >>> sample.rows, sample.table().num_rows
    (1000, 3)
    >>> rows = sample.table()["row"].to_pylist()
    >>> rows == sorted(rows)
    True
    """

    def __init__(self, max_rows: int, concat: Callable[[list[Table]], Table]) -> None:
        import numpy as np

        self.rows = 0  # rows of the whole table
        self._max_rows = max_rows
        self._concat = concat
        self._random = np.random.default_rng(0)
        self._parts: list[Table] = []
        self._keys: list[NDArray[np.float64]] = []
        self._limit = 1.0  # rows with greater keys are not in the sample

    def limit(self, max_rows: int) -> None:
        """Reduce the size of the sample to ``max_rows``, if it is greater."""
        self._max_rows = min(self._max_rows, max_rows)

    def add(self, part: Table) -> None:
        """Add the next rows."""
        import numpy as np

        self.rows += len(part)
        keys = self._random.random(len(part))
        if self._limit < 1.0:
            chosen = np.flatnonzero(keys < self._limit)
            part, keys = part.take(chosen), keys[chosen]
        self._parts.append(part)
        self._keys.append(keys)
        if sum(map(len, self._keys)) > 2 * self._max_rows:
            self._shrink()

    def table(self) -> Table:
        """Return the sample; ``add`` must have been called."""
        if sum(map(len, self._keys)) > self._max_rows:
            self._shrink()
        return self._concat(self._parts)

    def _shrink(self) -> None:
        import numpy as np

        keys = np.concatenate(self._keys)
        self._limit = float(np.partition(keys, self._max_rows)[self._max_rows])
        chosen = np.flatnonzero(keys < self._limit)
        self._parts = [self._concat(self._parts).take(chosen)]
        self._keys = [keys[chosen]]


class Newest:
    """The greatest value of a column of a table that arrives in parts; it identifies a window.

    >>> import pandas as pd
    >>> newest = Newest("current", "day")
    >>> newest.add(pd.DataFrame({"day": ["2030-01-02", "2030-01-01"]}))
    >>> newest.add(pd.DataFrame({"day": [None, "2030-01-01"]}))
    >>> newest.identity()
    '2030-01-02'
    """

    def __init__(self, field: str, column: str | None) -> None:
        self._field = field
        self.column = column
        self._value: Any = None
        self._text = TextOrder(str(column), field)

    @property
    def sorts_as_text(self) -> bool:
        """Whether databases find the same greatest value."""
        return self._text.sorts_as_text

    def add(self, part: pd.DataFrame) -> None:
        """Add the next rows. Raise InvalidInputError if they lack the column."""
        import pandas as pd

        if self.column is None:
            return
        if self.column not in part.columns:
            names = ", ".join(map(str, part.columns[:20]))
            accepted = f"a column of the {self._field} window (the columns are {names})"
            raise InvalidInputError("window_column", self.column, accepted)
        check_order(part[self.column], self._field)
        values = part[self.column].dropna()
        if values.dtype == "category":  # categories have no order
            values = values.astype(values.cat.categories.dtype)
        if len(values) and pd.api.types.is_string_dtype(values):
            self._text.add(values)
            values = values[:0]
        newest = values.max() if len(values) else None
        try:
            if newest is not None and (self._value is None or newest > self._value):
                self._value = newest
        except TypeError as error:
            accepted = f"values like {self._value!r}, an earlier value of the {self._field} window"
            raise InvalidInputError(self.column, newest, accepted) from error
        if self._value is not None and (text := self._text.greatest()) is not None:
            accepted = f"values like {self._value!r}, another value of the {self._field} window"
            raise InvalidInputError(self.column, text, accepted)

    def reset(self) -> None:
        """Forget all rows."""
        self._value = None
        self._text = TextOrder(str(self.column), self._field)

    def identity(self) -> str:
        """Return the greatest value as text, or "" without a column or values."""
        text = self._text.greatest()
        return to_identity(self._value) if text is None else text


def to_identity(value: Any) -> str:
    """Return a value as text, regardless of the type with which a file or database returns it.

    >>> to_identity(5.0), to_identity(5), to_identity(None)
    ('5', '5', '')
    """
    if value is None or value != value:  # NaN differs from itself
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
