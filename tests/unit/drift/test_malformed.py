"""Malformed values in any column give a report, or an error that names the column and the value."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from paceline.airflow.windows._sample import Newest
from paceline.drift import DriftSettings, QualitySettings, compare
from paceline.drift.quality import find_stale_rows
from paceline.errors import InvalidInputError, PacelineError

ROWS = 60
SETTINGS = DriftSettings(minimum_samples=30, quality=QualitySettings(max_age_s=1e9))
NOW = datetime(2030, 2, 1, tzinfo=timezone.utc)
VALUES = [
    *[None, "", "n/a", "12,5", "a\0b", "\ud800", b"ab", True, 2**70, 10**400, 10**5000, 1j, math.inf, math.nan],
    *[Decimal("1.5"), Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("1e400"), Fraction(1, 3)],
    *[pd.NaT, pd.NA, datetime(2030, 1, 1), datetime(2030, 1, 1, tzinfo=timezone.utc), datetime(9999, 12, 31)],
    *[datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=2))), date(2030, 1, 1), time(1, 2), timedelta(1)],
    *[[1, 2], [[1], [2, 3]], [], ["a"], [None, 1.0], (1,), {1}, {"a": 1}, object(), UUID(int=1)],
    *[np.array([1.0, 2.0]), np.array([[1.0], [2.0]]), np.datetime64("2030-01-01"), np.bool_(True)],
    *[pd.Interval(0, 1), pd.Period("2030-01")],
]
NAMES = [f"{type(value).__name__}-{number}" for number, value in enumerate(VALUES)]


def make_window(seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "temp": draw.normal(size=ROWS),
            "text": draw.choice(["a", "b"], ROWS),
            "day": pd.date_range("2030-01-01", periods=ROWS, freq="h"),
            "predicted": draw.random(ROWS),
            "late": draw.integers(0, 2, ROWS),
        }
    )


def replace(frame: pd.DataFrame, column: str, values: list[object]) -> pd.DataFrame:
    """Return the window with ``values`` in the last rows of a column."""
    return frame.assign(**{column: pd.Series([*frame[column][: ROWS - len(values)], *values], dtype=object)})


def run(reference: pd.DataFrame, current: pd.DataFrame) -> None:
    compare(
        reference,
        current,
        columns=["temp", "text"],
        prediction="predicted",
        actual="late",
        time="day",
        settings=SETTINGS,
        now=NOW,
    ).to_dict()


def error_of(reference: pd.DataFrame, current: pd.DataFrame) -> str:
    try:
        run(reference, current)
    except PacelineError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("column", ["temp", "text", "day", "predicted", "late"])
@pytest.mark.parametrize("value", VALUES, ids=NAMES)
def test_malformed_value_gives_a_report_or_an_error_that_names_its_column(column, value):
    reference, current = make_window(1), make_window(2)
    for times in (1, ROWS):
        malformed = [replace(frame, column, [value] * times) for frame in (reference, current)]
        for windows in ((malformed[0], current), (reference, malformed[1])):
            assert error_of(*windows).startswith((f"{column}: got ", "error: got ", "no error"))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (
            "day",
            "n/a",
            "day: got 'n/a', expected only times without a time zone, like most values in the current window",
        ),
        ("day", datetime(2030, 1, 1, tzinfo=timezone.utc), "day: got datetime.datetime"),
        ("day", 12.5, "day: got 12.5, expected only times without a time zone"),
        ("temp", 10**400, "temp: got 1000"),
        ("temp", Decimal("sNaN"), r"temp: got Decimal\('sNaN'\), expected numbers or missing values"),
        ("late", np.array([1.0, 2.0]), r"late: got array\(\[1., 2.\]\), expected numbers, text or true/false"),
        ("predicted", "\ud800", r"predicted: got '\\ud800', expected text that UTF-8 can represent"),
    ],
    ids=["text", "time with a zone", "number", "number beyond float", "signalling NaN", "array", "surrogate"],
)
def test_error_names_the_column_and_the_malformed_value(column, value, message):
    with pytest.raises(InvalidInputError, match=message):
        run(make_window(1), replace(make_window(2), column, [value]))


def test_error_about_an_old_row_names_the_value_that_is_not_a_time():
    frame = make_window(1).assign(day=["2030-01-01T00:00:00Z", "12,5", *["2030-01-01T00:00:00Z"] * (ROWS - 2)])
    with pytest.raises(InvalidInputError, match="day: got '12,5', expected dates or times"):
        find_stale_rows(frame, "day", SETTINGS.quality, NOW)


@pytest.mark.parametrize(
    "parts", [[["2030-01-01", 5]], [["2030-01-01"], [5]], [[{"a": 1}, {"a": 2}]], [[Decimal("sNaN")]]]
)
def test_error_about_a_window_column_names_the_column_and_the_value(parts):
    newest = Newest("current", "batch")
    *earlier, last = (pd.DataFrame({"batch": pd.Series(part, dtype=object)}) for part in parts)
    for part in earlier:
        newest.add(part)
    with pytest.raises(InvalidInputError, match=r"batch: got (5|'2030-01-01'|\{'a': 1\}|Decimal\('sNaN'\)), expected"):
        newest.add(last)


def test_error_about_a_number_that_python_cannot_print_is_an_invalid_input_error():
    assert "temp: got a value of type int, expected a number" in str(InvalidInputError("temp", 10**5000, "a number"))
