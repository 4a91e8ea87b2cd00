"""Data quality problems are found by comparison with the reference and distinguished from drift."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.drift import DriftReport, DriftSettings, QualityProblem, QualitySettings, compare, to_html
from paceline.drift._categories import align, new_category_test
from paceline.drift.quality import MAX_PROBLEMS, outside_p_value
from paceline.errors import InvalidInputError

NOW = datetime(2030, 1, 10, tzinfo=timezone.utc)


def window(seed: int = 0, n: int = 500, **columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "temp": rng.normal(10, 5, n),
            "delay": rng.exponential(10, n).round(),
            "hour": rng.integers(0, 24, n),
            "carrier": rng.choice([f"C{number}" for number in range(200)], n, p=zipf(200)),
            "gust": np.where(rng.random(n) < 0.3, np.nan, rng.normal(size=n)),
        }
    )
    return frame.assign(**columns)


def zipf(labels: int) -> np.ndarray:
    """Return the shares of labels of which many are rare."""
    shares = 1.0 / np.arange(1, labels + 1)
    return shares / shares.sum()


def check(current: pd.DataFrame, reference: pd.DataFrame | None = None, **quality: Any) -> DriftReport:
    settings = DriftSettings(quality=QualitySettings(**quality))
    return compare(window(0) if reference is None else reference, current, settings=settings)


def kinds(report: DriftReport) -> list[tuple[str, str]]:
    return [(problem.kind, problem.column) for problem in report.quality]


# --- clean data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(500, 500), (2000, 300), (300, 2000)])
def test_clean_windows_have_problems_no_more_often_than_the_nominal_rate(before: int, after: int) -> None:
    rounds = 60
    reports = [compare(window(seed, before), window(1000 + seed, after)) for seed in range(rounds)]
    assert sum(bool(report.quality) for report in reports) <= 3  # the nominal rate is 1 %
    assert not any(report.verdict == "bad data" for report in reports)


def test_probability_of_rows_outside_the_range_is_exact() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(20_000, 30)), rng.normal(size=(20_000, 50))
    low, high = before.min(axis=1, keepdims=True), before.max(axis=1, keepdims=True)
    outside = ((after < low) | (after > high)).sum(axis=1)
    for count in (1, 4, 8, 12):
        assert outside_p_value(30, 50, count) == pytest.approx((outside >= count).mean(), abs=0.01)


def test_chance_of_a_new_category_is_at_most_its_p_value() -> None:
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(500):
        before, after = map(count, rng.choice(60, (2, 100), p=zipf(60)))
        p_values.append(new_category_test(*align(before, after))[0])
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(p_values) <= level) <= level


def count(rows: np.ndarray) -> dict[str, int]:
    labels, counts = np.unique(rows, return_counts=True)
    return {str(label): int(number) for label, number in zip(labels, counts, strict=True)}


# --- broken columns --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "problem"),
    [
        (
            window(1).rename(columns={"temp": "temp_c"}),
            ("missing column", "temp", "the current window lacks the column (did you mean 'temp_c'?)"),
        ),
        (
            window(1, temp="12.5"),
            (
                "changed type",
                "temp",
                "numbers became text, for example '12.5' (or add the column to categorical, if its values are labels)",
            ),
        ),
        (
            window(1, carrier=7),
            (
                "changed type",
                "carrier",
                "text became numbers, for example 7 (or add the column to categorical, if its values are labels)",
            ),
        ),
        (
            window(1, temp=pd.Series([1.0] * 498 + ["n/a", "-"], dtype=object)),
            (
                "changed type",
                "temp",
                "the current window contains 'n/a', expected only numbers, like most values in the current window "
                "(or add the column to categorical to compare its values as labels)",
            ),
        ),
        (window(1, temp=np.nan), ("no values", "temp", "the share of missing values rose from 0.0% to 100.0%")),
        (window(1, carrier=None), ("no values", "carrier", "the share of missing values rose from 0.0% to 100.0%")),
        (window(1, gust=np.nan), ("no values", "gust", "the share of missing values rose from 34.6% to 100.0%")),
    ],
)
def test_broken_column_is_bad_data_and_not_drift(current: pd.DataFrame, problem: tuple[str, str, str]) -> None:
    report = compare(window(0), current)
    assert (report.verdict, report.needs_training, report.drifted_features) == ("bad data", False, [])
    found = report.quality[0]
    assert (found.kind, found.column, found.reason, found.severe) == (*problem, True)
    assert report.reason == f"Bad data: {found.column}: {found.reason}."
    [feature] = [one for one in report.features if one.name == found.column]
    assert feature.verdict == "skipped"


def test_drift_of_the_other_columns_of_broken_data_is_reported_but_is_not_the_verdict() -> None:
    current = window(1, carrier=None)
    current["temp"] += 5
    report = compare(window(0), current)
    assert (report.verdict, report.drifted_features) == ("bad data", ["temp"])


def test_column_that_has_no_values_by_chance_is_not_a_problem() -> None:
    rng = np.random.default_rng(0)
    rare = np.where(rng.random(500) < 0.995, np.nan, 1.0)
    assert kinds(compare(window(0, rare=rare), window(1, rare=np.nan))) == []


def test_broken_columns_are_found_in_few_rows_too() -> None:
    report = compare(window(0), window(1, n=5).drop(columns="temp"))
    assert (report.verdict, kinds(report)) == ("bad data", [("missing column", "temp")])
    assert compare(window(0), window(1, n=5)).verdict == "not enough data"


def test_named_column_that_the_current_window_lacks_is_a_problem() -> None:
    report = compare(window(0), window(1).drop(columns="temp"), columns=["temp", "hour"])
    assert kinds(report) == [("missing column", "temp")]


def test_category_labels_of_another_type_are_not_a_problem() -> None:
    before, after = window(0), window(1)
    after["hour"] = after["hour"].astype(str)
    assert compare(before, after, categorical=["hour"]).quality == ()


# --- values ----------------------------------------------------------------------------------------------------


def test_new_column_is_reported_but_does_not_prevent_training() -> None:
    report = compare(window(0), window(1, sensor=1.0))
    assert (report.verdict, report.notes) == ("no drift", ())
    assert report.quality == (QualityProblem("new column", "sensor", "the reference lacks the column", False),)
    assert compare(window(0), window(1, sensor=1.0), columns=["temp"]).quality == ()


def test_rise_in_missing_values_is_reported_alongside_drift_and_a_fall_is_not() -> None:
    gaps = window(1)
    gaps.loc[:149, "temp"] = np.nan
    report = compare(window(0), gaps)
    assert (report.verdict, report.drifted_features) == ("drift", ["temp"])
    [problem] = report.quality
    assert (problem.kind, problem.severe) == ("missing values", False)
    assert problem.reason == "the share of missing values rose from 0.0% to 30.0%"
    assert compare(gaps, window(0)).quality == ()


def test_values_outside_the_range_of_the_reference_are_a_problem() -> None:
    current = window(2)
    current.loc[:19, "temp"] = -999.0
    report = compare(window(0), current)
    assert (report.verdict, kinds(report)) == ("no drift", [("out of range", "temp")])
    assert "4.0% of the values are outside the reference's range: they range from -999" in report.quality[0].reason
    assert check(current, range_threshold=0.05).quality == ()


def test_new_categories_are_named_in_a_bounded_list() -> None:
    current = window(1)
    current.loc[:39, "carrier"] = "typo"
    current.loc[40:60, "carrier"] = [f"T{number}" for number in range(21)]
    report = compare(window(0), current)
    assert ("new categories", "carrier") in kinds(report)
    [reason] = [problem.reason for problem in report.quality]
    assert "have new categories: typo, " in reason
    assert " more" in reason
    assert len(reason) < 300


def test_repeated_rows_are_a_problem() -> None:
    rows = window(1)
    current = pd.concat([rows[:400], rows[:100]], ignore_index=True)
    report = compare(window(0), current)
    assert (report.verdict, kinds(report)) == ("no drift", [("duplicated rows", "")])
    assert report.quality[0].reason == "the share of duplicated rows rose from 0.0% to 20.0%"
    more = pd.concat([window(1, 3000), window(1, 3000)], ignore_index=True)
    assert compare(window(0, 2000), more).quality[0].reason == (
        "the share of duplicated rows rose from 0.0% to 50.0% (estimated for 2,000 rows of each window)"
    )


def test_missing_labels_do_not_make_rows_duplicates() -> None:
    def coarse(seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame({"carrier": rng.choice(list("abcde"), 600), "guess": rng.random(600).round(1)})
        return frame.assign(delay=rng.normal(size=600))

    for current in (coarse(1).drop(columns="delay"), coarse(1).assign(delay=None), coarse(1).assign(guess=0.5)):
        report = compare(coarse(0), current, prediction="guess", actual="delay")
        assert kinds(report) == []


def test_duplicates_in_columns_with_few_values_are_not_a_problem_in_windows_of_any_size() -> None:
    def few(seed: int, n: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        return pd.DataFrame({"hour": rng.integers(0, 24, n), "day": rng.integers(0, 366, n)})

    assert kinds(compare(few(0, 500), few(1, 20_000))) == []
    assert kinds(compare(few(0, 20_000), few(1, 500))) == []
    drifted = [kind for kind, _ in kinds(compare(few(0, 500), few(1, 20_000) + 1_000))]
    assert set(drifted) == {"out of range"}


def copied(seed: int, rows: int) -> pd.DataFrame:
    """Return rows that all occur twice, as orders that are logged twice."""
    frame = window(seed, rows // 2)
    return pd.concat([frame, frame], ignore_index=True)


def test_copies_of_rows_in_both_windows_are_not_a_problem() -> None:
    reference = copied(0, 10_000)
    for rows in (1_000, 10_000, 20_000):
        assert kinds(compare(reference, copied(1, rows))) == []
    sample = reference.sample(2_000, random_state=0)
    assert kinds(compare(sample, copied(1, 1_000), reference_rows=10_000)) == []


def test_new_copies_in_a_larger_or_sampled_current_window_are_a_problem() -> None:
    current = copied(1, 20_000)
    sample = current.sample(1_000, random_state=0)
    for report in (compare(window(0, 1_000), current), compare(window(0, 1_000), sample, current_rows=20_000)):
        assert kinds(report) == [("duplicated rows", "")]
        assert float(report.quality[0].reason.split("rose from 0.0% to ")[1].split("%")[0]) == pytest.approx(50, abs=15)


def test_new_copies_of_rows_of_a_season_are_a_problem() -> None:
    """The reference has four weeks, of whose rows 8 % are copies, and the current window one Monday."""
    days = pd.Timestamp("2029-01-01") + pd.to_timedelta(np.arange(5_600) // 200, unit="D")
    reference = window(0, 5_600, day=days)
    reference = pd.concat([reference, reference.sample(487, random_state=0)], ignore_index=True)
    rows = window(1, 300, day=pd.Timestamp("2029-01-29"))
    current = pd.concat([rows, rows.sample(180, random_state=0)], ignore_index=True)
    report = compare(reference, current, time="day", season="weekday")
    assert ("duplicated rows", "") in kinds(report)
    assert "to 37.5%" in report.quality[0].reason


def test_new_copies_of_rows_with_few_values_are_a_problem() -> None:
    """In the larger reference, half of the rows are equal by chance."""

    def few(seed: int, n: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        return pd.DataFrame({"hour": rng.integers(0, 24, n), "day": rng.integers(0, 366, n)})

    current = pd.concat([few(1, 250), few(1, 250)], ignore_index=True)
    for rows in (current, current + 1_000):
        for reference_rows in (10_000, 20_000):
            assert ("duplicated rows", "") in kinds(compare(few(0, 10_000), rows, reference_rows=reference_rows))


# --- age -------------------------------------------------------------------------------------------------------

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    "times",
    [
        pd.date_range("2030-01-01", periods=500, freq="10min"),
        pd.date_range("2030-01-01", periods=500, freq="10min", tz="Europe/Berlin"),
        [f"{time.isoformat()}" for time in pd.date_range("2030-01-01", periods=500, freq="10min")],
        [(NOW - (7 + number) * DAY).date() for number in range(500)],
    ],
)
def test_old_rows_are_bad_data(times: Any) -> None:
    def verdict(max_age: timedelta) -> str:
        settings = DriftSettings(quality=QualitySettings(max_age_s=max_age.total_seconds()))
        frame = window(1, day=times)
        return compare(window(0), frame, time="day", settings=settings, now=NOW).verdict

    assert verdict(5 * DAY) == "bad data"
    assert verdict(8 * DAY) == "no drift"


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        (None, "no row has a time, so the age of the data is unknown"),
        (pd.NaT, "no row has a time, so the age of the data is unknown"),
        ("2031-01-01", "all times are later than now, 2030-01-10 00:00 UTC"),
        (["2031-01-01"] + ["2030-01-03"] * 499, "the newest value is from 2030-01-03 00:00 UTC, 7 days"),
    ],
)
def test_unknown_age_and_times_later_than_now_are_bad_data(times: Any, reason: str) -> None:
    settings = DriftSettings(quality=QualitySettings(max_age_s=5 * 86_400))
    report = compare(window(0), window(1, day=times), time="day", settings=settings, now=NOW)
    assert report.verdict == "bad data"
    assert report.quality[0].reason.startswith(reason)
    assert compare(window(0), window(1, n=0, day=None), time="day", settings=settings, now=NOW).quality == ()


def test_age_without_a_time_column_or_times_is_rejected() -> None:
    settings = DriftSettings(quality=QualitySettings(max_age_s=60))
    with pytest.raises(InvalidInputError, match=r"^time: got None, expected a column with dates or times"):
        compare(window(0), window(1), settings=settings)
    for value in (5, "yesterday"):
        with pytest.raises(InvalidInputError, match=f"^day: got {value!r}, expected dates or times"):
            compare(window(0), window(1, day=value), time="day", settings=settings)


# --- settings and report ---------------------------------------------------------------------------------------


def test_kinds_of_problem_can_be_ignored_or_made_severe() -> None:
    lacking = window(1).drop(columns="temp")
    assert check(lacking, ignored=["missing column"]).verdict == "no drift"
    report = check(lacking, severe=[])
    assert (report.verdict, kinds(report)) == ("no drift", [("missing column", "temp")])
    repeated = pd.concat([window(1)[:400], window(1)[:100]], ignore_index=True)
    assert check(repeated, severe=["duplicated rows"]).verdict == "bad data"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"severe": ["typo"]}, r"severe: got \['typo'\], expected a list with any of 'missing column'"),
        ({"ignored": "stale"}, "ignored: got 'stale', expected a list"),
        ({"category_threshold": 0}, "category_threshold: got 0, expected a number between 0 and 1"),
        ({"duplicate_threshold": True}, "duplicate_threshold: got True, expected a number"),
        ({"max_age_s": 0}, "max_age_s: got 0, expected a number of seconds greater than 0, or None"),
        ({"max_age_s": "1d"}, "max_age_s: got '1d', expected a number of seconds"),
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        QualitySettings(**options)
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        DriftSettings(quality=options)  # type: ignore[arg-type]


def test_report_with_problems_is_bounded_and_round_trips() -> None:
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 80)), columns=[f"<x{i}>" for i in range(80)])
    report = compare(wide, wide[["<x0>"]])
    assert len(report.quality) == MAX_PROBLEMS
    assert report.notes == ("29 more data quality problems are not listed.",)
    assert report.reason.endswith("; <x5>: the current window lacks the column and 74 more.")
    assert DriftReport.from_dict(report.to_dict()) == report
    assert len(report.summary().quality) == 20
    page = to_html(report)
    assert "The current data is broken" in page
    assert "&lt;x5&gt;" in page
    assert "<x5>" not in page
    assert "quality.max_age_s" in page


def test_report_of_an_earlier_version_can_be_read() -> None:
    data = compare(window(0), window(1)).to_dict()
    del data["quality"]
    assert DriftReport.from_dict(data).quality == ()
