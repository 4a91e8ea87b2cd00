"""Concept drift means that the error is higher than in the reference, for rows that depend on each other, too."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter

from paceline.drift import ConceptDrift, compare
from paceline.drift._dependence import Units
from paceline.drift._level import ErrorRows, compare_means
from paceline.drift.concept import detect_concept_drift
from paceline.drift.prediction_errors import RANKING, WRONG, compute_errors

Floats = NDArray[np.float64]
STREAMS = 60


def draw(rng: np.random.Generator, *parts: tuple[int, float]) -> Floats:
    """Return right (0) and wrong (1) predictions: for each part, its number of rows and share of wrong predictions."""
    return np.concatenate([(rng.random(rows) < share) * 1.0 for rows, share in parts])


def detect(reference: Floats, current: Floats) -> ConceptDrift:
    return detect_concept_drift(reference, current, measure=WRONG)


def count_alarms(streams: list[Floats]) -> int:
    """Return the number of streams whose second half has an alarm."""
    return sum(detect(*np.split(stream, 2)).verdict == "drift" for stream in streams)


@pytest.mark.parametrize("seed", range(5))
def test_window_worse_than_the_reference_throughout_is_drift(seed: int) -> None:
    rng = np.random.default_rng(seed)
    concept = detect(draw(rng, (2000, 0.1), (300, 0.4)), draw(rng, (1000, 0.4)))
    assert concept.verdict == "drift"
    before, after = concept.error_reference, concept.error_current
    assert f"rose from {before:.3g} in the reference to {after:.3g} in the current window (p " in concept.reason


@pytest.mark.parametrize("seed", range(5))
def test_window_better_than_the_reference_is_not_drift_although_the_error_rises_inside(seed: int) -> None:
    rng = np.random.default_rng(seed)
    concept = detect(draw(rng, (2000, 0.2)), draw(rng, (500, 0.0), (500, 0.15)))
    assert concept.verdict == "no drift"
    assert concept.changes[-1].is_rise
    assert "did not rise significantly" in concept.reason


def test_rise_at_the_end_of_a_better_window_is_drift_and_located() -> None:
    rng = np.random.default_rng(0)
    concept = detect(draw(rng, (2000, 0.1)), draw(rng, (800, 0.0), (200, 0.3)))
    assert concept.error_current < concept.error_reference
    assert concept.verdict == "drift"
    change = concept.changes[-1]
    assert change.row == pytest.approx(800, abs=20)
    assert f"rose from {concept.error_reference:.3g} in the reference to {change.error_after:.3g} (p " in concept.reason
    place = f"at row {change.row} of the current window; adwin detected it at row {change.detected_row}."
    assert concept.reason.endswith(place)


def test_significant_rise_below_the_threshold_is_not_drift_and_is_stated() -> None:
    rng = np.random.default_rng(0)
    concept = detect(draw(rng, (100_000, 0.1)), draw(rng, (100_000, 0.115)))
    assert concept.verdict == "no drift"
    assert "by less than the relevant rise of 0.02" in concept.reason


def test_short_reference_without_a_wrong_prediction_does_not_count_as_exact() -> None:
    current = np.zeros(10_000)
    current[::40] = 1
    assert detect(np.zeros(100), current).verdict == "no drift"
    assert detect(np.zeros(2000), current).verdict == "drift"


def test_window_without_reference_errors_is_judged_by_the_changes_inside_it() -> None:
    rng = np.random.default_rng(0)
    empty = np.empty(0)
    assert detect(empty, draw(rng, (1000, 0.4))).verdict == "no drift"
    concept = detect(empty, draw(rng, (800, 0.1), (200, 0.5)))
    assert concept.verdict == "drift"
    assert concept.changes[0].row == pytest.approx(800, abs=20)
    assert "in the reference" not in concept.reason


# --- rows that depend on each other ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [200, 1000])
def test_stationary_numbers_with_a_correlation_of_09_are_not_drift(rows: int) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1 * (1 - 0.9**2) ** 0.5, (STREAMS, 2 * rows + 200))
    streams = np.clip(0.3 + lfilter([1], [1, -0.9], noise)[:, 200:], 0, 1)
    assert count_alarms(list(streams)) <= 2


def test_stationary_runs_of_wrong_predictions_are_not_drift() -> None:
    rng = np.random.default_rng(0)
    streams = []
    for _ in range(STREAMS):
        drawn = np.where(rng.random(2000) < 0.1, np.arange(2000), 0)  # the row before counts again in nine of ten rows
        streams.append((rng.random(2000) < 0.15)[np.maximum.accumulate(drawn)] * 1.0)
    assert count_alarms(streams) <= 2


def test_rise_in_autocorrelated_errors_is_drift() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1 * (1 - 0.9**2) ** 0.5, 4200)
    errors = 0.3 + lfilter([1], [1, -0.9], noise)[200:] + np.repeat([0.0, 0.15], 2000)
    assert detect(*np.split(errors, 2)).verdict == "drift"


def test_groups_of_equal_rows_are_not_drift() -> None:
    rng = np.random.default_rng(0)
    units = (Units(np.arange(1000) // 10), Units(np.arange(1000) // 10))
    alarms = 0
    for _ in range(STREAMS):
        windows = [np.repeat(draw(rng, (100, 0.15)), 10) for _ in range(2)]
        alarms += detect_concept_drift(*windows, measure=WRONG, units=units).verdict == "drift"
    assert alarms <= 2
    windows = [np.repeat(draw(rng, (100, share)), 10) for share in (0.15, 0.6)]
    assert detect_concept_drift(*windows, measure=WRONG, units=units).verdict == "drift"


def test_days_that_differ_are_not_drift_if_the_time_is_known() -> None:
    rng = np.random.default_rng(0)
    days = np.repeat(pd.date_range("2026-01-01", periods=60).strftime("%Y-%m-%d"), 50)
    alarms = 0
    for _ in range(20):
        wrong = rng.random(3000) < 0.2 + np.repeat(rng.normal(0, 0.08, 60), 50)
        frame = pd.DataFrame({"x": rng.normal(size=3000), "predicted": wrong * 1, "actual": 0, "day": days})
        report = compare(frame[:1500], frame[1500:], columns=["x"], prediction="predicted", actual="actual", time="day")
        alarms += report.concept is not None and report.concept.verdict == "drift"
    assert alarms <= 1


def test_one_day_is_compared_with_the_differences_between_the_days_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(STREAMS):
        wrong = (rng.random(4200) < 0.2 + np.repeat(rng.normal(0, 0.06, 21), 200)) * 1.0
        units = (Units(np.repeat(np.arange(20), 200), True), Units(np.zeros(200, int), True))
        alarms += detect_concept_drift(wrong[:4000], wrong[4000:], measure=WRONG, units=units).verdict == "drift"
    assert alarms <= 2


# --- seasons -----------------------------------------------------------------------------------------------------


def make_week(rng: np.random.Generator, days: NDArray[np.int64], weekend: float = 0.3) -> Floats:
    return (rng.random(len(days)) < np.where(days >= 5, weekend, 0.1)) * 1.0


def test_equal_weekly_pattern_is_not_drift_and_leaves_no_changes() -> None:
    rng = np.random.default_rng(0)
    days = np.arange(2800) // 100 % 7
    found = []
    for _ in range(STREAMS):
        windows = [make_week(rng, days) for _ in range(2)]
        found.append(detect_concept_drift(*windows, measure=WRONG, seasons=(days, days)))
    assert sum(concept.verdict == "drift" for concept in found) <= 1
    assert sum(bool(concept.changes) for concept in found) <= 1


def test_saturdays_are_compared_with_the_saturdays_of_the_reference() -> None:
    rng = np.random.default_rng(0)
    days, saturdays = np.arange(14_000) // 100 % 7, np.full(1000, 5)
    reference = make_week(rng, days)
    for share, verdict in ((0.3, "no drift"), (0.45, "drift")):
        current = draw(rng, (1000, share))
        concept = detect_concept_drift(reference, current, measure=WRONG, seasons=(days, saturdays))
        assert concept.verdict == verdict
    assert detect(reference, draw(rng, (1000, 0.3))).verdict == "drift"


def test_rows_of_a_season_that_the_reference_lacks_do_not_count() -> None:
    rng = np.random.default_rng(0)
    seasons = (np.zeros(1000, int), np.repeat([0, 1], 500))
    reference, current = draw(rng, (1000, 0.1)), draw(rng, (500, 0.1), (500, 0.8))
    rows = [
        ErrorRows(e, Units(np.arange(1000), True), None, s) for e, s in zip((reference, current), seasons, strict=True)
    ]
    rise, p_value = compare_means(*rows)
    assert rise == pytest.approx(current[:500].mean() - reference.mean())
    assert p_value > 0.01


# --- the ranking error -------------------------------------------------------------------------------------------


def test_p_value_of_the_ranking_error_counts_the_variation_of_the_reference_scores() -> None:
    """If nothing changes, one in ten p-values is below 0.1, also if one of the classes is rare."""
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(200):
        late = [(rng.random(rows) < 0.2) * 1 for rows in (400, 600)]
        frames = [pd.DataFrame({"score": rng.normal(size=len(label)) + label, "late": label}) for label in late]
        errors = compute_errors(*frames, "score", "late", error="auc")
        assert errors.measure == RANKING
        classes = np.split(errors.classes, [400])
        rows = [
            ErrorRows(values, Units(np.arange(len(values)), True), labels)
            for values, labels in zip((errors.reference, errors.current), classes, strict=True)
        ]
        p_values.append(compare_means(*rows)[1])
    assert 0.05 <= np.mean(np.array(p_values) < 0.1) <= 0.15
