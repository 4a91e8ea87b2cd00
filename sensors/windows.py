"""Reads a window of data with a SQL query through an Airflow connection, or from a Parquet or CSV file.

``DriftCheck`` reads its windows on a worker or in a thread of the triggerer.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    import pandas as pd

Parameters = Mapping[str, Any] | Sequence[Any]
_SQL = re.compile(r"(\s|--[^\n]*\n|/\*.*?\*/|\()*(select|with|values|table|from)\b", re.IGNORECASE | re.DOTALL)
_MAX_DESCRIPTION = 300


def is_sql(source: str) -> bool:
    """Return whether ``source`` is a SQL query. Otherwise, it is the path or URL of a file.

    >>> is_sql("SELECT temp FROM weather"), is_sql("s3://lake@bucket/with/batch.parquet")
    (True, False)
    """
    return _SQL.match(source) is not None and any(character.isspace() for character in source.strip())


def read_window(
    field: str, source: str, *, conn_id: str | None = None, parameters: Parameters | None = None
) -> pd.DataFrame:
    """Read a window of data into a data frame.

    Parameters
    ----------
    field:
        Name of the parameter, for error messages.
    source:
        A query, or the path or URL of a ``.parquet``, ``.csv`` or ``.csv.gz`` file; a URL may name its Airflow
        connection (``s3://aws_default@bucket/key.parquet``).
    conn_id:
        Id of the database connection for a query.
    parameters:
        Values for the placeholders of a query, in the style that the database's driver expects.

    Raises
    ------
    InvalidInputError
        If the connection or file is missing, the connection is not a database connection, or the format is unknown.
    """
    if not isinstance(source, str) or not source.strip():
        raise InvalidInputError(field, source, "a SQL query, or the path of a Parquet or CSV file")
    return _read_query(field, source, conn_id, parameters) if is_sql(source) else _read_file(field, source)


def describe(source: str, parameters: Parameters | None) -> str:
    """Describe a window in one line, for the report."""
    text = " ".join(source.split())
    text = text if len(text) <= _MAX_DESCRIPTION else text[: _MAX_DESCRIPTION - 1] + "…"
    if not parameters:
        return text
    values = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
    return f"{text} with {values}"


def _read_query(field: str, sql: str, conn_id: str | None, parameters: Parameters | None) -> pd.DataFrame:
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
    bound = dict(parameters) if isinstance(parameters, Mapping) else list(parameters) if parameters else None
    with warnings.catch_warnings():
        # pandas warns about connections other than SQLAlchemy's. The hook uses the driver's connections on purpose.
        warnings.filterwarnings("ignore", message=".*SQLAlchemy.*", category=UserWarning)
        return hook.get_df(sql, parameters=bound, df_type="pandas")


def _read_file(field: str, source: str) -> pd.DataFrame:
    import pandas as pd
    from airflow.sdk import ObjectStoragePath

    name = source.rstrip("/").lower()
    if not name.endswith((".parquet", ".csv", ".csv.gz")):
        raise InvalidInputError(
            field, source, "a query that starts with SELECT or WITH, or a file that ends in .parquet, .csv or .csv.gz"
        )
    path = ObjectStoragePath(source)
    try:
        with path.open("rb") as stream:  # type: ignore[no-untyped-call]
            if name.endswith(".parquet"):
                return pd.read_parquet(stream)
            return pd.read_csv(stream, compression="gzip" if name.endswith(".gz") else None)
    except FileNotFoundError as error:
        raise InvalidInputError(field, source, "a file that exists") from error
    except pd.errors.EmptyDataError as error:
        raise InvalidInputError(field, source, "a file with a header line of column names") from error
