"""Columns of arrays are embeddings: a classifier finds drift in their vectors and seldom raises a false alarm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

# The numbers in the documentation come from this benchmark, with more windows than in these tests.
from benchmarks.drift.embeddings import draw_vectors

from paceline.drift import DriftReport, DriftSettings, FeatureDrift, compare, to_html
from paceline.drift._vectors import is_array_text
from paceline.errors import InvalidInputError

DIMENSIONS = 64


def vectors(seed: int, rows: int = 1000, **change: Any) -> np.ndarray:
    return draw_vectors(np.random.default_rng(seed), rows, DIMENSIONS, **change)


def frame(values: Any, seed: int = 0) -> pd.DataFrame:
    return pd.DataFrame(
        {"text": pd.Series(list(values)), "length": np.random.default_rng(seed).normal(size=len(values))}
    )


def feature(report: DriftReport) -> FeatureDrift:
    return next(one for one in report.features if one.name == "text")


def test_equal_embeddings_raise_false_alarms_at_most_at_the_nominal_rate() -> None:
    reports = [
        compare(frame(vectors(2 * seed), 2 * seed), frame(vectors(2 * seed + 1), 2 * seed + 1)) for seed in range(40)
    ]
    assert sum(report.verdict != "no drift" for report in reports) <= 2  # the nominal rate is 1 %
    assert all(report.quality == () for report in reports)
    p_values = [feature(report).p_value or 0.0 for report in reports]
    assert np.mean(np.array(p_values) <= 0.1) <= 0.25


@pytest.mark.parametrize("change", [{"shift": 2.0}, {"rotated": True}])
def test_shifted_mean_and_rotated_covariance_are_drift(change: dict[str, Any]) -> None:
    for seed in range(5):
        report = compare(frame(vectors(2 * seed)), frame(vectors(2 * seed + 1, **change), 1))
        assert (report.verdict, report.drifted_features) == ("drift", ["text"])
        found = feature(report)
        assert (found.kind, found.dimensions, found.test, found.psi) == ("embedding", 64, "domain classifier", None)
        assert found.reason.startswith("a classifier distinguishes its vectors in the two windows (AUC 0.")
        assert found.effect == pytest.approx(2 * (found.statistic or 0.0) - 1)


def test_difference_below_the_threshold_is_not_drift() -> None:
    current = frame(vectors(1, shift=2.0), 1)
    report = compare(frame(vectors(0)), current, settings=DriftSettings(joint_threshold=0.99))
    assert report.verdict == "no drift"
    assert feature(report).reason == "the difference is significant, but too small to matter"


def test_wide_embedding_is_compared_by_few_components() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 600, 1500))
    after[:, :300] += 0.3
    report = compare(frame(before), frame(after, 1))
    assert (report.drifted_features, feature(report).dimensions) == (["text"], 1500)


@pytest.mark.parametrize("make", [np.float32, np.float64, list, tuple, lambda vector: (vector * 100).astype(int)])
def test_arrays_of_any_numbers_are_embeddings(make: Any) -> None:
    before, after = ([make(row) for row in vectors(seed, 500)] for seed in (0, 1))
    report = compare(frame(before), frame(after, 1))
    assert (report.verdict, feature(report).kind, feature(report).dimensions) == ("no drift", "embedding", 64)


def test_embedding_is_named_in_the_report_with_its_dimensions() -> None:
    report = compare(frame(vectors(0)), frame(vectors(1, shift=3.0), 1))
    assert DriftReport.from_dict(report.to_dict()) == report
    assert "classifier of vectors of 64 numbers" in to_html(report)
    assert report.summary().statistics["text"].test == "domain classifier"


def test_too_few_vectors_are_not_enough_data() -> None:
    report = compare(frame(vectors(0, 499))[["text"]], frame(vectors(1, 499))[["text"]])
    assert (report.verdict, feature(report).verdict) == ("not enough data", "skipped")
    assert feature(report).reason == "the windows have 499 and 499 values, but each needs at least 500"


def test_fewer_vectors_than_components_are_compared() -> None:
    report = compare(frame(vectors(0, 25)), frame(vectors(1, 25)), settings=DriftSettings(minimum_samples=5))
    assert (feature(report).verdict, feature(report).test) == ("no drift", "domain classifier")


def test_very_long_vectors_are_skipped() -> None:
    rows = np.zeros(20_000, dtype=np.float32)
    report = compare(frame([rows] * 500), frame([rows] * 500, 1))
    assert feature(report).reason == "vectors of 20,000 numbers are too long to compare"


# --- broken vectors --------------------------------------------------------------------------------------------


def test_invalid_vectors_count_as_missing() -> None:
    broken: list[Any] = list(vectors(1))
    for row, invalid in enumerate([None, [], [1.0, 2.0], [np.nan] * 64, [None] * 64, [np.inf] * 64, [1e200] * 64] * 40):
        broken[row] = invalid
    report = compare(frame(vectors(0)), frame(broken, 1))
    assert (feature(report).missing_reference, feature(report).missing_current) == (0.0, 0.28)
    assert [(one.kind, one.column) for one in report.quality] == [("missing values", "text")]
    assert (feature(report).verdict, feature(report).statistic is not None) == ("drift", True)


@pytest.mark.parametrize(
    ("column", "kind", "reason"),
    [
        (list(vectors(1)[:, :32]), "changed type", "arrays of 64 numbers became arrays of 32 numbers"),
        ("text", "changed type", "arrays of numbers became text, for example 'text'"),
        (0.5, "changed type", "arrays of numbers became numbers, for example 0.5"),
        (None, "no values", "the share of missing values rose from 0.0% to 100.0%"),
    ],
)
def test_broken_embedding_is_bad_data(column: Any, kind: str, reason: str) -> None:
    report = compare(frame(vectors(0)), frame(vectors(1)).assign(text=column))
    assert report.verdict == "bad data"
    assert [(one.kind, one.reason) for one in report.quality] == [(kind, reason)]


def test_arrays_as_text_are_not_compared() -> None:
    before, after = ([str(row.tolist()) for row in vectors(seed, 500)] for seed in (0, 1))
    report = compare(frame(before), frame(after, 1))
    assert (feature(report).verdict, feature(report).reason) == ("skipped", "arrays as text are not compared")
    with pytest.raises(
        InvalidInputError, match=r"^text: got 'arrays as text', expected arrays of numbers, as in a Par"
    ):
        compare(frame(before), frame(after, 1), columns=["text"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" [0.1, -2, 3e-5, 4] ", True),
        (str([0.123456] * 1000), True),
        (str([0.123456] * 1000) + " and", False),
        ("[1, 2, 3, " + " " * 1_000_000 + "x", False),
        ("", False),
    ],
)
def test_text_of_an_array_is_recognised_by_its_start_and_end(text: str, expected: bool) -> None:
    assert is_array_text(text) is expected


def test_ranges_as_text_are_categories() -> None:
    ranges = np.random.default_rng(0).choice(["[0, 10]", "[10, 20]"], 500)
    report = compare(frame(ranges), frame(ranges, 1))
    assert (feature(report).verdict, feature(report).kind) == ("no drift", "categorical")


def test_equal_vectors_are_compared_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    frame = pd.DataFrame({"vector": [[1.0, 2.0]] * 500})
    assert compare(frame, frame).verdict == "no drift"
    assert not recwarn.list
