"""Errors of predictions without labels are estimated, and a rise that follows from the features or scores is drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.drift import DriftReport, DriftSettings, PerformanceEstimate, compare, to_html
from paceline.drift._cross_fit import cross_fit
from paceline.drift._estimates import estimate_performance
from paceline.drift._learners import Calibrator
from paceline.drift.prediction_errors import ErrorKind, compute_errors
from paceline.errors import InvalidInputError

Frame = pd.DataFrame


def make_scores(seed: int, rows: int = 2000, *, level: float = 2.0, bias: float = 0.0) -> Frame:
    """Return scores of a classifier that is overconfident. A lower ``level`` makes labels less certain.

    ``bias`` is concept drift: it moves the probability of the label that belongs to a feature.
    """
    rng = np.random.default_rng(seed)
    temp = rng.normal(level, 1, rows)
    late = (rng.random(rows) < 1 / (1 + np.exp(-(temp - bias)))).astype(int)
    hour = pd.date_range("2013-01-01", periods=rows, freq="h").strftime("%Y-%m-%d %H:00")
    return pd.DataFrame({"temp": temp, "score": 1 / (1 + np.exp(-1.5 * temp)), "late": late, "hour": hour})


def make_guesses(seed: int, rows: int = 2000, *, level: float = 0.0, bias: float = 0.0) -> Frame:
    """Return guesses of a number whose noise grows with a feature, and differs by carrier."""
    rng = np.random.default_rng(seed)
    wind = rng.normal(level, 1, rows)
    carrier = rng.choice(["AA", "UA"], rows)
    noise = np.exp(0.7 * wind) * np.where(carrier == "UA", 2.0, 1.0)
    guess = 3 * wind
    return pd.DataFrame(
        {"wind": wind, "carrier": carrier, "guess": guess, "delay": guess + bias + rng.normal(0, noise)}
    )


def compare_windows(reference: Frame, current: Frame, **options: Any) -> DriftReport:
    """Compare windows with the label ``late`` or ``delay``."""
    if "score" in reference:
        return compare(reference, current, columns=["temp"], prediction="score", actual="late", **options)
    return compare(reference, current, columns=["wind", "carrier"], prediction="guess", actual="delay", **options)


def estimate(reference: Frame, current: Frame, **options: Any) -> PerformanceEstimate:
    """Return the estimate of a comparison."""
    report = compare_windows(reference, current, **options)
    assert report.estimate is not None
    return report.estimate


def realise(reference: Frame, current: Frame, error: str) -> float:
    """Return the mean error according to the labels."""
    prediction, actual = ("score", "late") if "score" in reference else ("guess", "delay")
    errors = compute_errors(reference, current, prediction, actual, error=error)  # type: ignore[arg-type]
    if error != "auc":
        return float(errors.current.mean())
    classes = current["late"].to_numpy()
    return float(np.mean([errors.current[classes == label].mean() for label in (0, 1)]))


def rise_p_value(reference: Frame, current: Frame, error: ErrorKind = "brier", threshold: float = 0.5) -> float:
    """Return the p-value of a rise without the bounds of unsupported rows, whose classifier takes most of the time."""
    scores = np.concatenate([reference["score"], current["score"]])
    learner = Calibrator(error, threshold, scores, reference["late"].to_numpy(float))
    return cross_fit(learner).rise_p_value(np.arange(len(current)))


def without_labels(frame: Frame) -> Frame:
    return frame.drop(columns=["late", "delay"], errors="ignore")


# --- shifts of the features ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", ["auto", "brier", "log_loss", "wrong", "auc"])
def test_shift_that_raises_the_error_of_probabilities_is_estimated(error: str) -> None:
    reference, current = make_scores(0), make_scores(1, level=0.5)
    result = estimate(reference, without_labels(current), settings=DriftSettings(error=error))
    realised = realise(reference, current, error)
    assert (result.method, result.verdict, result.rows, result.labelled_rows) == ("CBPE", "drift", 2000, 0)
    assert result.reference_error == pytest.approx(realise(reference, reference, error))
    assert realised > 1.3 * result.reference_error
    assert result.error == pytest.approx(realised, rel=0.1)


def test_shift_that_raises_the_absolute_error_is_estimated() -> None:
    reference, current = make_guesses(0), make_guesses(1, level=1.0)
    result = estimate(reference, without_labels(current))
    realised = realise(reference, current, "absolute")
    assert (result.method, result.verdict) == ("DLE", "drift")
    assert realised > 1.7 * result.reference_error
    assert result.error == pytest.approx(realised, rel=0.15)


def test_share_of_wrong_classes_is_estimated_from_the_features() -> None:
    def classes(seed: int, night: float) -> Frame:
        rng = np.random.default_rng(seed)
        dark = rng.random(3000) < night
        late = rng.integers(0, 3, 3000)
        wrong = rng.random(3000) < np.where(dark, 0.6, 0.1)
        names = np.array(["no", "little", "much"])
        return pd.DataFrame({"temp": dark, "late": names[late], "score": names[(late + wrong) % 3]})

    reference, current = classes(0, 0.2), classes(1, 0.7)
    result = estimate(reference, without_labels(current))
    assert (result.method, result.verdict, result.measure) == ("DLE", "drift", "share of wrong predictions")
    assert result.error == pytest.approx(realise(reference, current, "wrong"), rel=0.1)


def test_shift_that_lowers_the_error_is_not_drift_of_the_estimate() -> None:
    result = estimate(make_scores(0, level=0.5), without_labels(make_scores(1, level=2.0)))
    assert result.verdict == "no drift"
    assert result.error < result.reference_error
    assert result.p_value > 0.99


def test_rise_below_the_threshold_is_not_drift() -> None:
    reference, current = make_scores(0), without_labels(make_scores(1, level=1.2))
    assert estimate(reference, current).verdict == "drift"
    result = estimate(reference, current, settings=DriftSettings(estimate_threshold=0.9))
    assert (result.verdict, result.p_value < 0.001) == ("no drift", True)


def test_p_values_without_a_shift_are_below_10_percent_at_the_nominal_rate() -> None:
    """The bounds are those of 99.9 % of the binomial distribution."""
    alarms = sum(rise_p_value(make_scores(2 * seed, 300), make_scores(2 * seed + 1, 300)) < 0.1 for seed in range(200))
    assert 8 <= alarms <= 34


def test_windows_of_guesses_without_a_shift_raise_alarms_at_most_at_the_nominal_rate() -> None:
    """Any significant rise counts here. At 10 %, the bound is that of 99.9 % of the binomial distribution."""
    settings = DriftSettings(significance=0.1, estimate_threshold=1e-9)
    windows = ((make_guesses(2 * seed, 300), without_labels(make_guesses(2 * seed + 1, 300))) for seed in range(25))
    assert sum(estimate(*pair, settings=settings).verdict == "drift" for pair in windows) <= 8


@pytest.mark.parametrize(("make", "windows"), [(make_scores, 100), (make_guesses, 25)])
def test_realised_error_is_within_two_standard_errors_of_the_estimate(make: Any, windows: int) -> None:
    level = {make_scores: 1.0, make_guesses: 0.5}[make]
    inside = 0
    for seed in range(windows):
        result = estimate(make(2 * seed, 1000), make(2 * seed + 1, 300, level=level))
        inside += abs(result.difference) <= 2 * result.labelled_standard_error
    assert inside / windows >= 0.88


@pytest.mark.parametrize(("share", "rows"), [(0.3, (500, 10_000)), (0.01, (3000, 20_000))])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_standard_error_covers_the_unknown_share_of_positive_rows(
    share: float, rows: tuple[int, int], spread: float
) -> None:
    """In a current window that is much larger than the reference, nearly all variance comes from the reference."""

    def draw(rows: int) -> Frame:
        score = 1 / (1 + np.exp(-rng.normal(np.log(share / (1 - share)), spread, rows)))
        return pd.DataFrame({"score": score, "late": (rng.random(rows) < score) * 1.0})

    outside = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        reference, current = (draw(number) for number in rows)
        errors = compute_errors(reference, current, "score", "late", error="brier")
        result = estimate_performance([], reference, current, "score", "late", errors, DriftSettings())
        outside += abs(result.difference) > 2 * result.labelled_standard_error
    assert outside / 60 < 0.15


@pytest.mark.parametrize("error", ["brier", "log_loss", "wrong", "auc"])
def test_ten_rows_of_a_class_suffice(error: str) -> None:
    reference = make_scores(0)
    reference["late"] = (reference.index % 200 == 0).astype(int)
    result = estimate(reference, without_labels(make_scores(1)), settings=DriftSettings(error=error))
    assert result.verdict == "no drift"
    assert np.isfinite([result.error, result.standard_error]).all()


def test_fold_without_a_class_can_be_estimated() -> None:
    learner = Calibrator("auc", 0.5, np.linspace(0, 1, 30), np.eye(1, 20)[0])
    learner.split = lambda: iter([(np.arange(1, 20), np.arange(1)), (np.arange(19), np.arange(19, 20))] * 5)
    result = cross_fit(learner)
    assert np.isfinite(result.error(np.arange(10))).all()


# --- what an estimate cannot see ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_scores, make_guesses])
def test_concept_drift_is_invisible_until_labels_show_it(make: Any) -> None:
    """The relation of features and labels changes, but not the features: a documented limit of the methods."""
    reference, current = make(0), make(1, bias=4.0)
    report = compare_windows(reference, without_labels(current))
    assert report.verdict == "no drift"
    assert report.estimate.error == pytest.approx(report.estimate.reference_error, rel=0.1)
    later = compare_windows(reference, current)
    assert (later.estimate.verdict, later.concept.verdict, later.verdict) == ("skipped", "drift", "drift")
    assert later.estimate.labelled_error == pytest.approx(report.estimate.error)
    assert later.estimate.difference > 10 * later.estimate.labelled_standard_error


# --- labels that come later ---------------------------------------------------------------------------------------


def test_errors_of_labelled_rows_are_realised_and_others_are_estimated() -> None:
    reference, current = make_scores(0), make_scores(1, level=0.5)
    current["late"] = current["late"].where(current.index < 1200)
    report = compare_windows(reference, current)
    labelled, others = current[:1200], without_labels(current[1200:])
    assert report.concept.current_rows == report.estimate.labelled_rows == 1200
    assert report.concept.error_current == report.estimate.realised_error == realise(reference, labelled, "brier")
    assert report.estimate.error == pytest.approx(estimate(reference, others).error)
    assert report.estimate.difference == report.estimate.realised_error - report.estimate.labelled_error
    assert report.drifted_parts == ["(concept)", "(estimate)", "temp"]


def test_labels_of_the_current_window_do_not_change_the_estimate() -> None:
    reference, current = make_guesses(0), make_guesses(1)
    inverted = current.assign(delay=-current["delay"])
    assert estimate(reference, current).labelled_error == estimate(reference, inverted).labelled_error


def test_window_with_all_labels_has_no_verdict_on_the_estimate() -> None:
    result = estimate(make_scores(0), make_scores(1, level=0.5))
    assert (result.verdict, result.error, result.p_value) == ("skipped", None, None)
    assert result.reason == "All rows with a prediction have a label."
    assert abs(result.difference) < 4 * result.labelled_standard_error


def test_periods_follow_the_time_and_show_where_the_error_rises() -> None:
    early, late = make_scores(1, 1000), make_scores(2, 1000, level=0.5)
    current = pd.concat([early, late.assign(hour=late["hour"].str.replace("2013", "2014"))])
    current["late"] = current["late"].where(current["hour"] < "2013-02-01")
    shuffled = current.sample(frac=1, random_state=0)
    result = estimate(make_scores(0), shuffled, time="hour")
    assert [p.rows for p in result.periods] == [167] * 8 + [166] * 4
    assert [p.start for p in result.periods] == sorted(p.start for p in result.periods)
    assert result.periods[-1].end == current["hour"].max()
    assert max(p.error for p in result.periods[:6]) < min(p.error for p in result.periods[6:])
    assert sum(p.labelled_rows for p in result.periods) == current["late"].notna().sum()
    assert [p.realised_error is None for p in result.periods] == [p.labelled_rows < 100 for p in result.periods]
    assert {p.labelled_rows for p in result.periods} == {0, 76, 167}
    assert estimate(make_scores(0), shuffled).periods == ()


def test_rows_that_are_sorted_by_time_keep_their_labels() -> None:
    """The reference window has a time column, too, and is sorted with the current one."""
    reference, current = make_guesses(0, 600), make_guesses(1, 600)
    for frame in (reference, current):
        frame["day"] = np.arange(600)[::-1]
    forwards = estimate(reference.sort_values("day"), current.sort_values("day"), time="day")
    assert estimate(reference, current, time="day") == forwards


# --- difficult data -----------------------------------------------------------------------------------------------


def test_missing_values_are_accepted() -> None:
    reference, current = make_guesses(0), make_guesses(1)
    for frame in (reference, current):
        frame.loc[::7, "wind"] = np.nan
        frame.loc[::11, "guess"] = np.nan
        frame.loc[::13, "delay"] = np.nan
    result = estimate(reference, without_labels(current))
    assert (result.verdict, result.reference_rows, result.rows) == ("no drift", 1678, 1818)


@pytest.mark.parametrize("label", [0, 1])
def test_reference_with_one_class_is_not_enough_data(label: int) -> None:
    result = estimate(make_scores(0).assign(late=label), without_labels(make_scores(1)))
    assert (result.verdict, result.error) == ("not enough data", None)
    counts = {1: "2000 rows with the label 1 and 0 with 0", 0: "0 rows with the label 1 and 2000 with 0"}[label]
    assert result.reason == f"The reference has {counts}; the minimum is 10."


def test_constant_predictions_are_estimated() -> None:
    reference, current = make_scores(0).assign(score=0.5), make_scores(1, level=0.5).assign(score=0.5)
    result = estimate(reference, without_labels(current))
    assert (result.verdict, result.error) == ("no drift", pytest.approx(0.25))
    guesses = make_guesses(0).assign(guess=1.0, delay=1.0)
    result = estimate(guesses, without_labels(guesses))
    assert (result.verdict, result.error, result.standard_error) == ("no drift", 0.0, 0.0)


@pytest.mark.parametrize(
    ("reference_rows", "labelled", "unlabelled", "reason"),
    [
        (99, 0, 500, "99 reference rows have a prediction and a label; the minimum is 100."),
        (500, 200, 99, "99 current rows have no label yet; the minimum is 100."),
    ],
)
def test_few_rows_are_not_enough_data(reference_rows: int, labelled: int, unlabelled: int, reason: str) -> None:
    reference, current = make_scores(0, 500), make_scores(1, labelled + unlabelled)
    reference["late"] = reference["late"].where(reference.index < reference_rows)
    current["late"] = current["late"].where(current.index < labelled)
    result = estimate(reference, current)
    assert (result.verdict, result.error, result.reason) == ("not enough data", None, reason)


def test_shift_that_leaves_the_error_unchanged_raises_few_alarms() -> None:
    """The labels are noise, so that no shift of the scores changes the error by more than the calibration's noise."""
    alarms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        reference, current = make_scores(2 * seed, 200), make_scores(2 * seed + 1, 200, level=0.0)
        reference["late"] = rng.integers(0, 2, 200)
        # Every row is predicted as class 0.
        alarms += rise_p_value(reference, current, error="wrong", threshold=0.999) <= DriftSettings().significance
    assert alarms <= 5


