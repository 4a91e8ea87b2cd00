"""Segments, and thresholds and importance of single features."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from paceline.drift import DriftReport, DriftSettings, FeatureSettings, compare, to_html
from paceline.errors import InvalidInputError


def make_frame(seed: int, rows: int = 4000) -> pd.DataFrame:
    """Return features of customers, of whom about 10 % have the plan "pro" and 1 % "trial"."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 3)), columns=["age", "pay", "visits"])
    return frame.assign(plan=rng.choice(["free", "pro", "trial"], rows, p=[0.89, 0.1, 0.01]))


def with_change(frame: pd.DataFrame, plan: str, size: float = 1.0) -> pd.DataFrame:
    return frame.assign(pay=frame["pay"] + size * (frame["plan"] == plan))


def test_change_in_a_small_segment_is_drift_of_the_segment() -> None:
    reference, current = make_frame(0), with_change(make_frame(1), "pro")
    assert compare(reference, current).drifted_features == []
    report = compare(reference, current, segments="plan")
    assert (report.verdict, report.drifted_parts) == ("drift", ["(segment pro)"])
    assert report.reason == "Drift in 1 of 2 segments: pro (pay)."
    assert report.summary().drifted_segments == ["pro"]
    segment = next(one for one in report.segments if one.name == "pro")
    assert (segment.tested, segment.drifted_features) == (3, ("pay",))
    assert segment.reason.startswith("pay: its distribution changed")
    assert DriftReport.from_dict(report.to_dict()) == report
    page = to_html(report)
    assert "<h2>Segments</h2>" in page
    assert "pay: its distribution changed" in page


def test_equal_segments_have_no_drift() -> None:
    report = compare(make_frame(0), make_frame(1), segments="plan")
    assert report.verdict == "no drift"
    assert [segment.verdict for segment in report.segments] == ["no drift", "no drift"]


def test_segments_with_too_few_rows_are_named() -> None:
    report = compare(make_frame(0), make_frame(1), segments="plan")
    assert any("fewer than 100 rows in a window" in note and "trial" in note for note in report.notes)


def test_many_segments_share_the_significance() -> None:
    def with_segments(seed: int) -> pd.DataFrame:
        return make_frame(seed, 6000).assign(shop=np.random.default_rng(seed).integers(0, 40, 6000))

    report = compare(with_segments(0), with_segments(1), segments="shop")
    assert len(report.segments) == 20
    assert report.verdict == "no drift", report.reason


def test_feature_has_its_own_threshold() -> None:
    reference, current = make_frame(0), make_frame(1).assign(pay=lambda frame: frame["pay"] + 0.5)
    assert compare(reference, current).drifted_features == ["pay"]
    own = DriftSettings(features={"pay": FeatureSettings(effect_threshold=0.4, psi_threshold=1.0)})
    report = compare(reference, current, settings=own)
    assert report.drifted_features == []
    assert DriftSettings(**own.to_dict()) == own


def test_drift_of_unimportant_features_is_no_drift_of_the_window() -> None:
    reference, current = make_frame(0), make_frame(1).assign(pay=lambda frame: frame["pay"] + 0.5)
    own = DriftSettings(features={"age": FeatureSettings(importance=7)}, drift_share=0.2)
    report = compare(reference, current, settings=own)
    assert (report.verdict, report.drifted_features) == ("no drift", ["pay"])
    assert "10% by importance, less than drift_share=0.2" in report.reason
    important_pay = DriftSettings(features={"pay": FeatureSettings(importance=7)}, drift_share=0.2)
    assert compare(reference, current, settings=important_pay).verdict == "drift"


def test_joint_drift_is_found_although_too_few_features_have_drifted() -> None:
    reference, current = make_frame(0), make_frame(1).assign(pay=lambda frame: frame["pay"] + 0.5)
    reference["visits"], current["visits"] = (
        reference["age"] + reference["visits"] / 4,
        current["visits"] / 4 - current["age"],
    )
    report = compare(reference, current, settings=DriftSettings(drift_share=0.9))
    assert (report.drifted_features, report.drifted_parts) == (["pay"], ["(joint)", "pay"])


