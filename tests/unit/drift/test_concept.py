"""A rise of the error is detected and located as concept drift. Noise and an improved model are not drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.drift import ConceptDrift, DriftReport, DriftSettings, compare
from paceline.drift.concept import ABSOLUTE, WRONG, compute_errors, detect_concept_drift
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


def test_rise_of_the_error_is_drift_with_its_position() -> None:
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
    errors, measure, _ = compute_errors(frame, "guess", "truth")
    assert measure == ABSOLUTE
    concept_drift = detect_concept_drift(errors[:500], errors[500:], measure=measure)
    assert concept_drift.verdict == "drift"
    assert abs(concept_drift.changes[0].row - 500) <= 100


def test_predictions_of_labels_of_any_type_are_right_or_wrong() -> None:
    frame = pd.DataFrame({"predicted": ["cat", "dog", 3, None], "actual": ["cat", "cat", "3", "dog"]}, dtype=object)
    errors, measure, rows = compute_errors(frame, "predicted", "actual")
    assert (errors.tolist(), measure, rows.tolist()) == ([0.0, 1.0, 0.0], WRONG, [0, 1, 2])


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
    ],
)
def test_invalid_predictions_are_rejected(
    frame: dict[str, list[object]], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidInputError, match="^" + message):
        compute_errors(pd.DataFrame(frame), "predicted", "actual", **options)  # type: ignore[arg-type]


def test_ddm_is_rejected_for_absolute_errors() -> None:
    with pytest.raises(InvalidInputError, match=r"^detector: got 'ddm', expected adwin or page_hinkley"):
        detect_concept_drift(np.ones(200), np.ones(200), measure=ABSOLUTE, detector="ddm")
