"""Makes the rows of a window storable, so that a later check can compare a new window with them.

Called by ``paceline.sensors.reports``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from paceline.drift._columns import to_label
from paceline.drift._kinds import value_kind

if TYPE_CHECKING:
    import pandas as pd


def to_storable(frame: pd.DataFrame, categorical: Collection[str] = ()) -> pd.DataFrame:
    """Return a window as a data frame that Parquet can store.

    Columns whose values have several types, or a type that is not compared (JSON, bytes), become text: a Parquet file
    cannot store every such column, and the text of a value is the label by which it is compared. If values of a column
    are not compared, the column becomes bytes, which are not compared either, unless it is ``categorical``.

    >>> import pandas as pd
    >>> to_storable(pd.DataFrame({"kind": pd.Series(["A", 1, None], dtype=object)}))["kind"].dropna().tolist()
    ['A', '1']
    """
    storable: pd.DataFrame = frame.copy(deep=False)
    for name, series in frame.items():
        kinds = set(series.dropna().map(value_kind)) if series.dtype == object else set()
        if "other" in kinds and name not in categorical:
            storable[name] = series.map(lambda value: to_label(value).encode(), na_action="ignore")
        elif len(kinds) > 1 or "other" in kinds:
            storable[name] = series.map(to_label, na_action="ignore")
    return storable
