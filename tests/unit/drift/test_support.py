"""An estimate says if the reference cannot support it, and is not taken for the absence of drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.drift import DriftReport, DriftSettings, PerformanceEstimate, compare, to_html
from paceline.drift._columns import Column
from paceline.drift._support import find_unsupported_rows

Frame = pd.DataFrame
WRONG = DriftSettings(error="wrong")


def make_houses(seed: int, rows: int = 1500, *, latitude: float = 34.0, wrong: float = 0.1) -> Frame:
    """Return scores near 0 and 1 that do not depend on the latitude. A share of the labels contradicts them."""
    rng = np.random.default_rng(seed)
    score = np.where(rng.random(rows) < 0.5, 0.1, 0.9) + rng.uniform(-0.05, 0.05, rows)
    label = (score > 0.5) ^ (rng.random(rows) < wrong)
    year = [f"{2000 + row // 100}-01-{row % 28 + 1:02}" for row in range(rows)]
    return pd.DataFrame(
        {"latitude": rng.normal(latitude, 1, rows), "score": score, "sold": label.astype(float), "day": year}
    )


def make_prices(seed: int, rows: int = 1500, *, rooms: float = 5.0, noise: float = 1.0) -> Frame:
    """Return guesses of a number."""
    rng = np.random.default_rng(seed)
    number = rng.normal(rooms, 1, rows)
    return pd.DataFrame({"rooms": number, "guess": number, "price": number + rng.normal(0, noise, rows)})


def compare_houses(reference: Frame, current: Frame, **options: Any) -> DriftReport:
    options = {"columns": ["latitude"], "settings": WRONG} | options
    return compare(reference, current, prediction="score", actual="sold", **options)


def estimate_houses(reference: Frame, current: Frame, **options: Any) -> PerformanceEstimate:
    result = compare_houses(reference, current, **options).estimate
    assert result is not None
    return result


def realise(current: Frame) -> float:
    """Return the share of wrong predictions."""
    return float(((current["score"] >= 0.5) != (current["sold"] == 1)).mean())


def is_covered(result: PerformanceEstimate, error: float) -> bool:
    return abs(result.error - error) <= 2 * result.standard_error


def without_labels(frame: Frame) -> Frame:
    return frame.drop(columns=["sold", "price"], errors="ignore")


# --- inputs outside the reference ---------------------------------------------------------------------------------


def test_estimate_of_features_outside_the_reference_is_withheld() -> None:
    """The scores are as before, so CBPE estimates the error of the reference."""
    reference, current = make_houses(0), make_houses(1, latitude=44.0, wrong=0.5)
    report = compare_houses(reference, without_labels(current))
    result = report.estimate
    assert (result.verdict, result.error) == ("withheld", pytest.approx(result.reference_error, rel=0.1))
    assert result.unsupported > 0.95
    assert is_covered(result, realise(current))
    assert "of the rows without labels are unlike any rows of the reference (most in latitude)" in result.warning
    assert result.reason in report.reason
    assert "cannot be judged" in result.reason
    assert result.warning in result.reason


def test_estimate_of_scores_outside_the_reference_is_withheld() -> None:
    rng = np.random.default_rng(0)
    reference = make_houses(0)
    reference["score"] = rng.uniform(0.1, 0.4, 1500)
    reference["sold"] = (rng.random(1500) < 0.1) * 1.0
    current = make_houses(1).assign(score=rng.uniform(0.0, 0.02, 1500))
    current["sold"] = (rng.random(1500) < 0.6) * 1.0
    result = estimate_houses(reference, without_labels(current))
    assert (result.verdict, result.unsupported > 0.95) == ("withheld", True)
    assert "most in score" in result.warning
    assert is_covered(result, realise(current))


def test_estimate_of_absolute_errors_outside_the_reference_is_withheld() -> None:
    reference, current = make_prices(0), make_prices(1, rooms=14.0, noise=2.0)
    options: dict[str, Any] = {"columns": ["rooms"], "prediction": "guess", "actual": "price"}
    result = compare(reference, without_labels(current), **options).estimate
    assert (result.method, result.verdict) == ("DLE", "withheld")
    assert is_covered(result, float((current["guess"] - current["price"]).abs().mean()))


def test_rise_outside_the_reference_is_drift_with_a_note() -> None:
    """Inputs that the model has never seen are no reason to drop an alarm."""
    rng = np.random.default_rng(1)
    reference = make_houses(0)
    current = make_houses(1, latitude=44.0).assign(score=rng.uniform(0.45, 0.55, 1500))
    reference.loc[:300, "score"] = rng.uniform(0.45, 0.55, 301)
    reference.loc[:300, "sold"] = rng.integers(0, 2, 301)
    report = compare_houses(reference, without_labels(current))
    assert report.estimate.verdict == "drift"
    assert report.notes[-1] == f"The estimated model error is unreliable. {report.estimate.warning}"


def test_rows_outside_the_reference_widen_the_interval_of_their_period() -> None:
    inside, outside = make_houses(1, 1200), make_houses(2, 300, latitude=44.0)
    current = pd.concat([inside, outside.assign(day=outside["day"].str.replace("200", "203"))])
    result = estimate_houses(make_houses(0), without_labels(current), time="day")
    assert result.unsupported == pytest.approx(0.2, abs=0.02)
    widths = [period.standard_error for period in result.periods]
    shares = [period.unsupported for period in result.periods]
    assert max(shares[:9]) < 0.05
    assert min(shares[10:]) > 0.9
    assert max(widths[:9]) * 3 < min(widths[10:])


def test_bound_of_an_unsupported_row_is_what_its_label_can_give() -> None:
    """A Brier score of the prediction 0.5 is 0.25 for either label, so even unknown rows are known."""
    reference, current = make_houses(0).assign(score=0.5), make_houses(1, latitude=44.0).assign(score=0.5)
    result = estimate_houses(reference, without_labels(current), settings=DriftSettings(error="brier"))
    assert (result.verdict, result.error) == ("no drift", pytest.approx(0.25))
    assert (result.unsupported > 0.9, result.warning) == (True, "")


@pytest.mark.parametrize("error", ["brier", "log_loss", "auc"])
def test_unsupported_rows_are_bounded_for_each_kind_of_error(error: Any) -> None:
    reference, current = make_houses(0), make_houses(1, latitude=44.0)
    result = estimate_houses(reference, without_labels(current), settings=DriftSettings(error=error))
    assert result.verdict == "withheld"
    assert np.isfinite(result.standard_error)


def test_withheld_estimate_is_never_the_absence_of_drift() -> None:
    """No feature is compared here, so there is no other finding."""
    reference, current = make_houses(0), make_houses(1).assign(score=0.999)
    for frame in (reference, current):
        frame["latitude"] = [f"house {row}" for row in range(len(frame))]
    report = compare_houses(reference, without_labels(current))
    assert [feature.verdict for feature in report.features] == ["skipped"]
    assert (report.estimate.verdict, report.verdict) == ("withheld", "not enough data")
    assert report.estimate.reason in report.reason


# --- labels that contradict the estimate ----------------------------------------------------------------------------


def test_labels_that_contradict_the_estimate_withhold_it() -> None:
    reference, current = make_houses(0), make_houses(1, wrong=0.4)
    known = current.assign(sold=current["sold"].where(current.index < 500))
    result = estimate_houses(reference, known)
    assert (result.verdict, result.unsupported) == ("withheld", 0.0)
    assert result.warning.startswith("In the 500 rows with labels, the share of wrong predictions is 0.4")
    assert is_covered(result, realise(current[500:]))


def test_alarm_that_labels_contradict_is_withheld() -> None:
    """The uncertain scores of the current window are right more often than those of the reference."""
    rng = np.random.default_rng(0)
    reference, current = make_houses(0), make_houses(1)
    for frame in (reference, current):
        rows = frame.index % (5 if frame is reference else 1) == 0
        frame.loc[rows, "score"] = rng.uniform(0.4, 0.6, rows.sum())
    reference.loc[reference.index % 5 == 0, "sold"] = rng.integers(0, 2, 300)
    assert estimate_houses(reference, without_labels(current)).verdict == "drift"
    current["sold"] = (current["score"] >= 0.5) * 1.0
    known = current.assign(sold=current["sold"].where(current.index < 500))
    assert estimate_houses(reference, known).verdict == "withheld"


def test_difference_that_is_too_small_to_matter_does_not_withhold_the_estimate() -> None:
    reference, current = make_houses(0, 20_000), make_houses(1, 20_000, wrong=0.115)
    known = current.assign(sold=current["sold"].where(current.index < 15_000))
    result = estimate_houses(reference, known)
    assert result.difference > 3 * result.labelled_standard_error
    assert (result.verdict, result.warning) == ("no drift", "")


# --- no warning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [100, 500])
def test_windows_like_the_reference_have_no_unsupported_rows(rows: int) -> None:
    columns = [Column("latitude", "numeric"), Column("score", "numeric")]
    found = [
        find_unsupported_rows(columns, make_houses(2 * seed, rows), make_houses(2 * seed + 1, rows), 100, 0.01)
        for seed in range(50)
    ]
    assert sum(one.unsupported.any() for one in found) <= 2


def test_shift_within_the_reference_has_no_unsupported_rows() -> None:
    result = estimate_houses(make_houses(0, 5000), without_labels(make_houses(1, latitude=35.0)))
    assert (result.verdict, result.unsupported < 0.01, result.warning) == ("no drift", True, "")


def test_repeated_rows_are_supported() -> None:
    """A classifier that has learned a row recognises it when it occurs again."""
    rows = make_houses(1, 150)
    columns = [Column("latitude", "numeric"), Column("score", "numeric")]
    support = find_unsupported_rows(columns, make_houses(0, 5000), pd.concat([rows, rows]), 100, 0.01)
    assert support.unsupported.mean() < 0.05


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_few_equal_rows_are_accepted(rows: int) -> None:
    current = pd.concat([make_houses(1, 1)] * rows)
    support = find_unsupported_rows([Column("latitude", "numeric")], make_houses(0, 20), current, 100, 0.01)
    assert not support.unsupported.any()


def test_new_category_is_unsupported_but_rare_ones_are_like_each_other() -> None:
    rng = np.random.default_rng(0)
    town = Column("town", "categorical")
    reference = pd.DataFrame({"town": rng.integers(0, 1500, 2000).astype(str)})
    rare = pd.DataFrame({"town": rng.integers(0, 1500, 1000).astype(str)})
    assert not find_unsupported_rows([town], reference, rare, 100, 0.01).unsupported.any()
    reference = pd.DataFrame({"town": np.repeat(["Rome", "Oslo"], 1000)})
    current = pd.DataFrame({"town": np.repeat(["Rome", "Lima"], 300)})
    assert (
        find_unsupported_rows([town], reference, current, 100, 0.01).unsupported.tolist()
        == [False] * 300 + [True] * 300
    )


# --- errors that depend on each other -------------------------------------------------------------------------------


def test_interval_covers_errors_that_differ_from_day_to_day() -> None:
    """Each day has its own share of wrong predictions, which neither scores nor features show."""
    rng = np.random.default_rng(0)

    def make_days(seed: int, days: int) -> Frame:
        parts = [make_houses(1000 * seed + day, 50, wrong=rng.choice([0.02, 0.3])) for day in range(days)]
        return pd.concat([part.assign(day=day) for day, part in enumerate(parts)], ignore_index=True)

    reference, windows = make_days(0, 100), [make_days(seed, 6) for seed in range(1, 13)]
    results = [estimate_houses(reference, without_labels(window), time="day") for window in windows]
    assert sum(is_covered(result, realise(window)) for result, window in zip(results, windows, strict=True)) >= 11
    assert all(result.verdict == "no drift" for result in results)


# --- report ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def withheld() -> DriftReport:
    return compare_houses(make_houses(0), without_labels(make_houses(1, latitude=44.0)), time="day")


def test_withheld_estimate_has_no_error_in_the_summary(withheld: DriftReport) -> None:
    summary = withheld.summary()
    assert (summary.estimated_drift, summary.estimated_error) == (False, None)
    assert "cannot be judged" in summary.reason


def test_page_shows_a_withheld_estimate_and_its_warning(withheld: DriftReport) -> None:
    page = to_html(withheld)
    assert '<span class="badge withheld">' in page
    assert f"Unreliable: {withheld.estimate.warning}" in page


def test_report_of_an_earlier_version_has_no_support(withheld: DriftReport) -> None:
    assert DriftReport.from_dict(withheld.to_dict()) == withheld
    data = withheld.to_dict()
    for part in (data["estimate"], *data["estimate"]["periods"]):
        del part["unsupported"]
    del data["estimate"]["warning"]
    estimate = DriftReport.from_dict(data).estimate
    assert (estimate.unsupported, estimate.warning, estimate.periods[0].unsupported) == (None, "", None)