def test_probabilities_outside_0_and_1_are_rejected() -> None:
    current = without_labels(make_scores(1))
    current.loc[5, "score"] = 1.2
    with pytest.raises(InvalidInputError, match=r"^score: got 1.2, expected a class or a probability between 0 and 1"):
        compare_windows(make_scores(0), current)
    result = estimate(make_scores(0), current, settings=DriftSettings(error="auc"))  # any scores have a rank
    assert result.verdict == "no drift"


@pytest.mark.parametrize("make", [make_scores, make_guesses])
def test_predictions_of_another_type_are_rejected(make: Any) -> None:
    current = without_labels(make(1))
    name = "score" if "score" in current else "guess"
    current[name] = "high"
    with pytest.raises(InvalidInputError, match=f"^{name}: got 'high', expected numbers in the current window"):
        compare_windows(make(0), current)
    current[name] = np.inf
    with pytest.raises(InvalidInputError, match=f"^{name}: got inf, expected finite numbers"):
        compare_windows(make(0), current)


@pytest.mark.parametrize("size", [1e31, -1e160, 1e200])
@pytest.mark.parametrize("window", ["reference", "current", "current without labels"])
def test_huge_predictions_are_rejected(size: float, window: str) -> None:
    reference, current = make_guesses(0, 300), make_guesses(1, 300)
    if window == "current without labels":
        current = without_labels(current)
    (reference if window == "reference" else current).loc[7, "guess"] = size
    with pytest.raises(InvalidInputError, match=r"^guess: got .*, expected numbers between -1e\+30 and 1e\+30 in the "):
        compare_windows(reference, current)


