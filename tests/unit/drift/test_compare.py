"""``compare`` raises few false alarms, detects shifts, and rejects invalid data with clear errors."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

# The numbers in the documentation come from this benchmark, with more windows than in these tests.
from benchmarks.drift.frames import ten_features
from benchmarks.drift.rates import detection_rate, false_alarm_rate

from paceline.drift import DriftReport, DriftSettings, FeatureDrift, compare
from paceline.errors import InvalidInputError


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


DAY = pd.Timestamp("2013-01-01")


def feature(report: DriftReport, name: str) -> FeatureDrift:
    return next(item for item in report.features if item.name == name)


# --- rates of false alarms and detection ------------------------------------------------------------------------


def test_at_most_five_percent_of_windows_without_drift_raise_an_alarm() -> None:
    assert false_alarm_rate(ten_features, windows=40, n=500) <= 0.05


def test_shift_of_half_a_deviation_is_detected_in_95_percent_of_windows() -> None:
    assert detection_rate(ten_features, windows=40, n=500, shift=0.5) >= 0.95


def test_hundred_features_raise_no_more_false_alarms_than_one_feature() -> None:
    def hundred_features(rng: np.random.Generator, n: int) -> pd.DataFrame:
        return pd.DataFrame(rng.normal(size=(n, 100)), columns=[f"x{i}" for i in range(100)])

    assert false_alarm_rate(hundred_features, windows=6, n=200) <= 0.05


def test_tiny_difference_in_many_rows_is_not_drift() -> None:
    rng = np.random.default_rng(0)
    reference = pd.DataFrame({"temp": rng.normal(0, 1, 200_000)})
    current = pd.DataFrame({"temp": rng.normal(0.05, 1, 200_000)})
    report = compare(reference, current)
    assert feature(report, "temp").adjusted_p_value < 1e-9
    assert report.verdict == "no drift"
    assert "too small" in feature(report, "temp").reason


# --- detected drift --------------------------------------------------------------------------------------------


def test_shifted_feature_is_listed_first_with_its_statistics() -> None:
    current = window(1)
    current["wind"] += 0.5
    report = compare(window(0), current)
    assert report.verdict == "drift"
    assert report.drifted_features == ["wind"]
    result = report.features[0]
    assert (result.name, result.test) == ("wind", "Kolmogorov-Smirnov")
    assert result.effect > 0.1
    assert result.psi > 0.1
    assert result.reason == "its distribution changed, its mean from 3.931 to 4.427"
    assert "wind" in report.reason


def test_wider_spread_and_changed_category_frequencies_are_drift() -> None:
    rng = np.random.default_rng(1)
    assert compare(window(0), window(1, wind=rng.normal(4, 2, 500))).drifted_features == ["wind"]
    report = compare(window(0), window(1, carrier=rng.choice(["AA", "UA", "DL"], 500, p=[0.3, 0.3, 0.4])))
    assert report.drifted_features == ["carrier"]
    assert feature(report, "carrier").test == "chi-squared"


def test_new_category_is_named_and_few_rare_categories_are_not_drift() -> None:
    current = window(1)
    current.loc[:2, "carrier"] = ["X1", "X2", "X3"]
    assert compare(window(0), current).verdict == "no drift"
    current.loc[:99, "carrier"] = "B6"
    result = feature(compare(window(0), current), "carrier")
    assert (result.verdict, result.new_categories) == ("drift", ("B6",))
    assert "B6" in result.reason


IDS = [f"id-{number}" for number in range(1000)]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [(IDS[:500], IDS[500:], "identifier"), (np.nan, None, "no values in either window"), (DAY, DAY, "dates and times")],
)
def test_incomparable_column_is_skipped_with_the_reason(before: Any, after: Any, reason: str) -> None:
    report = compare(window(0, odd=before), window(1, odd=after))
    assert (feature(report, "odd").verdict, report.verdict) == ("skipped", "no drift")
    assert reason in feature(report, "odd").reason


def test_categorical_column_of_any_type_is_compared_as_labels() -> None:
    hours = np.random.default_rng(0).integers(0, 3, 500)
    before, after = window(0, hour=hours, level=MIXED), window(1, hour=[str(hour) for hour in hours], level=MIXED)
    report = compare(before, after, categorical=["hour", "level"])
    for name in ("hour", "level"):
        assert (feature(report, name).kind, feature(report, name).effect) == ("categorical", 0.0)


def test_increase_in_missing_values_is_drift() -> None:
    current = window(1)
    current.loc[:149, "temp"] = np.nan
    report = compare(window(0), current)
    assert (report.verdict, report.drifted_features) == ("drift", ["temp"])
    assert "missing values changed from 0% to 30%" in feature(report, "temp").reason


def test_prediction_label_and_time_are_not_features() -> None:
    frame = window(0, predicted=0.5, late=1, day="2013-01-01")
    report = compare(frame, frame, prediction="predicted", actual="late", time="day")
    assert {item.name for item in report.features} == {"temp", "wind", "carrier"}
    assert "2013-01-01 to 2013-01-01" in report.current


# --- too little data -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [99, 0])
def test_too_few_rows_are_not_enough_data(rows: int) -> None:
    report = compare(window(0), window(1, n=99, wind=1000.0).head(rows))
    assert (report.verdict, report.current_rows) == ("not enough data", rows)
    assert report.reason == f"current: got {rows} rows, expected at least 100 (minimum_samples)"
    assert compare(window(0), window(1, n=99), settings=DriftSettings(minimum_samples=50)).verdict == "no drift"


MIXED = pd.Series([1.0] * 498 + ["n/a", "-"], dtype=object)
DUPLICATED = pd.concat([window(0), window(0)[["temp"]]], axis=1)


@pytest.mark.parametrize(
    ("reference", "current", "message"),
    [
        (window(0).iloc[:0], window(1), "reference: got '0 rows', expected at least 100 rows"),
        (pd.DataFrame(), window(1), "reference: got 'a table without columns'"),
        (window(0), pd.DataFrame(), "current: got 'a table without columns'"),
        (window(0), [1, 2], "current: got 'list', expected a pandas DataFrame"),
        (window(0), DUPLICATED, "current: got 'temp', expected unique column names"),
        (window(level=MIXED), window(level=1.5), "level: got 'n/a', expected only numbers, like most values in the"),
    ],
)
def test_invalid_windows_are_rejected(reference: Any, current: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match="^" + message):
        compare(reference, current)


def test_feature_with_too_few_values_is_skipped() -> None:
    current = window(1)
    reference = window(0)
    reference.loc[50:, "temp"] = np.nan
    current.loc[50:, "temp"] = np.nan
    report = compare(reference, current)
    assert report.verdict == "no drift"
    assert feature(report, "temp").verdict == "skipped"
    assert feature(report, "temp").reason == "the windows have 50 and 50 values, but each needs at least 100"
    assert compare(reference[["temp"]], current[["temp"]]).verdict == "not enough data"


# --- invalid columns and settings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"columns": ["tmep"]},
            r"columns: got 'tmep', expected a column of the reference window \(did you mean 'temp'\? the columns are "
            r"temp, wind, carrier, day\)$",
        ),
        ({"columns": []}, r"columns: got \[\], expected a list with at least one column name"),
        ({"columns": "temp"}, "columns: got 'temp', expected a list"),
        ({"columns": ["day"]}, "day: got 'dates or times', expected numbers or categories"),
        ({"categorical": ["hour"]}, "categorical: got 'hour', expected a column of the reference"),
        ({"categorical": "carrier"}, "categorical: got 'carrier', expected a list"),
        ({"prediction": "predicted", "actual": "wind"}, "prediction: got 'predicted', expected a column of the"),
        ({"prediction": "wind"}, "actual: got None, expected a column name"),
        ({"actual": "wind"}, "prediction: got None, expected a column name"),
        ({"time": "hour"}, "time: got 'hour', expected a column of the current window"),
    ],
)
def test_invalid_settings_are_rejected_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match="^" + message):
        compare(window(0, day=DAY), window(1, day=DAY), **options)  # type: ignore[arg-type]


def test_infinite_values_are_rejected_with_column_window_and_count() -> None:
    current = window(1)
    current.loc[[3, 7], "temp"] = np.inf
    with pytest.raises(InvalidInputError) as caught:
        compare(window(0), current, columns=["temp"])
    assert str(caught.value) == (
        "temp: got inf, expected finite numbers or missing values (2 of 500 rows of the current window are infinite)"
    )


def test_largest_float_in_place_of_a_missing_value_is_rejected_because_means_would_overflow() -> None:
    current = window(1)
    current.loc[[3, 7], "temp"] = -sys.float_info.max
    with pytest.raises(InvalidInputError, match=r"^temp: got -1\.79.*e\+308, .*\(2 of 500 rows of the current window"):
        compare(window(0), current, columns=["temp"])


@pytest.mark.parametrize(("before", "after"), [(3.0, 4.0), ("same", "y"), (True, False)])
def test_constant_column_is_skipped_unless_the_constant_changed(before: object, after: object) -> None:
    report = compare(window(0, always=before), window(1, always=before))
    assert report.verdict == "no drift"
    assert feature(report, "always").reason == "constant in both windows"
    assert compare(window(0, always=before), window(1, always=after)).drifted_features == ["always"]


def test_decimal_and_nullable_columns_are_numeric() -> None:
    from decimal import Decimal

    exact = pd.Series([Decimal(i) / 7 for i in range(500)], dtype=object)
    with_gaps = pd.array([None, *range(499)], dtype="Int64")
    report = compare(window(0, exact=exact, whole=with_gaps), window(1, exact=exact, whole=with_gaps))
    assert feature(report, "exact").kind == feature(report, "whole").kind == "numeric"


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
def test_invalid_settings_are_rejected(options, message):
    with pytest.raises(InvalidInputError, match=message):
        DriftSettings(**options)


@pytest.mark.parametrize("reference_rows", [2_000, 20_000, 200_000])
def test_change_of_a_category_matters_regardless_of_the_length_of_the_reference(reference_rows: int) -> None:
    before = pd.DataFrame({"carrier": ["AA"] * (reference_rows * 3 // 10) + ["UA"] * (reference_rows * 7 // 10)})
    after = pd.DataFrame({"carrier": ["AA"] * 840 + ["UA"] * 1160})
    [carrier] = compare(before, after, settings=DriftSettings(psi_threshold=1.0)).features
    assert (carrier.verdict, round(carrier.effect or 0.0, 6)) == ("drift", 0.12)
