"""Reads a window with a SQL query. The database draws the sample of a large window, so that few rows are sent."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

from ._sample import Newest, RowSample, to_identity

if TYPE_CHECKING:
    import pandas as pd
    from airflow.providers.common.sql.hooks.sql import DbApiHook

Parameters = Mapping[str, Any] | Sequence[Any]
# By SQL dialect, the expression for a random number between 0 and 1 for each row, and the quotation mark for names.
# Databases with another dialect send all rows.
DIALECTS = {
    "awsathena": ("random()", '"'),
    "bigquery": ("rand()", "`"),
    "databricks": ("rand()", "`"),
    "duckdb": ("random()", '"'),
    "mysql": ("rand()", "`"),
    "postgresql": ("random()", '"'),
    "redshift": ("random()", '"'),
    "snowflake": ("uniform(0::float, 1::float, random())", '"'),
    "sqlite": ("(random() / 18446744073709551616.0 + 0.5)", '"'),
    "trino": ("random()", '"'),
}
# By SQL dialect, the statements after which all queries of a connection see the same state of the database.
_SNAPSHOTS = {
    "mysql": ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT"),
    "postgresql": ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",),
    "sqlite": ("BEGIN",),
}


class Snapshot(ExitStack):
    """Runs the queries of a check so that they see the same state of the database, if its dialect supports that.

    The connections stay open, each in a transaction, until the ``with`` block ends or ``close`` is called.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hooks: dict[str | None, DbApiHook] = {}
        self._connections: dict[DbApiHook, Any] = {}

    def find_hook(self, field: str, conn_id: str | None) -> DbApiHook:
        """Return the hook of a database connection, the same for the same ``conn_id``."""
        if conn_id not in self._hooks:
            self._hooks[conn_id] = find_hook(field, conn_id)
        return self._hooks[conn_id]

    def run(self, hook: DbApiHook, sql: str, parameters: Parameters | None) -> pd.DataFrame:
        """Return the rows of a query. Without parameters, the driver gets the query unchanged, with each ``%``."""
        import pandas as pd

        bound = dict(parameters) if isinstance(parameters, Mapping) else list(parameters) if parameters else None
        with warnings.catch_warnings():
            # pandas warns about connections other than SQLAlchemy's. With SQLAlchemy, as in PostgresHook.get_df, a
            # query with "%" and parameters in a list would fail.
            warnings.filterwarnings("ignore", message=".*SQLAlchemy.*", category=UserWarning)
            if hook.dialect_name not in _SNAPSHOTS:
                return hook.get_df(sql, parameters=bound, df_type="pandas")
            return pd.read_sql(sql, self._connect(hook), params=bound)

    def _connect(self, hook: DbApiHook) -> Any:
        if hook not in self._connections:
            connection: Any = self.enter_context(closing(hook.get_conn()))
            try:
                with closing(connection.cursor()) as cursor:
                    for statement in _SNAPSHOTS[hook.dialect_name]:
                        cursor.execute(statement)
            except Exception as error:  # a database that only resembles PostgreSQL or MySQL
                connection.rollback()
                hook.log.warning("The windows may show different states of the database, without a snapshot: %s", error)
            self._connections[hook] = connection
        return self._connections[hook]


def read_query(
    field: str,
    sql: str,
    conn_id: str | None,
    parameters: Parameters | None,
    max_rows: int,
    window_column: str | None,
    snapshot: Snapshot,
) -> tuple[pd.DataFrame, int, str]:
    """Return the rows of a query or a random sample of ``max_rows`` rows, and the number of the query's rows.

    The third value is the greatest value of ``window_column``, or "".
    """
    hook = snapshot.find_hook(field, conn_id)
    random, quote = DIALECTS.get(hook.dialect_name, ("", ""))

    def run(selected: str, condition: str = "") -> pd.DataFrame:
        inner = _without_end(sql)
        outer = f"SELECT {selected} FROM (\n{inner}\n) paceline_window {condition}"  # noqa: S608
        return snapshot.run(hook, outer, parameters)

    rows = int(str(run("COUNT(*)").iloc[0, 0])) if random else 0
    newest = Newest(field, window_column)
    if rows <= max_rows:  # run the query as it is, so that the rows keep their order
        frame = snapshot.run(hook, sql, parameters)
        newest.add(frame)
        return frame, len(frame), newest.identity()
    # The number of drawn rows varies. Draw some more, so that there are hardly ever fewer than `max_rows`.
    share = (max_rows + 6.0 * math.sqrt(max_rows)) / rows
    sample = RowSample["pd.DataFrame"](max_rows, lambda parts: parts[0])
    sample.add(run("*", f"WHERE {random} < {share:.12f}"))
    frame = sample.table().reset_index(drop=True)
    newest.add(frame)
    if window_column is None:
        return frame, rows, ""
    if not newest.sorts_as_text:
        accepted = "dates, numbers or ISO 8601 text, because the database finds the greatest value of a large window"
        raise InvalidInputError(window_column, newest.identity(), accepted)
    name = quote + window_column.replace(quote, quote * 2) + quote
    return frame, rows, to_identity(run(f"MAX({name})").iloc[0, 0])


def _without_end(sql: str) -> str:
    """Return a query without the comments, semicolons and blanks at its end.

    >>> _without_end("SELECT '--' FROM t; -- newest rows")
    "SELECT '--' FROM t"
    """
    from sqlparse.lexer import tokenize
    from sqlparse.tokens import Comment, Punctuation, Whitespace

    tokens = list(tokenize(sql))  # type: ignore[no-untyped-call]  # sqlparse.parse rejects queries with long lists
    while tokens and (tokens[-1][0] in Comment or tokens[-1][0] in Whitespace or tokens[-1] == (Punctuation, ";")):
        tokens.pop()
    return "".join(text for _, text in tokens)


def find_hook(field: str, conn_id: str | None) -> DbApiHook:
    """Return the hook of a database connection; raise InvalidInputError if there is none."""
    from airflow.providers.common.sql.hooks.sql import DbApiHook
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

    if not conn_id:
        raise InvalidInputError("conn_id", conn_id, f"the id of a database connection (for the query in {field})")
    try:
        hook = BaseHook.get_hook(conn_id)
    except AirflowNotFoundException as error:
        raise InvalidInputError("conn_id", conn_id, "the id of an Airflow connection that exists") from error
    except AirflowException as error:
        accepted = f"a database connection whose provider is installed ({error})"
        raise InvalidInputError("conn_id", conn_id, accepted) from error
    if not isinstance(hook, DbApiHook):
        raise InvalidInputError("conn_id", conn_id, f"a database connection, not one with {type(hook).__name__}")
    return hook
