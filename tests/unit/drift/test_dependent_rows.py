"""Rows that depend on each other (groups, copies, autocorrelation) and seasons raise no false alarms."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.signal import lfilter
from scipy.stats import ks_2samp

from paceline.drift import DriftSettings, compare
from paceline.drift._statistics import kolmogorov_smirnov
from paceline.errors import InvalidInputError

FEATURES = ["age", "pay", "visits"]


def make_groups(seed: int, groups: int, rows_each: int, noise: float, shift: float = 0.0) -> pd.DataFrame:
    """Return rows of customers whose features differ by ``noise`` from those of the customer."""
    rng = np.random.default_rng(seed)
    customers = np.repeat(rng.normal(shift, 1, (groups, len(FEATURES))), rows_each, axis=0)
    frame = pd.DataFrame(customers + noise * rng.normal(size=customers.shape), columns=FEATURES)
    plans, names = rng.choice(["a", "b"], groups), np.arange(groups) + 10_000 * seed
    return frame.assign(plan=np.repeat(plans, rows_each), customer=np.repeat(names, rows_each))


def make_series(seed: int, rows: int, shift: float = 0.0, features: int = len(FEATURES)) -> pd.DataFrame:
    """Return hourly rows; neighbouring rows have a correlation of 0.9."""
    noise = np.random.default_rng(seed).normal(0, 0.19**0.5, (rows + 500, features))
    values = lfilter([1], [1, -0.9], noise, axis=0)[500:] + shift
    start = pd.Timestamp("2030-01-01") + pd.Timedelta(days=400 * seed)
    names = [*FEATURES, *(f"feature_{number}" for number in range(features))][:features]
    return pd.DataFrame(values, columns=names).assign(at=pd.date_range(start, periods=rows, freq="h"))


def make_weeks(seed: int, days: list[int], rows_each: int = 200) -> pd.DataFrame:
    """Return rows of the numbered days of January 2029, which begins on a Monday; weekends have higher values."""
    rng = np.random.default_rng(seed)
    day = np.repeat(days, rows_each)
    weekend = (day % 7 >= 5)[:, None]
    frame = pd.DataFrame(rng.normal(weekend * 0.6, 1.0, (len(day), len(FEATURES))), columns=FEATURES)
    second = rng.integers(0, 86_400, len(day)) + 86_400 * day
    return frame.assign(at=pd.Timestamp("2029-01-01") + pd.to_timedelta(second, unit="s"))


@pytest.mark.parametrize(("groups", "rows_each", "noise"), [(500, 2, 0.3), (100, 10, 0.0), (30, 50, 0.3)])
def test_rows_of_equal_groups_rarely_have_drift(groups: int, rows_each: int, noise: float) -> None:
    pairs = [[make_groups(seed + number, groups, rows_each, noise) for number in (0, 1)] for seed in range(0, 20, 2)]
    alarms = [compare(*windows, groups="customer").drifted for windows in pairs]
    assert sum(alarms) <= 1


@pytest.mark.parametrize("seed", range(0, 6, 2))
def test_copies_of_rows_have_no_joint_drift(seed: int) -> None:
    windows = [make_groups(seed + number, 500, 2, 0.0).drop(columns="customer") for number in (0, 1)]
    report = compare(*windows)
    assert report.joint is not None
    assert report.joint.verdict == "no drift", report.reason


def test_copies_of_vectors_have_no_drift() -> None:
    windows = []
    for seed in (0, 1):
        vectors = np.repeat(np.random.default_rng(seed).normal(size=(500, 16)), 2, axis=0)
        windows.append(pd.DataFrame({"embedding": list(vectors)}))
    assert compare(*windows).verdict == "no drift"


def test_shift_of_many_groups_is_drift() -> None:
    report = compare(make_groups(0, 200, 10, 0.3), make_groups(1, 200, 10, 0.3, shift=1.0), groups="customer")
    assert set(report.drifted_features) == set(FEATURES)


def test_too_few_groups_are_not_enough_data() -> None:
    report = compare(make_groups(0, 100, 10, 0.3), make_groups(1, 3, 400, 0.3), groups="customer")
    assert report.verdict == "not enough data"
    assert report.reason == "current: got 3 different values of customer (groups), expected at least 10"


@pytest.mark.parametrize("rows", [200, 1000, 5000])
@pytest.mark.parametrize("seed", range(0, 10, 2))
def test_autocorrelated_rows_in_time_order_have_no_drift(rows: int, seed: int) -> None:
    report = compare(make_series(seed, rows), make_series(seed + 1, rows), time="at")
    assert report.verdict == "no drift", report.reason


@pytest.mark.parametrize("seed", [14, 24, 52, 58])
def test_many_autocorrelated_features_have_no_joint_drift(seed: int) -> None:
    """With many blocks of neighbouring rows, a classifier recognises the window by the neighbours in other blocks."""
    report = compare(*(make_series(2 * seed + number, 1000, features=10) for number in (0, 1)), time="at")
    assert report.joint is not None
    assert report.joint.verdict == "no drift", report.reason


def test_shift_of_autocorrelated_rows_is_drift() -> None:
    report = compare(make_series(0, 2000), make_series(1, 2000, shift=1.0), time="at")
    assert set(report.drifted_features) == set(FEATURES)


def test_order_of_the_rows_does_not_change_the_result() -> None:
    windows = [make_series(seed, 1000) for seed in (0, 1)]
    shuffled = [frame.sample(frac=1, random_state=0) for frame in windows]
    before, after = (compare(*pair, time="at") for pair in (windows, shuffled))
    assert [f.adjusted_p_value for f in before.features] == pytest.approx([f.adjusted_p_value for f in after.features])


def test_report_notes_rows_that_look_dependent() -> None:
    windows = [make_series(seed, 1000) for seed in (0, 1)]
    named, unnamed = compare(*windows, time="at"), compare(*(frame.drop(columns="at") for frame in windows))
    assert not any("look dependent" in note for note in named.notes)
    note = next(note for note in unnamed.notes if "look dependent" in note)
    assert "the column of the times as `time`" in note
    assert "as `groups`" in note


def test_independent_rows_are_not_noted() -> None:
    windows = [make_groups(seed, 1000, 1, 0.0).drop(columns="customer") for seed in (0, 1)]
    assert compare(*windows).notes == ()


@pytest.mark.parametrize("seed", range(0, 10, 2))
def test_saturday_is_compared_with_saturdays(seed: int) -> None:
    weeks, saturday = make_weeks(seed, list(range(28))), make_weeks(seed + 1, [33])
    assert compare(weeks, saturday).verdict == "drift"
    report = compare(weeks, saturday, time="at", season="weekday")
    assert report.verdict == "no drift", report.reason
    assert any("800 of 5,600 rows of the reference and 200 of 200 of the current" in note for note in report.notes)


def test_change_within_a_season_is_drift() -> None:
    saturday = make_weeks(1, [33])
    saturday["pay"] += 0.6
    report = compare(make_weeks(0, list(range(28))), saturday, time="at", season="weekday")
    assert report.drifted_features == ["pay"]


def test_season_may_be_a_column() -> None:
    weeks, saturday = make_weeks(0, list(range(28))), make_weeks(1, [33])
    weeks, saturday = (
        frame.assign(weekend=frame["at"].dt.day_of_week >= 5).drop(columns="at") for frame in (weeks, saturday)
    )
    report = compare(weeks, saturday, season="weekend")
    assert report.verdict == "no drift", report.reason
    assert "weekend" not in [feature.name for feature in report.features]


def test_report_names_seasons_that_the_reference_lacks() -> None:
    report = compare(make_weeks(0, [0, 1, 2]), make_weeks(1, [2, 5]), time="at", season="weekday")
    assert any("The reference has no rows of Saturday." in note for note in report.notes)
    assert (
        compare(make_weeks(0, [0, 1, 2]), make_weeks(1, [5]), time="at", season="weekday").verdict == "not enough data"
    )


def test_column_with_missing_values_in_one_block_does_not_look_dependent() -> None:
    windows = [make_groups(seed, 1000, 1, 0.0).drop(columns="customer") for seed in (0, 1)]
    for frame in windows:
        frame.loc[:399, "age"] = None
    assert compare(*windows).notes == ()


def test_equal_groups_have_no_quality_problems() -> None:
    windows = [make_groups(seed, 50, 20, 0.1).assign(code=lambda frame: frame["customer"] % 97) for seed in (0, 1)]
    report = compare(*windows, groups="customer", categorical=["code"])
    assert [problem.kind for problem in report.quality if problem.column in FEATURES] == []


def test_estimate_of_equal_groups_is_not_drift() -> None:
    windows = []
    for seed in (0, 1):
        frame = make_groups(seed, 300, 10, 0.1)
        score = 1 / (1 + np.exp(-frame["age"]))
        late = np.random.default_rng(seed).random(len(frame)) < score
        windows.append(frame.assign(score=score, late=late if seed == 0 else None))
    report = compare(*windows, groups="customer", prediction="score", actual="late")
    assert report.estimate is not None
    assert (report.estimate.verdict, report.estimate.rows) == ("no drift", 300)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": "client"}, "groups: got 'client', expected a column of the reference window"),
        ({"groups": ["customer"]}, "groups: got .'customer'., expected the name of a column, or None"),
        ({"groups": "age", "prediction": "age", "actual": "pay"}, "groups: got 'age', expected a column other than"),
        ({"season": "weekday"}, "time: got None, expected the column of the times, because season is 'weekday'"),
        ({"season": "weekday", "time": "age"}, "age: got .*, expected dates or times of one time zone"),
        (
            {"season": "holiday"},
            "season: got 'holiday', expected 'weekday', 'hour', 'hour of week', or a column of",
        ),
        ({"segments": "region"}, "segments: got 'region', expected a column of the reference window"),
    ],
)
def test_invalid_roles_are_named(arguments: dict[str, str], message: str) -> None:
    windows = [make_groups(seed, 100, 2, 0.3) for seed in (0, 1)]
    with pytest.raises(InvalidInputError, match=message):
        compare(*windows, **arguments)  # type: ignore[arg-type]


def test_empty_current_window_is_not_enough_data() -> None:
    series = make_series(0, 500)
    report = compare(series, series[:0], time="at", season="weekday")
    assert (report.verdict, report.reason) == (
        "not enough data",
        "current: got 0 rows, expected at least 100 (minimum_samples)",
    )


def test_index_with_the_name_of_a_column_is_ignored() -> None:
    frames = [make_series(seed, 500).assign(predicted=1, late=1) for seed in (0, 1)]
    roles = {"time": "at", "prediction": "predicted", "actual": "late"}
    indexed = [frame.set_index("at", drop=False) for frame in frames]
    assert compare(*indexed, **roles) == compare(*frames, **roles)  # type: ignore[arg-type]


def test_windows_without_a_common_season_are_named_and_the_error_is_compared() -> None:
    rng = np.random.default_rng(0)
    frames = []
    for plan, share in (("old", 0.2), ("new", 0.7)):
        frame = make_groups(len(frames), 1500, 1, 0.0).assign(price=plan, late=1)
        frames.append(frame.assign(predicted=(rng.random(1500) > share) * 1))
    report = compare(*frames, season="price", columns=FEATURES)
    assert report.verdict == "not enough data"
    assert report.reason == (
        "season: no season (price) is in both windows: the reference window has old and the current window has new"
    )
    report = compare(*frames, season="price", columns=FEATURES, prediction="predicted", actual="late")
    assert report.concept is not None


def test_times_of_different_zones_have_no_common_hours() -> None:
    weeks = make_weeks(0, [0, 1])
    zoned = [weeks.assign(at=weeks["at"].dt.tz_localize(zone)) for zone in ("Asia/Tokyo", "UTC")]
    with pytest.raises(InvalidInputError, match=r"at: got 'Asia/Tokyo .reference. and UTC .current.'"):
        compare(*zoned, time="at", season="hour")


def test_dates_have_no_hours() -> None:
    days = make_weeks(0, [0, 1]).assign(at=lambda frame: frame["at"].dt.normalize())
    with pytest.raises(InvalidInputError, match=r"at: got .* expected times of day, because season is 'hour'"):
        compare(days, days, time="at", season="hour")


@pytest.mark.parametrize("season", ["hour", "hour of week"])
def test_window_of_the_hour_at_midnight_is_compared(season: str) -> None:
    weeks = make_weeks(0, list(range(14)), 1440).assign(at=lambda frame: frame["at"].dt.floor("h"))
    frames = [weeks, make_weeks(1, [14], 4800).assign(at=lambda frame: frame["at"].dt.floor("h"))]
    frames[1] = frames[1][frames[1]["at"].dt.hour == 0]
    frames = [frame.assign(score=0.5, late=np.arange(len(frame)) % 2.0) for frame in frames]
    frames[0]["late"] = np.nan  # only the hour has labels
    report = compare(*frames, time="at", season=season, prediction="score", actual="late")
    assert (report.verdict, len(report.quality)) == ("no drift", 0), report.reason
    assert report.concept is not None
    assert report.concept.current_rows == len(frames[1])


def test_group_with_most_rows_counts_once() -> None:
    """False alarms are counted: the features of a customer are equal, and one customer has half of the rows."""
    alarms = 0
    for seed in range(0, 40, 2):
        frames = []
        for number in (0, 1):
            customer = np.concatenate([np.zeros(500, int), np.repeat(np.arange(1, 51), 10)])
            values = np.random.default_rng(seed + number).normal(size=(51, 2))[customer]
            frames.append(pd.DataFrame(values, columns=["age", "pay"]).assign(customer=customer + 100 * number))
        alarms += compare(*frames, groups="customer").drifted
    assert alarms <= 2


def test_single_and_double_precision_are_equal() -> None:
    price = np.random.default_rng(0).choice([0.1, 0.2, 0.3, 0.7], 1000)
    report = compare(pd.DataFrame({"price": price.astype("float32")}), pd.DataFrame({"price": price}))
    assert (report.verdict, report.quality) == ("no drift", ())


def test_prediction_and_label_are_different_columns() -> None:
    frame = make_groups(0, 200, 1, 0.0)
    with pytest.raises(InvalidInputError, match="actual: got 'age', expected another column than prediction"):
        compare(frame, frame, prediction="age", actual="age")


def test_order_of_the_rows_does_not_change_the_comparison_of_seasons() -> None:
    weeks, saturday = make_weeks(0, list(range(14))), make_weeks(1, [18, 19, 19, 20])
    windows = [
        frame.assign(plan=rng.choice(["a", "b"], len(frame)), vector=list(rng.normal(size=(len(frame), 3))))
        for frame, rng in ((weeks, np.random.default_rng(2)), (saturday, np.random.default_rng(3)))
    ]
    shuffled = [frame.sample(frac=1, random_state=4) for frame in windows]
    for options in ({"time": "at", "season": "weekday"}, {"season": "plan"}):
        before, after = (compare(*pair, **options, columns=[*FEATURES, "vector"]) for pair in (windows, shuffled))
        assert before.features == after.features
        assert before.joint == after.joint


def test_rows_of_a_season_are_left_out_at_random_although_rows_repeat() -> None:
    frames = [
        pd.DataFrame(
            {
                "plan": np.repeat(["a", "b", "a", "b"], half),
                "day": np.repeat(["Fri", "Sat"], [sum(half[:2]), sum(half[2:])]),
            }
        )
        for half in ([500, 500, 500, 500], [500, 500, 100, 100])
    ]
    report = compare(*frames, season="day")
    assert report.verdict == "no drift", report.reason


def test_group_is_missing_in_all_rows_with_labels() -> None:
    frames = []
    for seed in (0, 1):
        frame = make_groups(seed, 300, 4, 0.1).astype({"customer": "object"})
        frame["score"] = 1 / (1 + np.exp(-frame["age"]))
        frame["late"] = (np.random.default_rng(seed).random(len(frame)) < frame["score"]) * 1.0
        frames.append(frame)
    frames[1].loc[600:, "late"] = None
    frames[1].loc[:599, "customer"] = None
    report = compare(*frames, groups="customer", prediction="score", actual="late", columns=FEATURES)
    assert report.concept is not None
    assert (report.concept.verdict, report.concept.current_rows) == ("no drift", 600)
    frames[1]["customer"] = None
    with pytest.raises(InvalidInputError, match="groups: got 'customer', expected a column with values in the current"):
        compare(*frames, groups="customer", columns=FEATURES)


def test_report_notes_that_texts_are_not_corrected_for_the_times() -> None:
    words = ["late order of a parcel", "refund of a ticket", "price of the new plan", "help with the login page"]
    frames = [
        make_series(seed, 600).assign(
            text=[f"{words[n % 4]} {chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(600)]
        )
        for seed in (0, 1)
    ]
    note = (
        "The tests of text and of data quality do not take into account that neighbouring times depend on each other."
    )
    assert note in compare(*frames, time="at").notes
    assert note not in compare(*(frame.drop(columns="text") for frame in frames), time="at").notes
    assert note not in compare(*(frame.drop(columns="at") for frame in frames)).notes


def test_report_notes_that_the_estimate_does_not_use_the_seasons() -> None:
    frames = []
    for seed in (0, 1):
        frame = make_weeks(seed, list(range(7)))
        score = 1 / (1 + np.exp(-frame["age"]))
        late = (np.random.default_rng(seed).random(len(frame)) < score) * 1.0
        frames.append(frame.assign(score=score, late=late if seed == 0 else None))
    roles = {"prediction": "score", "actual": "late", "time": "at"}
    note = "The estimate of the model's error compares all rows, not only rows of equal seasons."
    assert note in compare(*frames, **roles, season="weekday").notes  # type: ignore[arg-type]
    assert note not in compare(*frames, **roles).notes  # type: ignore[arg-type]


def make_days(seed: int, days: int, rows_each: int = 24, effect: float = 0.0) -> pd.DataFrame:
    """Return rows of the features on each day; each day shifts them by its own amount, with this deviation."""
    rng = np.random.default_rng(seed)
    shifts = np.repeat(rng.normal(0, 1, (days, len(FEATURES))), rows_each, axis=0) * effect
    frame = pd.DataFrame(shifts + rng.normal(size=shifts.shape), columns=FEATURES)
    return frame.assign(day=np.repeat(pd.date_range("2030-01-01", periods=days), rows_each))


@pytest.mark.parametrize(
    ("first_days", "verdict", "reasons"),
    [
        ((30, 10), "no drift", ["missing values rose from 0.0% to 66.7% (too few independent rows to test this)"]),
        ((10, 10), "no drift", []),
        ((10, 30), "no drift", []),
        ((30, 0), "bad data", ["missing values rose from 0.0% to 100.0%"]),
        ((10, 0), "no drift", ["missing values rose from 66.7% to 100.0% (too few independent rows to test this)"]),
    ],
)
def test_values_that_end_within_a_window_are_a_problem_and_no_drift(
    first_days: tuple[int, int], verdict: str, reasons: list[str]
) -> None:
    """The column ``age`` has values on the first days of the 30 days of each window."""
    windows = []
    for seed, days in enumerate(first_days):
        frame = make_days(seed, 30)
        frame.loc[24 * days :, "age"] = np.nan
        windows.append(frame)
    report = compare(*windows, time="day")
    assert (report.verdict, [problem.column for problem in report.quality]) == (verdict, ["age"] * len(reasons))
    assert [problem.reason for problem in report.quality] == [f"the share of {reason}" for reason in reasons]


@pytest.mark.parametrize(("days", "with_values"), [(365, 30), (180, 14)])
def test_values_of_another_season_only_are_no_bad_data(days: int, with_values: int) -> None:
    """The column ``snow`` has no values on most days of the reference either."""
    reference, current = make_days(0, days).assign(snow=1.0), make_days(1, 30).assign(snow=np.nan)
    reference.loc[24 * with_values :, "snow"] = np.nan
    report = compare(reference, current, time="day")
    assert report.verdict == "no drift", report.reason
    assert [(problem.kind, problem.column) for problem in report.quality] == [("missing values", "snow")]


def test_values_that_are_missing_at_any_time_are_drift() -> None:
    current = make_days(1, 30)
    current.loc[np.random.default_rng(2).random(len(current)) < 0.1, "age"] = np.nan
    report = compare(make_days(0, 30), current, time="day")
    assert report.drifted_features == ["age"]
    assert "the share of missing values changed from 0% to" in report.features[0].reason


@pytest.mark.parametrize("role", ["time", "groups"])
def test_values_of_few_days_are_not_tested(role: str) -> None:
    """The values of one day do not show how much the days differ."""
    for seed in range(0, 8, 2):
        windows = [make_days(seed + number, 20, 200, effect=1.0) for number in (0, 1)]
        for frame in windows:
            frame.loc[200:, "age"] = np.nan
        report = compare(*windows, **{role: "day"})  # type: ignore[arg-type]
        [age] = [feature for feature in report.features if feature.name == "age"]
        kind = "times" if role == "time" else "groups"
        assert (age.test, age.reason) == ("", f"a window has values of fewer than 10 {kind}")
        assert f"Not tested: age ({age.reason})." in report.notes


@pytest.mark.parametrize("day", [5, 15, 25])
def test_report_names_a_feature_with_too_few_independent_rows(day: int) -> None:
    """The values of ``age`` rise by three standard deviations on one of the 30 days."""
    current = make_days(1, 30)
    current.loc[24 * day :, "age"] += 3
    report = compare(make_days(0, 30), current, time="day")
    assert (report.verdict, report.reason) == ("no drift", "No drift in 2 features. Not tested: age.")
    assert report.notes == ("Not tested: age (the values in a window count as fewer than 5 independent rows).",)


def test_untested_features_count_as_not_drifted() -> None:
    """Of four features, one has drifted and two have too few independent rows."""
    reference, current = (make_days(seed, 30).assign(rain=make_days(seed + 2, 30)["age"]) for seed in (0, 1))
    current.loc[24 * 15 :, ["age", "pay"]] += 3
    current["rain"] += 3
    verdicts = []
    for share in (0.25, 0.5):
        report = compare(reference, current, time="day", settings=DriftSettings(drift_share=share))
        assert report.drifted_features == ["rain"]
        verdicts.append(report.verdict)
    assert verdicts == ["drift", "no drift"]
    assert report.reason.startswith("Drift in 1 of 2 features: rain. Too few for drift: 25% by importance")
    assert report.reason.endswith(" Not tested: age, pay.")


def test_few_times_of_a_season_are_not_enough_data() -> None:
    windows = [make_days(seed, days, 200).assign(closed=lambda frame: False) for seed, days in ((0, 60), (1, 20))]
    windows[0]["closed"] = windows[0]["day"] >= "2030-01-05"
    report = compare(*windows, time="day", season="closed")
    assert (report.verdict, report.reason) == ("not enough data", "No feature has enough values in both windows.")


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (3, 8), (5, 40)])
def test_windows_without_common_values_have_the_exact_p_value(before: int, after: int) -> None:
    result = kolmogorov_smirnov(np.array([before, 0]), np.array([0, after]))
    assert result.p_value == pytest.approx(ks_2samp(np.zeros(before), np.ones(after), method="exact").pvalue)


def test_fractions_of_a_row_are_no_drift() -> None:
    assert kolmogorov_smirnov(np.array([0.3, 0.0]), np.array([0.0, 0.4])).p_value == 1.0


def test_windows_of_few_independent_rows_are_not_enough_data() -> None:
    """Two windows of 100 hours hardly overlap if the correlation of neighbours is 0.99: each has one level."""
    verdicts = set()
    for seed in range(0, 40, 2):
        frames = []
        for number in (0, 1):
            noise = np.random.default_rng(seed + number).normal(size=700)
            values = lfilter([1], [1, -0.99], noise)[600:]
            frames.append(pd.DataFrame({"age": values, "high": values > values.mean(), "at": range(100)}))
        verdicts.add(compare(*frames, time="at").verdict)
    assert verdicts <= {"not enough data", "no drift"}
