"""Reads a window with a SQL query. The database draws the sample of a large window, so that few rows are sent."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

from ._sample import Newest

if TYPE_CHECKING:
    import pandas as pd
    from airflow.providers.common.sql.hooks.sql import DbApiHook

Parameters = Mapping[str, Any] | Sequence[Any]
# A random number between 0 and 1 for each row, by SQL dialect. Other databases send all rows.
RANDOM = {
    "awsathena": "random()",
    "bigquery": "rand()",
    "databricks": "rand()",
    "duckdb": "random()",
    "mysql": "rand()",
    "postgresql": "random()",
    "redshift": "random()",
    "snowflake": "uniform(0::float, 1::float, random())",
    "sqlite": "(random() / 18446744073709551616.0 + 0.5)",
    "trino": "random()",
}


def read_query(
    field: str,
    sql: str,
    conn_id: str | None,
    parameters: Parameters | None,
    max_rows: int,
    window_column: str | None = None,
) -> tuple[pd.DataFrame, int, str]:
    """Return the rows of a query or a random sample of about ``max_rows`` rows, and the number of the query's rows.

    The third value is the greatest value of ``window_column``, or "".
    """
    hook = find_hook(field, conn_id)

    def run(selected: str, condition: str = "") -> pd.DataFrame:
        inner = sql.strip().rstrip(";")
        return _run(hook, f"SELECT {selected} FROM (\n{inner}\n) paceline_window {condition}", parameters)  # noqa: S608

    random = RANDOM.get(hook.dialect_name)
    frame = _run(hook, sql, parameters) if random is None else run("*", f"LIMIT {max_rows + 1}")
    newest = Newest(field, window_column)
    newest.add(frame)
    if random is None or len(frame) <= max_rows:
        return frame, len(frame), newest.identity()
    last = "NULL" if window_column is None else f"MAX({hook.dialect.escape_word(window_column)})"
    rows, identity = run(f"COUNT(*), {last}").iloc[0]
    frame = run("*", f"WHERE {random} < {max_rows / max(int(rows), 1):.12f}")
    return frame, int(rows), "" if window_column is None else str(identity)


def find_hook(field: str, conn_id: str | None) -> DbApiHook:
    """Return the hook of a database connection; raise InvalidInputError if there is none."""
    from airflow.providers.common.sql.hooks.sql import DbApiHook
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

    if not conn_id:
        raise InvalidInputError("conn_id", conn_id, f"the id of a database connection, as {field} is a SQL query")
    try:
        hook = BaseHook.get_hook(conn_id)
    except AirflowNotFoundException as error:
        raise InvalidInputError("conn_id", conn_id, "the id of an Airflow connection that exists") from error
    except AirflowException as error:
        accepted = f"a database connection whose provider is installed ({error})"
        raise InvalidInputError("conn_id", conn_id, accepted) from error
    if not isinstance(hook, DbApiHook):
        raise InvalidInputError("conn_id", conn_id, f"a database connection, not one for {type(hook).__name__}")
    return hook


def _run(hook: DbApiHook, sql: str, parameters: Parameters | None) -> pd.DataFrame:
    bound = dict(parameters) if isinstance(parameters, Mapping) else list(parameters) if parameters else None
    with warnings.catch_warnings():
        # pandas warns about connections other than SQLAlchemy's. The hook uses the driver's connections on purpose.
        warnings.filterwarnings("ignore", message=".*SQLAlchemy.*", category=UserWarning)
        return hook.get_df(sql, parameters=bound, df_type="pandas")