@pytest.mark.filterwarnings("error")
def test_unit_of_large_predictions_does_not_change_the_verdict() -> None:
    def scale(frame: Frame, unit: float) -> Frame:
        return frame.assign(guess=frame["guess"] * unit, delay=frame["delay"] * unit)

    small, large = (
        estimate(scale(make_guesses(0), unit), without_labels(scale(make_guesses(1, level=0.2), unit)))
        for unit in (1.0, 1e28)
    )
    assert (large.verdict, large.method) == (small.verdict, "DLE")
    assert large.error == pytest.approx(small.error * 1e28, rel=0.01)
    assert large.p_value == pytest.approx(small.p_value, rel=0.2)


def test_new_class_among_the_labels_makes_the_predictions_classes() -> None:
    reference, current = make_scores(0).round({"score": 0}), make_scores(1).round({"score": 0})
    reference.loc[0, "score"] = 0.25
    current["late"] = current["late"].where(current.index < 1000)
    current.loc[0, "late"] = 2
    result = estimate(reference, current, settings=DriftSettings(error="wrong"))
    assert (result.method, result.verdict, result.labelled_rows) == ("DLE", "no drift", 1000)


@pytest.mark.parametrize("make", [make_scores, make_guesses])
@pytest.mark.parametrize("missing", [None, np.nan])
def test_window_without_predictions_is_bad_data_and_has_no_estimate(make: Any, missing: Any) -> None:
    reference, current = make(0, 600), make(1, 600)
    name = "score" if "score" in current else "guess"
    for window in (current, without_labels(current)):
        report = compare_windows(reference, window.assign(**{name: missing}))
        assert (report.verdict, report.estimate) == ("bad data", None)
        [problem] = report.quality
        assert (problem.kind, problem.column, problem.severe) == ("no values", name, True)
    rare = reference.assign(**{name: reference[name].where(reference.index < 1)})
    report = compare_windows(rare, current.assign(**{name: missing}))  # values are missing by chance
    assert (report.verdict, report.quality) == ("no drift", ())


