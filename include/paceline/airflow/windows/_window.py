"""Reads a window of data with a SQL query through an Airflow connection, or from a Parquet or CSV file.

``DriftCheck`` reads its windows in a worker process or in a thread of the triggerer.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachetools import LRUCache

from paceline.drift import DriftSettings
from paceline.errors import InvalidInputError

from ._files import identify_file, read_file
from ._queries import Parameters, Snapshot, read_query

if TYPE_CHECKING:
    import pandas as pd

_SQL = re.compile(r"(\s|--[^\n]*\n|/\*.*?\*/|\()*(select|with|values|table|from)\b", re.IGNORECASE | re.DOTALL)
_MAX_DESCRIPTION = 300
CHAMPION = "champion"  # instead of a source: the window on which the champion was trained


def is_sql(source: str) -> bool:
    """Return whether ``source`` is a SQL query. Otherwise, it is the path or URL of a file.

    >>> is_sql("SELECT temp FROM weather"), is_sql("s3://lake@bucket/with/batch.parquet")
    (True, False)
    """
    return _SQL.match(source) is not None and any(character.isspace() for character in source.strip())


@dataclass(frozen=True)
class DataWindow:
    """A window of data.

    ``frame`` contains all rows, or a random sample in their order if there are more than ``max_rows``. ``rows`` is
    the number of all rows. ``identity`` distinguishes the window from the next one; see ``read_window``.
    """

    frame: pd.DataFrame
    rows: int
    identity: str = ""


def read_window(
    field: str,
    source: str,
    *,
    conn_id: str | None = None,
    parameters: Parameters | None = None,
    columns: Sequence[str] | None = None,
    max_rows: int = DriftSettings.max_rows,
    window_column: str | None = None,
    optional: Collection[str] = (),
    snapshot: Snapshot | None = None,
) -> DataWindow:
    """Read a window of data.

    Parameters
    ----------
    field:
        Name of the parameter, for error messages.
    source:
        A query, or the path or URL of a ``.parquet``, ``.csv`` or ``.csv.gz`` file; a URL may name its Airflow
        connection (``s3://aws_default@bucket/key.parquet``). The path of a folder of Parquet files ends in
        ``.parquet``, too.
    conn_id:
        Id of the database connection for a query.
    parameters:
        Values for the placeholders of a query, in the style that the database's driver expects.
    columns:
        The columns to read from a file; by default, all.
    max_rows:
        Number of rows above which a random sample of this size is read.
    window_column:
        Column whose greatest value is the window's identity. By default, the identity of a file changes with the file,
        and a query has none.
    optional:
        Those of ``columns`` that the window may lack.
    snapshot:
        The state of the database that a query sees; by default, the current state.

    Raises
    ------
    InvalidInputError
        If the connection or file is missing, the connection is not a database connection, the format is unknown, or
        the window lacks ``window_column``.
    """
    if not isinstance(source, str) or not source.strip():
        raise InvalidInputError(field, source, "a SQL query, or the path of a Parquet or CSV file")
    if is_sql(source):
        with Snapshot() if snapshot is None else nullcontext(snapshot) as state:
            return DataWindow(*read_query(field, source, conn_id, parameters, max_rows, window_column, state))
    identity = identify_file(field, source)
    frame, rows, newest = read_file(field, source, columns, max_rows, window_column, optional)
    return DataWindow(frame, rows, identity if window_column is None else newest)


# The most recent references. A triggerer repeats the checks of several triggers, each with its own reference.
_cache: LRUCache[str, DataWindow] = LRUCache(8)
_cache_lock = threading.Lock()


def cached_window(key: str, read: Callable[[], DataWindow]) -> DataWindow:
    """Return the window with this key, and read it only if it is not among the last eight."""
    with _cache_lock:
        window = _cache.get(key)
    if window is None:
        window = read()
        with _cache_lock:
            _cache[key] = window
    return window


def describe(source: str, parameters: Parameters | None) -> str:
    """Describe a window in one line, for the report."""
    text = " ".join(source.split())
    text = text if len(text) <= _MAX_DESCRIPTION else text[: _MAX_DESCRIPTION - 1] + "…"
    if not parameters:
        return text
    values = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
    return f"{text} with {values}"
