"""Queries run on real databases.

SQLite is always tested; PostgreSQL and MariaDB where the server, the Airflow provider and the driver are installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseHook
from tests.databases import database_server

from paceline.airflow.windows import read_window
from paceline.sensors import check as check_module
from paceline.sensors.check import DriftCheck

ROOT = Path(__file__).parents[3]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@dataclass
class Database:
    """A database with an Airflow connection, and its marks for parameters."""

    conn_id: str
    named: str
    in_order: str

    def run(self, *statements: str) -> None:
        with closing(BaseHook.get_hook(self.conn_id).get_conn()) as connection:
            for statement in statements:
                connection.cursor().execute(statement)
            connection.commit()


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Start a database server, and return its Airflow connection."""
    if request.param == "sqlite":
        yield {"conn_type": "sqlite", "host": str(tmp_path_factory.mktemp("sqlite") / "store.db")}
        return
    with database_server(request.param) as connection:
        yield connection


@pytest.fixture
def database(server: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(server))
    marks = (":{}", "?") if server["conn_type"] == "sqlite" else ("%({})s", "%s")
    return Database("store", *marks)


def test_query_of_the_guides_runs(database: Database) -> None:
    columns = {
        "flights": "carrier varchar(9), temp float, wind float, month varchar(9)",
        "customers": "age int, plan varchar(9), minutes float, churned int, day date",
        "scored": "age int, plan varchar(9), minutes float, day date, score float, churned int",
    }
    database.run(*(f"CREATE TABLE {table} ({names})" for table, names in columns.items()))
    text = "\n".join(path.read_text() for path in GUIDES)
    found = re.findall(rf'"(SELECT [^"…]* FROM (?:{"|".join(columns)})\b[^"…]*)"', text)
    assert len(found) >= 5
    for query in found:
        rendered = query.replace("{{ ds[:7] }}", "2013-02").replace("{{ ds }}", "2026-08-01")
        assert read_window("current", rendered, conn_id=database.conn_id).rows == 0


def test_percent_sign_of_a_query_reaches_the_database(database: Database) -> None:
    database.run("CREATE TABLE days (id int, day varchar(10))")
    database.run("INSERT INTO days VALUES (1, '2026-08-01'), (2, '2026-08-02'), (3, '2026-10-01')")

    def read(condition: str, parameters: Any = None) -> list[int]:
        query = f"SELECT id FROM days WHERE {condition} ORDER BY id"
        return read_window("current", query, conn_id=database.conn_id, parameters=parameters).frame["id"].tolist()

    assert read("day LIKE '2026-08-%'") == [1, 2]
    assert read("id % 2 = 1") == [1, 3]
    assert read(f"day LIKE {database.in_order} AND id > {database.in_order}", ["2026-08-%", 1]) == [2]
    assert read(f"day = {database.named.format('day')}", {"day": "2026-08-01"}) == [1]
    # With parameters, the drivers of PostgreSQL and MySQL read "%%" as "%".
    percent = "%" if database.in_order == "?" else "%%"
    assert read(f"id {percent} 2 = {database.in_order}", [0]) == [2]


def test_windows_of_a_check_show_the_same_state_of_the_database(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = " ENGINE=InnoDB" if "mysql" in str(BaseHook.get_hook(database.conn_id).dialect_name) else ""
    database.run(f"CREATE TABLE readings (part int, temp float){engine}")
    database.run(*(f"INSERT INTO readings VALUES ({part}, {temp})" for part in (1, 2) for temp in range(100)))
    if BaseHook.get_hook(database.conn_id).dialect_name == "sqlite":
        database.run("PRAGMA journal_mode=WAL")  # another connection may write while this one reads
    read = check_module.read_window

    def read_and_change(field: str, *args: Any, **options: Any) -> Any:
        window = read(field, *args, **options)
        if field == "current":
            database.run("DELETE FROM readings WHERE temp < 50")
        return window

    monkeypatch.setattr(check_module, "read_window", read_and_change)
    reference, current = (f"SELECT temp FROM readings WHERE part = {part}" for part in (1, 2))
    report = DriftCheck(reference, current, conn_id=database.conn_id).run()
    assert (report.reference_rows, report.current_rows) == (100, 100)
    assert DriftCheck(reference, current, conn_id=database.conn_id).read_current().rows == 50


def test_columns_of_any_type_do_not_end_a_check(database: Database) -> None:
    if BaseHook.get_hook(database.conn_id).dialect_name != "postgresql":
        pytest.skip("only PostgreSQL has these types")
    odd = {
        "uid": "gen_random_uuid()",
        "json": """jsonb_build_object('id', n)""",
        "labels": "ARRAY['a', 'b']",
        "vector": "ARRAY[1.5, n]",
        "content": "'a'::bytea",
        "span": "int4range(1, n)",
        "pause": "n * interval '1 hour'",
        "address": "'127.0.0.1'::inet",
        "number": "n::numeric",
        "infinite": "CASE WHEN n = 7 THEN 'infinity'::float ELSE n END",
    }
    query = f"SELECT {', '.join(f'{value} AS {name}' for name, value in odd.items())} FROM generate_series(1, 500) n"
    report = DriftCheck(query, query, conn_id=database.conn_id).run()
    assert report.verdict == "no drift", report.reason
    assert {feature.name for feature in report.features} == odd.keys()
    assert sum("infinite" in note for note in report.notes) == 2  # one of each window