def test_label_column_may_be_missing_in_the_current_window_only() -> None:
    reference, current = make_scores(0), without_labels(make_scores(1))
    report = compare_windows(reference, current)
    assert report.concept.verdict == "not enough data"
    assert report.notes == ("The current window has no column late, so its rows have no labels.",)
    with pytest.raises(InvalidInputError, match=r"^actual: got 'lat', .* of the reference or current window .*'late'"):
        compare(reference, current, columns=["temp"], prediction="score", actual="lat")


def test_without_labelled_predictions_in_the_reference_a_labelled_window_has_no_estimate() -> None:
    reference = make_scores(0)[["temp", "late"]]
    report = compare(reference, make_scores(1), columns=["temp"], prediction="score", actual="late")
    assert report.estimate is None
    report = compare(reference, without_labels(make_scores(1)), columns=["temp"], prediction="score", actual="late")
    assert report.estimate.reason == "0 reference rows have a prediction and a label; the minimum is 100."


# --- report -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> DriftReport:
    current = make_scores(1, level=0.5)
    current["late"] = current["late"].where(current.index < 1200)
    return compare_windows(make_scores(0), current, time="hour")


def test_estimated_drift_is_in_the_reason_and_the_summary(report: DriftReport) -> None:
    assert "Without labels, the Brier score of 800 rows is estimated at 0.196 (up from 0.112, CBPE)." in report.reason
    summary = report.summary()
    assert (summary.estimated_drift, summary.estimated_error) == (True, report.estimate.error)
    without = compare(make_scores(0)[["temp"]], make_scores(1)[["temp"]]).summary()
    assert (without.estimated_drift, without.estimated_error) == (False, None)


