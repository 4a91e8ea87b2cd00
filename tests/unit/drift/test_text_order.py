"""Times that are text are ordered as times, or rejected with the column and the value."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from paceline.airflow.windows._sample import Newest
from paceline.drift import compare
from paceline.drift.text_order import sort_text
from paceline.errors import InvalidInputError


@pytest.mark.parametrize(
    ("values", "newest"),
    [
        (["31.12.2029", "1.1.2030", "15.6.2029"], "1.1.2030"),
        (["12/31/2029", "1/1/2030"], "1/1/2030"),
        (["31/12/2029 23:00", "01/01/2030 00:30"], "01/01/2030 00:30"),
        (["2030-9-1", "2030-10-1"], "2030-10-1"),
        (["2030-01-01T01:00+02:00", "2030-01-01T00:30+00:00"], "2030-01-01T00:30+00:00"),
        (["9", "10"], "10"),
        (["2030-01-02", "2030-01-10"], "2030-01-10"),
        (["01/02/2030", "01/02/2030"], "01/02/2030"),
        (["2030-W09", "2030-W10"], "2030-W10"),
    ],
)
@pytest.mark.parametrize("part_rows", [1, 10])
def test_newest_window_of_text_times_is_the_latest(values: list[str], newest: str, part_rows: int) -> None:
    found = Newest("current", "day")
    for start in range(0, len(values), part_rows):
        found.add(pd.DataFrame({"day": values[start : start + part_rows]}))
    assert found.identity() == newest
    [ordered] = sort_text("day", current=pd.Series([*values, None])) if newest != "01/02/2030" else [pd.Series(values)]
    assert values[int(ordered.dropna().argmax())] == newest


@pytest.mark.parametrize(
    ("values", "value", "accepted"),
    [
        (["03/02/2029", "02/04/2029"], "03/02/2029", "whether the day or the month is first"),
        (["31.12.2029", "unknown", "30.12.2029"], "unknown", "times in ISO 8601"),
        (["2030-01-01", "32.12.2029", "2030-01-02"], "32.12.2029", "times in ISO 8601"),
        (["2030-01-01T00:00Z", "2030-01-01T01:00", "2030-01-01T00:00Z"], "2030-01-01T01:00", "with a time zone"),
        (["1 January 2030", "2 March 2029"], "1 January 2030", "times in ISO 8601"),
        (["batch 9", "batch 10"], "batch 9", "numbers of equal length"),
    ],
)
def test_text_times_without_an_order_are_rejected(values: list[str], value: str, accepted: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^day: got '{value}', expected .*{accepted}"):
        sort_text("day", current=pd.Series(values))
    found = Newest("current", "day")  # one value at a time

    def add_all() -> None:
        for one in values:
            found.add(pd.DataFrame({"day": [one]}))
        found.identity()

    with pytest.raises(InvalidInputError, match=r"^day: got '"):
        add_all()


def test_change_is_located_by_the_times_of_text() -> None:
    draw = np.random.default_rng(0)
    days = pd.date_range("2029-11-01", periods=120)

    def window(wrong_from: int) -> pd.DataFrame:
        rows = [
            (day.strftime("%d.%m.%Y"), draw.normal(), 0, int(draw.random() < (0.9 if number >= wrong_from else 0.1)))
            for number, day in enumerate(days)
            for _ in range(20)
        ]
        return pd.DataFrame(rows, columns=["day", "temp", "predicted", "late"]).sample(frac=1, random_state=1)

    report = compare(window(200), window(90), prediction="predicted", actual="late", time="day")
    assert report.concept is not None
    assert report.concept.verdict == "drift"
    [change] = report.concept.changes
    assert pd.Timestamp("2030-01-15") < pd.Timestamp(str(change.at)) < pd.Timestamp("2030-02-10")
    assert report.current == "current, 2029-11-01 00:00:00 to 2030-02-28 00:00:00"


def test_ambiguous_days_of_one_window_follow_the_other_window() -> None:
    frames = [pd.DataFrame({"temp": np.arange(200.0), "day": [day] * 200}) for day in ("13/02/2029", "01/03/2029")]
    assert "2029-03-01" in compare(*frames, time="day").current


def test_rows_with_equal_index_are_ordered_by_their_times() -> None:
    values = pd.Series(["31.12.2029", None, "1.1.2030"], index=[0, 0, 0])
    [ordered] = sort_text("day", current=values)
    assert ordered.isna().tolist() == [False, True, False]
    assert ordered.max() == pd.Timestamp("2030-01-01")