def test_missing_threshold_of_a_feature_applies_to_its_quality() -> None:
    reference, current = make_frame(0), make_frame(1)
    current.loc[:599, "pay"] = None
    own = DriftSettings(features={"pay": FeatureSettings(missing_threshold=0.3)})
    assert [problem.kind for problem in compare(reference, current).quality] == ["missing values"]
    assert compare(reference, current, settings=own).quality == ()


def test_segments_with_too_few_groups_are_named() -> None:
    frames = [
        make_frame(seed).assign(shop=lambda frame: frame.index % 400 + 400 * (frame["plan"] == "free"))
        for seed in (0, 1)
    ]
    for frame in frames:
        frame.loc[frame["plan"] == "pro", "shop"] = frame.index[frame["plan"] == "pro"] % 3
    report = compare(*frames, groups="shop", segments="plan")
    assert [segment.name for segment in report.segments] == ["free"]
    assert any("fewer than 100 rows or 10 groups in a window" in note and "pro" in note for note in report.notes)


def make_days(seed: int, days: int) -> pd.DataFrame:
    """Return rows of days that shift the feature ``age`` by amounts of their own."""
    rng = np.random.default_rng(seed)
    day = np.repeat(np.arange(days), 200)
    age = rng.normal(size=days)[day] + rng.normal(size=len(day))
    return pd.DataFrame({"age": age, "day": day, "plan": rng.choice(["free", "pro"], len(day))})


def test_segments_with_too_few_times_are_named() -> None:
    """The rows of one day do not show how much the days differ."""
    reference, current = make_days(0, 60), make_days(1, 12)
    current["plan"] = np.where(current["day"] < 11, "free", "pro")
    report = compare(reference, current, time="day", segments="plan")
    assert [one.name for one in report.segments] == ["free"]
    assert any("fewer than 100 rows or 10 times in a window" in note and "pro" in note for note in report.notes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DriftSettings(features={"pay": 0.2}),
            r"settings.features\['pay'\]: got 0.2, expected FeatureSettings",
        ),
        (lambda: DriftSettings(features=["pay"]), "settings.features: got .*, expected a mapping"),
        (lambda: DriftSettings(drift_share=2), "drift_share: got 2, expected a number from 0 to 1"),
        (lambda: FeatureSettings(effect_threshold=2), "effect_threshold: got 2, expected a number between 0 and 1"),
        (lambda: FeatureSettings(importance=-1), "importance: got -1, expected a number of at least 0"),
        (
            lambda: compare(make_frame(0), make_frame(1), settings=DriftSettings(features={"pya": FeatureSettings()})),
            "settings.features: got 'pya', expected a column of the reference window .did you mean 'pay'",
        ),
    ],
)
def test_invalid_settings_are_named(make: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()  # type: ignore[operator]


def test_windows_without_a_common_segment_are_named() -> None:
    frames = [make_frame(seed).assign(plan=[None] * 100 + [str(seed)] * 3900) for seed in (0, 1)]
    notes = compare(*frames, segments="plan").notes
    assert "No segment (plan) is compared separately." in notes
    assert "200 rows without a value of plan belong to no segment." in notes


def test_unknown_setting_of_a_feature_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"features\['pay'\]: got 'effect', expected one of effect_"):
        DriftSettings(features={"pay": {"effect": 0.1}})  # type: ignore[dict-item]


def test_segments_with_an_equal_beginning_have_different_names() -> None:
    plans = {"free": "x" * 39 + " basic", "pro": "x" * 39 + " premium", "trial": "trial"}
    frames = [with_change(make_frame(seed), "pro", seed).replace({"plan": plans}) for seed in (0, 1)]
    report = compare(*frames, segments="plan")
    names = [segment.name for segment in report.segments]
    assert len({*names}) == 2
    assert all(len(name) <= 40 for name in names)
    (drifted,) = report.summary().drifted_segments
    assert report.drifted_parts == [f"(segment {drifted})"]
    labels = next(one for one in report.features if one.name == "plan").histogram
    assert labels is not None
    assert len({*labels.labels}) == 3