def test_report_with_an_estimate_round_trips_through_json(report: DriftReport) -> None:
    assert len(report.estimate.periods) == 12
    assert DriftReport.from_dict(report.to_dict()) == report
    data = report.to_dict()
    del data["estimate"]  # a report of an earlier version
    assert DriftReport.from_dict(data).estimate is None


def test_page_shows_estimated_and_realised_errors(report: DriftReport) -> None:
    page = to_html(report)
    facts = ["Estimated model error", "2,000 reference rows: realised", "800 current rows without labels: estimated"]
    facts += [
        "1,200 current rows with labels: estimated",
        ", realised",
        ", difference",
        "Estimated Brier score by period",
    ]
    places = [page.index(fact) for fact in facts]
    assert places == sorted(places)


def make_days(rng: np.random.Generator, days: int, level: float = 1.5) -> Frame:
    """Return 480 rows with calibrated scores, or 40 on each of 60 days; each day shifts them by its own amount."""
    day = np.repeat(np.arange(days), 40 if days == 60 else 480 // days)
    score = 1 / (1 + np.exp(-(level + 0.7 * rng.normal(size=days)[day] + rng.normal(size=len(day)))))
    return pd.DataFrame({"score": score, "late": (rng.random(len(day)) < score) * 1.0, "day": day})


@pytest.mark.parametrize(("days", "least", "most"), [(12, 20, 1), (1, 0, 1)])
def test_days_with_other_scores_are_compared_with_the_differences_between_days(
    days: int, least: int, most: int
) -> None:
    """Alarms are counted in 24 windows, without drift and with much less certain scores."""
    alarms = []
    for level in (1.5, 0.5):
        rng = np.random.default_rng(1)
        found = []
        for _ in range(24):
            reference, current = make_days(rng, 60), make_days(rng, days, level).assign(late=np.nan)
            errors = compute_errors(reference, current, "score", "late")
            result = estimate_performance([], reference, current, "score", "late", errors, DriftSettings(), "day")
            assert result is not None
            assert result.p_value is not None
            found.append(result.p_value <= 0.01)
        alarms.append(sum(found))
    assert alarms[0] <= most
    assert alarms[1] >= least
