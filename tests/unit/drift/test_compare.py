"""What ``compare`` promises: few false alarms, no missed shifts, and a clear word on data that cannot be compared."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paceline.drift import DriftReport, FeatureDrift, compare
from paceline.errors import InvalidInputError

# The figures in the documents come from this module, which has more windows; the tests hold its functions to the
# promises.
BENCHMARK = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "drift.py"))
detection, false_alarms, ten_features = (BENCHMARK[name] for name in ("detection", "false_alarms", "ten_features"))


def window(seed: int = 0, n: int = 500, **columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "temp": rng.normal(10, 5, n),
            "wind": rng.normal(4, 1, n),
            "carrier": rng.choice(["AA", "UA", "DL"], n, p=[0.5, 0.3, 0.2]),
        }
    )
    return frame.assign(**columns)


def feature(report: DriftReport, name: str) -> FeatureDrift:
    return next(item for item in report.features if item.name == name)


# --- the two promises with numbers -----------------------------------------------------------------------------


def test_at_most_five_percent_of_drift_free_windows_raise_an_alarm() -> None:
    assert false_alarms(ten_features, windows=40, n=500) <= 0.05


def test_half_a_standard_deviation_in_one_of_ten_features_is_found_in_95_percent_of_windows_of_500() -> None:
    assert detection(ten_features, windows=40, n=500, shift=0.5) >= 0.95


def test_a_hundred_features_raise_no_more_false_alarms_than_one() -> None:
    def hundred(rng: np.random.Generator, n: int) -> pd.DataFrame:
        return pd.DataFrame(rng.normal(size=(n, 100)), columns=[f"x{i}" for i in range(100)])

    assert false_alarms(hundred, windows=6, n=200) <= 0.05


def test_a_tiny_difference_in_many_rows_is_no_alarm() -> None:
    rng = np.random.default_rng(0)
    reference = pd.DataFrame({"temp": rng.normal(0, 1, 200_000)})
    current = pd.DataFrame({"temp": rng.normal(0.05, 1, 200_000)})
    report = compare(reference, current)
    assert feature(report, "temp").adjusted_p_value < 1e-9
    assert report.verdict == "no drift"
    assert "too small" in feature(report, "temp").reason


# --- what is seen ----------------------------------------------------------------------------------------------


def test_a_shift_is_named_with_its_statistics_and_comes_first() -> None:
    current = window(1)
    current["wind"] += 0.5
    report = compare(window(0), current)
    assert report.verdict == "drift"
    assert report.drifted_features == ["wind"]
    found = report.features[0]
    assert (found.name, found.test) == ("wind", "Kolmogorov-Smirnov")
    assert found.effect > 0.1
    assert found.psi > 0.1
    assert found.reason == "its distribution moved, the mean from 3.931 to 4.427"
    assert "wind" in report.reason


def test_a_wider_spread_at_the_same_mean_is_seen() -> None:
    rng = np.random.default_rng(1)
    assert compare(window(0), window(1, wind=rng.normal(4, 2, 500))).drifted_features == ["wind"]


def test_moved_shares_of_categories_are_seen() -> None:
    rng = np.random.default_rng(1)
    current = window(1, carrier=rng.choice(["AA", "UA", "DL"], 500, p=[0.3, 0.3, 0.4]))
    report = compare(window(0), current)
    assert report.drifted_features == ["carrier"]
    assert feature(report, "carrier").test == "chi-squared"


def test_a_new_category_is_seen_and_named() -> None:
    current = window(1)
    current.loc[:99, "carrier"] = "B6"
    found = feature(compare(window(0), current), "carrier")
    assert found.verdict == "drift"
    assert found.new_categories == ("B6",)
    assert "B6" in found.reason


def test_a_few_rows_of_new_rare_categories_are_no_alarm() -> None:
    current = window(1)
    current.loc[:2, "carrier"] = ["X1", "X2", "X3"]
    assert compare(window(0), current).verdict == "no drift"


def test_an_identifier_is_skipped_and_said_to_be_one() -> None:
    ids = [f"id-{i}" for i in range(1000)]
    report = compare(window(0, tail=ids[:500]), window(1, tail=ids[500:]))
    found = feature(report, "tail")
    assert (found.verdict, report.verdict) == ("skipped", "no drift")
    assert "identifier" in found.reason


def test_numbers_declared_categorical_are_compared_as_labels_whatever_their_type() -> None:
    rng = np.random.default_rng(0)
    hours = rng.integers(0, 3, 500)
    report = compare(window(0, hour=hours), window(1, hour=[str(hour) for hour in hours]), categorical=["hour"])
    assert feature(report, "hour").kind == "categorical"
    assert feature(report, "hour").effect == 0.0


def test_values_that_go_missing_are_drift() -> None:
    current = window(1)
    current.loc[:149, "temp"] = np.nan
    report = compare(window(0), current)
    assert report.drifted_features == ["temp"]
    assert "missing values went from 0% to 30%" in feature(report, "temp").reason


def test_prediction_label_and_time_are_not_features_unless_named() -> None:
    frame = window(0, predicted=0.5, late=1, day="2013-01-01")
    report = compare(frame, frame, prediction="predicted", actual="late", time="day")
    assert {item.name for item in report.features} == {"temp", "wind", "carrier"}
    assert "2013-01-01 to 2013-01-01" in report.current


# --- too little data -------------------------------------------------------------------------------------------


def test_below_the_minimum_sample_size_nothing_is_drift() -> None:
    report = compare(window(0), window(1, n=99, wind=1000.0))
    assert report.verdict == "not enough data"
    assert report.reason == "current: got 99 rows, expected at least 100 (minimum_samples)"
    assert compare(window(0), window(1, n=99), minimum_samples=50).verdict == "no drift"


def test_an_empty_current_window_is_not_enough_data() -> None:
    report = compare(window(0), window(1).iloc[:0])
    assert (report.verdict, report.current_rows) == ("not enough data", 0)
    assert report.reason == "current: got 0 rows, expected at least 100 (minimum_samples)"


def test_an_empty_reference_window_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^reference: got '0 rows', expected at least 100 rows"):
        compare(window(0).iloc[:0], window(1))


@pytest.mark.parametrize("which", ["reference", "current"])
def test_a_window_without_columns_is_refused(which: str) -> None:
    windows = {"reference": window(0), "current": window(1)} | {which: pd.DataFrame()}
    with pytest.raises(InvalidInputError, match=f"^{which}: got 'a table without columns'"):
        compare(**windows)


def test_a_window_that_is_no_table_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^current: got 'list', expected a pandas DataFrame"):
        compare(window(0), [1, 2])  # type: ignore[arg-type]


def test_a_feature_with_too_few_values_is_skipped_and_the_others_are_tested() -> None:
    current = window(1)
    reference = window(0)
    reference.loc[50:, "temp"] = np.nan
    current.loc[50:, "temp"] = np.nan
    report = compare(reference, current)
    assert report.verdict == "no drift"
    assert feature(report, "temp").verdict == "skipped"
    assert feature(report, "temp").reason == "50 and 50 values, at least 100 are needed in each window"
    assert compare(reference[["temp"]], current[["temp"]]).verdict == "not enough data"


# --- columns that cannot be compared ---------------------------------------------------------------------------


def test_a_renamed_column_is_refused_with_the_closest_name() -> None:
    current = window(1).rename(columns={"temp": "temp_c"})
    with pytest.raises(InvalidInputError) as caught:
        compare(window(0), current)
    assert str(caught.value) == (
        "columns: got 'temp', expected a column of the current window "
        "(did you mean 'temp_c'? it has temp_c, wind, carrier)"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["tmep"]}, "columns: got 'tmep', expected a column of the reference window"),
        ({"columns": []}, r"columns: got \[\], expected a list with at least one column name"),
        ({"columns": "temp"}, "columns: got 'temp', expected a list"),
        ({"categorical": ["hour"]}, "categorical: got 'hour', expected a column of the reference"),
        ({"categorical": "carrier"}, "categorical: got 'carrier', expected a list"),
        (
            {"prediction": "predicted", "actual": "wind"},
            "prediction: got 'predicted', expected a column of the current",
        ),
        ({"prediction": "wind"}, "actual: got None, expected a column name"),
        ({"actual": "wind"}, "prediction: got None, expected a column name"),
        ({"time": "day"}, "time: got 'day', expected a column of the current window"),
        ({"significance": 0}, "significance: got 0, expected a number between 0 and 1"),
        ({"significance": 1.2}, "significance: got 1.2, expected"),
        ({"psi_threshold": -1}, "psi_threshold: got -1, expected a number of at least 0"),
        ({"effect_threshold": "big"}, "effect_threshold: got 'big', expected a number"),
        ({"missing_threshold": True}, "missing_threshold: got True, expected a number"),
        ({"error_threshold": float("nan")}, "error_threshold: got nan, expected a number"),
        ({"minimum_samples": 0}, "minimum_samples: got 0, expected a whole number of at least 2"),
        ({"minimum_samples": 10.5}, "minimum_samples: got 10.5, expected a whole number"),
        ({"detector": "guess"}, "detector: got 'guess', expected one of adwin, ddm, page_hinkley"),
        ({"error": "squared"}, "error: got 'squared', expected one of auto, wrong, absolute"),
    ],
)
def test_what_cannot_be_used_is_named_with_what_is_accepted(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match="^" + message):
        compare(window(0), window(1), **options)  # type: ignore[arg-type]


def test_a_new_column_is_a_note_and_no_error() -> None:
    report = compare(window(0), window(1, gust=1.0))
    assert report.verdict == "no drift"
    assert report.notes == ("The current window has columns that the reference has not: gust.",)


def test_a_column_name_given_twice_in_a_window_is_refused() -> None:
    twice = pd.concat([window(0), window(0)[["temp"]]], axis=1)
    with pytest.raises(InvalidInputError, match=r"^current: got 'temp', expected each column name once"):
        compare(window(0), twice)


def test_infinite_values_are_refused_with_column_window_and_count() -> None:
    current = window(1)
    current.loc[[3, 7], "temp"] = np.inf
    with pytest.raises(InvalidInputError) as caught:
        compare(window(0), current)
    assert str(caught.value) == (
        "temp: got inf, expected finite numbers or missing values (2 of 500 rows of the current window are infinite)"
    )


def test_a_column_without_any_value_in_both_windows_is_skipped() -> None:
    report = compare(window(0, gone=np.nan), window(1, gone=None))
    assert feature(report, "gone").verdict == "skipped"
    assert feature(report, "gone").reason == "no values in either window"


def test_a_column_that_lost_all_its_values_has_drifted() -> None:
    report = compare(window(0), window(1, temp=np.nan))
    assert report.drifted_features == ["temp"]
    assert "100%" in feature(report, "temp").reason


@pytest.mark.parametrize("value", [3.0, "same", True])
def test_a_column_constant_in_both_windows_is_skipped(value: object) -> None:
    report = compare(window(0, always=value), window(1, always=value))
    assert report.verdict == "no drift"
    assert feature(report, "always").reason == "constant in both windows"


@pytest.mark.parametrize(("before", "after"), [(3.0, 4.0), ("x", "y"), (False, True)])
def test_a_constant_that_changed_has_drifted(before: object, after: object) -> None:
    assert compare(window(0, always=before), window(1, always=after)).drifted_features == ["always"]


def test_text_among_numbers_is_refused_with_the_odd_value() -> None:
    mixed = pd.Series([1.0] * 498 + ["n/a", "-"], dtype=object)
    with pytest.raises(InvalidInputError, match=r"^level: got 'n/a', expected only numbers, like most of the current"):
        compare(window(0, level=1.5), window(1, level=mixed))
    labels = compare(window(0, level=mixed), window(1, level=mixed), categorical=["level"])
    assert feature(labels, "level").kind == "categorical"


def test_numbers_that_became_text_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^temp: got '12.5', expected numbers in the current window"):
        compare(window(0), window(1, temp="12.5"))


def test_values_that_are_neither_numbers_nor_text_are_refused() -> None:
    lists = pd.Series([[1, 2]] * 500)
    with pytest.raises(InvalidInputError, match=r"^tags: got \[1, 2\], expected numbers, text or true/false"):
        compare(window(0, tags=lists), window(1, tags=lists))


def test_dates_are_skipped_but_refused_where_they_are_asked_for() -> None:
    day = pd.Timestamp("2013-01-01")
    assert feature(compare(window(0, day=day), window(1, day=day)), "day").verdict == "skipped"
    with pytest.raises(InvalidInputError, match=r"^day: got 'dates or times', expected numbers or categories"):
        compare(window(0, day=day), window(1, day=day), columns=["day"])


def test_numbers_as_a_database_gives_them_are_numbers() -> None:
    from decimal import Decimal

    exact = pd.Series([Decimal(i) / 7 for i in range(500)], dtype=object)
    with_gaps = pd.array([None, *range(499)], dtype="Int64")
    report = compare(window(0, exact=exact, whole=with_gaps), window(1, exact=exact, whole=with_gaps))
    assert feature(report, "exact").kind == feature(report, "whole").kind == "numeric"
