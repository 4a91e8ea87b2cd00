"""Windows are read from real databases and files. Errors name the field and what is accepted."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from paceline.errors import InvalidInputError
from paceline.sensors.windows import describe, is_sql, read_window

FRAME = pd.DataFrame({"temp": [1.5, 2.5, None], "carrier": ["AA", "UA", "AA"]})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as database, database:
        FRAME.to_sql("flights", database, index=False)
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    return "store"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("SELECT 1", True),
        ("  -- newest\n select * from t", True),
        ("/* newest */ WITH a AS (SELECT 1) SELECT * FROM a", True),
        ("(SELECT 1)", True),
        ("/data/select.csv", False),
        ("select.parquet", False),
        ("s3://lake@bucket/from here/with.parquet", False),
    ],
)
def test_query_is_distinguished_from_a_path(source: str, expected: bool) -> None:
    assert is_sql(source) is expected


def test_query_runs_on_its_connection_with_bound_parameters(store: str) -> None:
    named, in_order = (f"SELECT * FROM flights WHERE carrier = {mark}" for mark in (":c", "?"))
    rows = read_window("current", named, conn_id=store, parameters={"c": "AA"})
    assert rows["temp"].iloc[0] == 1.5
    assert len(rows) == 2
    assert read_window("current", in_order, conn_id=store, parameters=["UA"])["temp"].tolist() == [2.5]
    # A parameter is a value and cannot change the query.
    rows = read_window("current", named, conn_id=store, parameters={"c": "AA' OR '1'='1"})
    assert (len(rows), list(rows.columns)) == (0, ["temp", "carrier"])


@pytest.mark.parametrize("name", ["batch.csv", "batch.csv.gz", "batch.parquet"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_files_are_read_by_path_and_by_url(tmp_path: Path, name: str, scheme: str) -> None:
    path = tmp_path / name
    if name.endswith("parquet"):
        FRAME.to_parquet(path)
    else:
        FRAME.to_csv(path, index=False)
    pd.testing.assert_frame_equal(read_window("reference", f"{scheme}{path}"), FRAME)


@pytest.mark.parametrize(
    ("source", "conn_id", "message"),
    [
        ("SELECT 1", None, "conn_id: got None, expected the id of a database connection, as current is a SQL query"),
        ("SELECT 1", "nowhere", "conn_id: got 'nowhere', expected the id of an Airflow connection that exists"),
        ("SELECT 1", "files", "conn_id: got 'files', expected a database connection, not one for FSHook"),
        ("SELECT 1", "odd", "conn_id: got 'odd', expected a database connection whose provider is installed"),
        ("batch.json", None, "current: got 'batch.json', expected a query that starts with SELECT or WITH, or a file"),
        ("/no/such.csv", None, "current: got '/no/such.csv', expected a file that exists"),
        ("/no/such.parquet", None, "current: got '/no/such.parquet', expected a file that exists"),
        ("", None, "current: got '', expected a SQL query, or the path"),
    ],
)
def test_error_for_an_unreadable_window_names_the_field(
    monkeypatch: pytest.MonkeyPatch, source: str, conn_id: str | None, message: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FILES", json.dumps({"conn_type": "fs"}))
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": "unheard-of"}))
    with pytest.raises(InvalidInputError) as caught:
        read_window("current", source, conn_id=conn_id)
    assert str(caught.value).startswith(message)


def test_file_without_a_header_line_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.touch()
    with pytest.raises(InvalidInputError, match="expected a file with a header line of column names"):
        read_window("current", str(path))


def test_window_is_described_on_one_line() -> None:
    assert describe("SELECT *\n  FROM flights", {"month": 2}) == "SELECT * FROM flights with {'month': 2}"
    assert len(describe("SELECT " + "x, " * 1000, None)) <= 300
