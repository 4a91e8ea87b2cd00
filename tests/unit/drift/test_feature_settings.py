"""Thresholds and importance of single features: which values are accepted, and what a report says about unused ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.drift import DriftReport, DriftSettings, FeatureSettings, QualitySettings, compare
from paceline.errors import InvalidInputError


def make_frame(seed: int, **shifts: float) -> pd.DataFrame:
    frame = pd.DataFrame(np.random.default_rng(seed).normal(size=(800, 3)), columns=["age", "pay", "visits"])
    return frame + pd.Series({"age": 0.0, "pay": 0.0, "visits": 0.0, **shifts})


def check(settings: DriftSettings, *, columns: list[str] | None = None, **shifts: float) -> DriftReport:
    return compare(make_frame(0), make_frame(1, **shifts), settings=settings, columns=columns)


def with_importance(drift_share: float, **importance: Any) -> DriftSettings:
    features = {name: FeatureSettings(importance=value) for name, value in importance.items()}
    return DriftSettings(features=features, drift_share=drift_share)


@pytest.mark.parametrize("drift_share", [0.1, 1.0])
def test_features_without_any_importance_are_rejected(drift_share: float) -> None:
    settings = with_importance(drift_share, age=0, pay=0, visits=0)
    with pytest.raises(InvalidInputError, match=r"^settings.drift_share: got .*, expected 0, or an importance above 0"):
        check(settings, pay=1.0)


def test_drift_of_features_without_importance_is_not_no_drift_if_the_others_are_not_tested() -> None:
    frames = [make_frame(seed, pay=seed).assign(age=[f"user{n}" for n in range(800)]) for seed in (0, 1)]
    report = compare(*frames, settings=with_importance(0.1, pay=0, visits=0))
    assert report.drifted_features == ["pay"]
    assert (report.verdict, report.reason) == (
        "nothing compared",
        "Drift in 1 of 2 features: pay. No feature with an importance above 0 was tested.",
    )


@pytest.mark.parametrize("largest", [1e308, np.float64(1.7e308)])
def test_huge_importance_does_not_hide_drift(largest: Any) -> None:
    settings = with_importance(0.4, age=0, pay=largest, visits=largest)
    assert check(settings, pay=1.0).verdict == "drift"
    assert check(settings, age=1.0).verdict == "no drift"


def test_share_of_equal_importance_reaches_its_threshold_exactly() -> None:
    settings = with_importance(2 / 3, age=0.1, pay=0.1, visits=0.1)
    assert check(settings, pay=1.0, age=1.0).verdict == "drift"


@pytest.mark.parametrize("value", [float("inf"), np.float32("inf"), float("nan"), 10**400, True, "1"], ids=range(6))
def test_importance_that_is_not_a_finite_number_is_rejected(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^importance: got .*, expected a number of at least 0"):
        FeatureSettings(importance=value)


def test_numbers_of_numpy_are_accepted_and_stored_as_plain_numbers() -> None:
    number = np.float32(0.25)
    settings = DriftSettings(
        significance=number,
        psi_threshold=number,
        drift_share=number,
        minimum_samples=np.int64(50),
        max_rows=np.int32(5000),
        features={"age": FeatureSettings(effect_threshold=number, importance=np.int64(3))},
        quality=QualitySettings(range_threshold=number, max_age_s=np.int64(60)),
    )
    assert json.loads(json.dumps(settings.to_dict())) == settings.to_dict()
    assert DriftSettings(**settings.to_dict()) == settings
    assert (settings.significance, settings.minimum_samples, settings.features["age"].importance) == (0.25, 50, 3.0)
    assert type(settings.significance) is float


@pytest.mark.parametrize("value", [np.float32(1.5), np.bool_(True)])
def test_numbers_of_numpy_that_are_out_of_range_are_rejected(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^significance: got .*, expected a number between 0 and 1"):
        DriftSettings(significance=value)


def test_settings_of_a_column_that_is_not_compared_are_noted() -> None:
    settings = DriftSettings(features={"pay": FeatureSettings(effect_threshold=0.2)})
    assert check(settings, columns=["age", "visits"]).notes == (
        "The settings of pay have no effect, because the column is not compared.",
    )
    assert check(settings).notes == ()


def test_settings_of_a_skipped_feature_are_noted() -> None:
    frames = [make_frame(seed).assign(pay=[f"user{n}" for n in range(800)]) for seed in (0, 1)]
    report = compare(*frames, settings=with_importance(0.1, pay=3))
    skipped = next(one for one in report.features if one.name == "pay")
    assert report.notes == (f"The settings of pay have no effect: {skipped.reason}.",)


def test_constant_feature_counts_among_the_compared_ones() -> None:
    frames = [make_frame(seed, visits=seed).assign(pay=5.0) for seed in (0, 1)]
    report = compare(*frames, settings=with_importance(0.3, age=0, pay=3))
    assert (report.verdict, report.drifted_features, report.notes) == ("no drift", ["visits"], ())
    report = compare(*frames, settings=with_importance(0.2, age=0, pay=3))
    assert report.verdict == "drift"


def test_thresholds_that_a_classifier_does_not_use_are_noted() -> None:
    frames = [
        make_frame(seed).assign(vector=list(np.random.default_rng(seed).normal(size=(800, 4)))) for seed in (0, 1)
    ]
    unused = FeatureSettings(effect_threshold=0.2, psi_threshold=0.3, importance=2)
    report = compare(*frames, settings=DriftSettings(features={"vector": unused}, drift_share=0.1))
    assert report.notes == (
        "effect_threshold and psi_threshold of vector have no effect: a classifier with joint_threshold tests it.",
    )
    used = DriftSettings(features={"vector": FeatureSettings(missing_threshold=0.2)})
    assert compare(*frames, settings=used).notes == ()
