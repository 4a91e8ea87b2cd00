"""A rise in the error is detected and located as concept drift. Noise and an improved model are not drift."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from paceline.drift import ConceptDrift, DriftReport, DriftSettings, compare
from paceline.drift.concept import detect_concept_drift
from paceline.drift.prediction_errors import ABSOLUTE, MEASURES, RANKING, WRONG, ErrorKind, compute_errors
from paceline.errors import InvalidInputError


def make_predictions(seed: int, n: int, *, wrong_share: float, wrong_share_later: float | None = None) -> pd.DataFrame:
    """Return rows with a stable feature and the given shares of wrong predictions."""
    rng = np.random.default_rng(seed)
    late = rng.integers(0, 2, n)
    share = np.where(
        np.arange(n) < n // 2, wrong_share, wrong_share if wrong_share_later is None else wrong_share_later
    )
    predicted = np.where(rng.random(n) < share, 1 - late, late) * 0.8 + 0.1
    day = pd.date_range("2013-01-01", periods=n, freq="h").strftime("%Y-%m-%d %H:00")
    return pd.DataFrame({"temp": rng.normal(size=n), "predicted": predicted, "late": late, "day": day})


def compare_predictions(
    reference: pd.DataFrame, current: pd.DataFrame, **options: Any
) -> tuple[DriftReport, ConceptDrift]:
    """Compare two windows with predictions, and return the report and its concept drift."""
    report = compare(reference, current, prediction="predicted", actual="late", **options)
    return report, report.concept


def make_scores(seed: int, n: int, *, positives: float, skill: float) -> pd.DataFrame:
    """Return a stable feature, rare labels, and probabilities below 0.5 that follow a share ``skill`` of the labels."""
    rng = np.random.default_rng(seed)
    late = (rng.random(n) < positives).astype(int)
    followed = np.where(rng.random(n) < skill, late, (rng.random(n) < positives).astype(int))
    predicted = np.where(followed, rng.uniform(0.3, 0.45, n), rng.uniform(0, 0.1, n))
    return pd.DataFrame({"temp": rng.normal(size=n), "predicted": predicted, "late": late})


def test_rise_in_the_error_is_drift_with_its_position() -> None:
    current = make_predictions(1, 2000, wrong_share=0.1, wrong_share_later=0.4)
    report, concept = compare_predictions(make_predictions(0, 1000, wrong_share=0.1), current, time="day")
    assert report.verdict == "drift"
    assert report.drifted_features == []
    assert report.drifted_parts == ["(concept)"]
    [change] = concept.changes
    assert abs(change.row - 1000) <= 60
    assert change.at == current["day"][change.row]
    assert change.row <= change.detected_row
    assert change.error_after > change.error_before + 0.2
    assert change.at in report.reason


@pytest.mark.parametrize("detector", ["adwin", "ddm", "page_hinkley"])
def test_every_detector_finds_a_strong_rise(detector: str) -> None:
    _, concept = compare_predictions(
        make_predictions(0, 1000, wrong_share=0.1),
        make_predictions(1, 1000, wrong_share=0.5),
        settings=DriftSettings(detector=detector),
    )
    assert (concept.detector, concept.verdict) == (detector, "drift")


def test_constant_error_is_drift_in_at_most_4_of_200_streams() -> None:
    rng = np.random.default_rng(3)
    streams = [(rng.random(1000) < 0.2).astype(float) for _ in range(200)]
    alarms = sum(detect_concept_drift(s[:500], s[500:], measure=WRONG).verdict == "drift" for s in streams)
    assert alarms <= 4


def test_improved_model_is_reported_but_is_not_drift() -> None:
    _, concept = compare_predictions(
        make_predictions(0, 1000, wrong_share=0.5), make_predictions(1, 1000, wrong_share=0.1)
    )
    assert concept.verdict == "no drift"
    assert concept.changes
    assert not concept.changes[0].is_rise


def test_rise_below_the_threshold_is_not_drift_even_in_many_rows() -> None:
    rng = np.random.default_rng(0)
    before, after = ((rng.random(200_000) < share).astype(float) for share in (0.10, 0.115))
    report = detect_concept_drift(before, after, measure=WRONG)
    assert report.changes
    assert report.verdict == "no drift"


def test_missing_labels_are_not_enough_data() -> None:
    current = make_predictions(1, 500, wrong_share=0.9)
    current["late"] = current["late"].where(current.index < 60)
    report, concept = compare_predictions(make_predictions(0, 500, wrong_share=0.1), current)
    assert (report.verdict, concept.verdict) == ("no drift", "not enough data")
    assert "60 current rows" in concept.reason


def test_position_of_a_change_counts_rows_without_labels() -> None:
    late = np.resize([1.0, 0.0, np.nan, np.nan], 4000)  # half of the labels are unknown
    wrong = (np.random.default_rng(0).random(4000) < np.repeat([0.05, 0.5], 2000)) & ~np.isnan(late)
    current = pd.DataFrame({"predicted": np.where(wrong, 1 - late, np.nan_to_num(late)), "late": late})
    current["row"] = np.arange(4000)
    concept = compare(current[:2000], current, columns=["row"], prediction="predicted", actual="late").concept
    assert concept is not None
    assert concept.changes[0].row == pytest.approx(2000, abs=50)
    assert f"at row {concept.changes[0].row} of the current window" in concept.reason
    assert 2000 <= concept.changes[0].detected_row < 2500
    assert concept.curve[-1][0] == pytest.approx(3997, abs=50)


def test_reference_without_predictions_is_not_used() -> None:
    _, concept = compare_predictions(
        make_predictions(0, 500, wrong_share=0.1)[["temp"]],
        make_predictions(1, 2000, wrong_share=0.1, wrong_share_later=0.5),
    )
    assert (concept.verdict, concept.reference_rows) == ("drift", 0)


def test_numeric_predictions_have_absolute_errors() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(100, 10, 2000)
    frame = pd.DataFrame({"truth": truth, "guess": truth + rng.normal(0, np.repeat([2, 6], 1000))})
    errors = compute_errors(frame[:500], frame[500:], "guess", "truth")
    assert errors.measure == ABSOLUTE
    concept_drift = detect_concept_drift(errors.reference, errors.current, measure=errors.measure)
    assert concept_drift.verdict == "drift"
    assert abs(concept_drift.changes[0].row - 500) <= 100


def test_predictions_of_labels_of_any_type_are_right_or_wrong() -> None:
    frame = pd.DataFrame({"predicted": ["cat", "dog", 3, None], "actual": ["cat", "cat", "3", "dog"]}, dtype=object)
    errors = compute_errors(None, frame, "predicted", "actual")
    assert (errors.current.tolist(), errors.measure, errors.rows.tolist()) == ([0.0, 1.0, 0.0], WRONG, [0, 1, 2])


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (
            {"predicted": [3.0, 1.0], "actual": [0, 1]},
            {},
            "predicted: got 3.0, expected a class or a probability between 0 and 1",
        ),
        ({"predicted": [np.inf, 1.0], "actual": [2.5, 1]}, {}, "predicted: got inf, expected finite numbers"),
        (
            {"predicted": ["a"], "actual": ["b"]},
            {"error": "absolute"},
            "error: got 'absolute', expected 'wrong' or 'auto'",
        ),
        (
            {"predicted": [0.3, 0.2], "actual": [0, 2]},
            {"error": "brier"},
            "error: got 'brier', expected 'absolute', 'wrong' or 'auto', because 'actual' has numbers other than 0 and",
        ),
        (
            {"predicted": [1.5, 0.2], "actual": [0, 1]},
            {"error": "log_loss"},
            "predicted: got 1.5, expected a class or a probability between 0 and 1",
        ),
        (
            {"predicted": [0.3, 0.2], "actual": [0, 1]},
            {"error": "auc"},
            r"error: got 'auc', expected another kind of error, or a reference .* \(it has 0 rows with the label 1",
        ),
    ],
)
def test_invalid_predictions_are_rejected(
    frame: dict[str, list[object]], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidInputError, match="^" + message):
        compute_errors(None, pd.DataFrame(frame), "predicted", "actual", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("measure", [measure for measure in MEASURES.values() if measure != WRONG])
def test_ddm_is_rejected_unless_predictions_are_right_or_wrong(measure: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"^detector: got 'ddm', expected adwin or .* the {measure} .*'wrong'"):
        detect_concept_drift(np.ones(200), np.ones(200), measure=measure, detector="ddm")


def test_probabilities_are_right_or_wrong_for_ddm() -> None:
    frame = pd.DataFrame({"predicted": [0.6, 0.2], "late": [1, 1]})
    errors = compute_errors(None, frame, "predicted", "late", detector="ddm")
    assert (errors.measure, errors.current.tolist()) == (WRONG, [0.0, 1.0])


# --- kind of error -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guess", [0.4, 1.3])
def test_regression_whose_current_labels_are_0_and_1_keeps_absolute_errors(guess: float) -> None:
    rng = np.random.default_rng(0)
    reference = pd.DataFrame({"temp": rng.normal(size=500), "late": rng.poisson(1, 500), "predicted": 1.1})
    current = pd.DataFrame({"temp": rng.normal(size=500), "late": rng.integers(0, 2, 500), "predicted": guess})
    _, concept = compare_predictions(reference, current)
    assert (concept.measure, concept.reference_rows, concept.current_rows) == (ABSOLUTE, 500, 500)


@pytest.mark.parametrize(("before", "after"), [((0, 1), (0.1, 0.8)), ((0.1, 0.8), (0, 1))])
def test_probabilities_in_one_window_give_both_windows_the_same_measure(
    before: tuple[float, float], after: tuple[float, float]
) -> None:
    rng = np.random.default_rng(0)
    late = rng.integers(0, 2, 500)
    windows = [
        pd.DataFrame({"temp": rng.normal(size=500), "late": late, "predicted": np.where(late, *values[::-1])})
        for values in (before, after)
    ]
    _, concept = compare_predictions(*windows)
    assert (concept.measure, concept.reference_rows) == ("Brier score", 500)


@pytest.mark.parametrize(
    ("predicted", "actual", "measure"),
    [
        (["late", "late"], ["late", "early"], WRONG),
        (["a", "c"], ["a", "b"], WRONG),
        ([True, False], [True, True], WRONG),
        ([1, 0], [1.0, 1.0], WRONG),
        ([0.9, 0.2], [True, False], "Brier score"),
        ([0.9, 0.2], [1, 0], "Brier score"),
        ([Decimal("0.9"), Decimal("0.2")], [1, 0], "Brier score"),
        ([3.5, 0.2], [4, 2], ABSOLUTE),
        ([1, 0], [2, 0], ABSOLUTE),
    ],
)
@pytest.mark.parametrize("missing", [False, True])
def test_kind_of_error_follows_the_values(
    predicted: list[object], actual: list[object], measure: str, missing: bool
) -> None:
    """A missing value, which makes a column of true/false a column of objects, changes nothing."""
    extra: list[object] = [None] if missing else []
    frame = pd.DataFrame({"predicted": predicted + extra, "late": actual + extra})
    errors = compute_errors(None, frame, "predicted", "late")
    assert (errors.measure, len(errors.current)) == (measure, 2)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("wrong", [0.0, 1.0, 0.0, 1.0]),
        ("absolute", [0.5, 1.0, 0.2, 0.8]),
        ("brier", [0.25, 1.0, 0.04, 0.64]),
        ("log_loss", [0.6931, 13.8155, 0.2231, 1.6094]),
        # The reference's scores are 0.1 and 0.5 with the label 0, and 0.5 and 0.9 with the label 1.
        ("auc", [0.25, 1.0, 0.0, 0.5]),
    ],
)
def test_probabilities_have_the_error_of_the_chosen_kind(error: ErrorKind, expected: list[float]) -> None:
    reference = pd.DataFrame({"predicted": [0.1, 0.5, 0.5, 0.9], "late": [0, 0, 1, 1]})
    current = pd.DataFrame({"predicted": [0.5, 0.0, 0.2, 0.8], "late": [1, 1, 0, 0]})
    errors = compute_errors(reference, current, "predicted", "late", error=error)
    assert errors.current.round(4).tolist() == expected


def test_threshold_decides_which_probabilities_are_class_1() -> None:
    reference, current = (make_scores(i, 3000, positives=0.05, skill=1 - i) for i in (0, 1))
    settings = DriftSettings(error="wrong")
    report, concept = compare_predictions(reference, current, settings=settings)
    assert (report.verdict, concept.measure) == ("no drift", WRONG)
    report, concept = compare_predictions(reference, current, settings=replace(settings, threshold=0.2))
    assert (report.verdict, concept.error_reference) == ("drift", 0.0)


# --- rare classes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("positives", "rows"), [(0.05, 3000), (0.01, 8000)])
@pytest.mark.parametrize("error", ["auto", "brier", "log_loss", "auc"])
def test_fall_in_the_auc_is_drift_even_with_few_positives(error: ErrorKind, positives: float, rows: int) -> None:
    reference = make_scores(0, rows, positives=positives, skill=1)
    current = make_scores(1, rows, positives=positives, skill=0.06)
    report, concept = compare_predictions(reference, current, settings=DriftSettings(error=error))
    assert concept.auc_reference == 1
    assert concept.auc_current == pytest.approx(roc_auc_score(current["late"], current["predicted"]))
    assert concept.auc_current < 0.6
    assert (report.verdict, concept.reference_rows) == ("drift", rows)
    assert concept.changes[0].row < rows / 8


@pytest.mark.parametrize("error", ["auto", "brier", "log_loss", "auc"])
@pytest.mark.parametrize("positives", [0.01, 0.05, 0.5])
def test_same_probabilities_are_not_drift(error: ErrorKind, positives: float) -> None:
    windows = (make_scores(i, 3000, positives=positives, skill=0.5) for i in (0, 1))
    report, _ = compare_predictions(*windows, settings=DriftSettings(error=error))
    assert report.verdict == "no drift"


def test_ranking_error_of_the_reference_is_1_minus_its_auc() -> None:
    reference = make_scores(0, 3000, positives=0.01, skill=0.7)
    _, concept = compare_predictions(reference, reference, settings=DriftSettings(error="auc"))
    auc = roc_auc_score(reference["late"], reference["predicted"])
    assert concept.measure == RANKING
    assert (concept.error_reference, concept.error_current) == (pytest.approx(1 - auc), pytest.approx(1 - auc))
    assert concept.auc_reference == pytest.approx(auc)


def test_ranking_error_does_not_depend_on_the_share_of_positives() -> None:
    reference, current = make_scores(0, 4000, positives=0.05, skill=1), make_scores(1, 4000, positives=0.4, skill=1)
    _, concept = compare_predictions(reference, current, settings=DriftSettings(error="auc"))
    assert (concept.verdict, concept.error_current) == ("no drift", 0.0)


def test_rise_in_the_ranking_error_is_located_for_either_class() -> None:
    """In the second half of the current window, the scores of one class are those of the other class."""
    reference = make_scores(0, 6000, positives=0.05, skill=1)
    for label in (0, 1):
        current = make_scores(1, 6000, positives=0.05, skill=1)
        moved = (current["late"] == label) & (current.index >= 3000)
        current.loc[moved, "predicted"] = 0.4 - 0.35 * label
        _, concept = compare_predictions(reference, current, settings=DriftSettings(error="auc"))
        [change] = concept.changes
        assert abs(change.row - 3000) <= 100
        assert change.row <= change.detected_row
        assert change.error_before == 0
        assert change.error_after > 0.2
        assert max(error for _, error in concept.curve) > 0.2


def test_rise_in_one_class_is_drift_while_the_other_class_improves() -> None:
    rng = np.random.default_rng(0)
    classes = (rng.random(8000) < 0.1).astype(float)
    later = np.arange(8000) >= 4000
    errors = (rng.random(8000) < np.where(classes == 1, np.where(later, 0.9, 0.1), np.where(later, 0.1, 0.3))) / 2
    concept = detect_concept_drift(errors[:4000], errors[4000:], measure=RANKING, no_skill=0.5, classes=classes)
    assert concept.error_reference == pytest.approx(0.1, abs=0.01)
    assert concept.error_current == pytest.approx(0.25, abs=0.01)
    assert (concept.verdict, len(concept.changes)) == ("drift", 1)


def test_ranking_error_accepts_scores_of_any_range() -> None:
    reference, current = (make_scores(i, 3000, positives=0.1, skill=1 - i) for i in (0, 1))
    probabilities = compare_predictions(reference, current, settings=DriftSettings(error="auc"))[1]
    for window in (reference, current):
        window["predicted"] = 100 * window["predicted"] - 7
    scores = compare_predictions(reference, current, settings=DriftSettings(error="auc"))[1]
    # Only probabilities have classes that can be counted.
    assert scores == replace(probabilities, confusion_reference=None, confusion_current=None)


@pytest.mark.parametrize("labels", [0, 1])
def test_ranking_error_needs_a_reference_with_both_classes(labels: int) -> None:
    reference, current = (make_scores(i, 500, positives=0.1, skill=1) for i in (0, 1))
    reference["late"] = labels
    with pytest.raises(InvalidInputError, match=r"^error: got 'auc', .* labels of both classes \(it has (0|500) rows"):
        compare_predictions(reference, current, settings=DriftSettings(error="auc"))


def test_error_threshold_is_relative_to_the_error_without_skill() -> None:
    """A rise of 0.004 exceeds 2 % of 0.0099, the Brier score of the rate 1 %, and not 2 % of 0.25, that of 50 %."""
    before, after = (np.tile([error, 0.0], 50_000) for error in (0.001, 0.009))
    reports = [detect_concept_drift(before, after, measure="Brier score", no_skill=r * (1 - r)) for r in (0.01, 0.5)]
    assert [report.verdict for report in reports] == ["drift", "no drift"]
    assert reports[0].changes == reports[1].changes


@pytest.mark.parametrize(
    ("error", "positives", "no_skill"),
    [
        ("brier", 0.01, 0.0099),
        ("brier", 0.5, 0.25),
        ("log_loss", 0.01, 0.056),
        ("log_loss", 0.5, 0.6931),
        ("auc", 0.01, 0.5),
    ],
)
def test_error_without_skill_is_that_of_the_base_rate(error: ErrorKind, positives: float, no_skill: float) -> None:
    late = np.arange(10_000) < 10_000 * positives
    frame = pd.DataFrame({"predicted": np.linspace(0, 1, 10_000), "late": late})
    errors = compute_errors(frame, frame, "predicted", "late", error=error)
    assert errors.no_skill == pytest.approx(no_skill, rel=0.01)


@pytest.mark.parametrize(
    ("predicted", "late"), [(["a", "b"], ["a", "b"]), ([1, 0], [1, 0]), ([2.5, 1.5], [2, 1]), ([0.2, 0.8], [1, 1])]
)
def test_auc_is_none_without_scores_of_two_classes(predicted: list[object], late: list[object]) -> None:
    frame = pd.DataFrame({"predicted": predicted * 100, "late": late * 100, "temp": 1.0})
    _, concept = compare_predictions(frame, frame)
    assert (concept.auc_reference, concept.auc_current) == (None, None)


def test_row_of_a_change_is_one_of_the_sample_and_of_the_window() -> None:
    reference = make_predictions(1, 2000, wrong_share=0.1)
    current = make_predictions(2, 2000, wrong_share=0.1, wrong_share_later=0.5)
    options: dict[str, Any] = {"prediction": "predicted", "actual": "late", "columns": ["temp"]}
    whole = compare(reference, current, **options)
    sample = compare(reference, current, current_rows=10_000, **options)
    assert whole.concept is not None
    assert sample.concept is not None
    row = sample.concept.changes[0].row
    assert f"at row {row} of the current window" in whole.concept.reason
    assert f"at row {row:,} of the sample, about row {5 * row:,} of the current window" in sample.concept.reason
    assert sample.concept.reason in sample.reason


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0}, "threshold: got 0, expected a number between 0 and 1, both excluded"),
        ({"threshold": 1.0}, "threshold: got 1.0, expected a number between 0 and 1, both excluded"),
        ({"error": "rmse"}, "error: got 'rmse', expected one of auto, wrong, absolute, log_loss, brier, auc"),
        (
            {"error": "brier", "detector": "ddm"},
            "detector: got 'ddm', expected adwin or page_hinkley for error='brier'",
        ),
    ],
)
def test_invalid_error_settings_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match="^" + message):
        DriftSettings(**options)
