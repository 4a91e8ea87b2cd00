"""Joint drift: no single feature changes, but their joint distribution does."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from benchmarks.drift.joint import DEPENDENCES, dependent_features
from scipy.stats import norm

from paceline.drift import DriftReport, DriftSettings, compare, to_html
from paceline.drift._columns import Column
from paceline.drift._joint import compare_jointly, distinguish

Frame = pd.DataFrame


def make_frame(seed: int, rows: int = 1000, *, correlation: float = 0.9, same_kind: float = 0.9) -> Frame:
    """Return two correlated numbers, two categories that are often equal, and an independent number."""
    rng = np.random.default_rng(seed)
    numbers = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], rows)
    kind = rng.integers(0, 2, rows)
    other = np.where(rng.random(rows) < same_kind, kind, 1 - kind)
    return pd.DataFrame(
        {
            "temp": numbers[:, 0],
            "humid": numbers[:, 1],
            "kind": np.array(["rain", "snow"])[kind],
            "other": np.array(["rain", "snow"])[other],
            "wind": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows)),
        }
    )


def test_equal_windows_have_no_joint_drift() -> None:
    report = compare(make_frame(0), make_frame(1))
    assert (report.verdict, report.drifted_parts) == ("no drift", [])
    assert report.joint is not None
    assert (report.joint.verdict, report.joint.rows) == ("no drift", 2000)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"correlation": -0.9}, "the correlation of temp and humid reversed from 0.9"),
        ({"correlation": 0.2}, "the correlation of temp and humid changed from 0.9"),
        ({"same_kind": 0.1}, "a classifier distinguishes the windows"),
    ],
)
def test_change_in_a_dependence_is_joint_drift(change: dict[str, float], reason: str) -> None:
    report = compare(make_frame(0), make_frame(1, **change))  # type: ignore[arg-type]
    assert (report.verdict, report.drifted_features, report.drifted_parts) == ("drift", [], ["(joint)"])
    assert report.summary().joint_drift is True
    assert reason in report.reason
    assert "All features together" in to_html(report)
    assert DriftReport.from_dict(report.to_dict()) == report


@pytest.mark.parametrize("change", DEPENDENCES.values(), ids=DEPENDENCES)
def test_change_in_a_dependence_is_found_in_few_rows(change: Any) -> None:
    rng = np.random.default_rng(0)
    reference, current = dependent_features(rng, 5000), dependent_features(rng, 1000)
    assert compare(reference, change(current, rng)).drifted_parts == ["(joint)"]


def resting(rng: np.random.Generator, rows: int) -> Frame:
    """Return measurements that are often zero, so many rows are equal by chance."""
    rests = rng.random(rows) < 0.6
    frame = pd.DataFrame({name: np.where(rests, 0.0, rng.normal(size=rows).round(2)) for name in "ab"})
    return frame.assign(label=rng.choice(["x", "y"], rows))


@pytest.mark.parametrize(
    "make", [resting, lambda rng, rows: pd.DataFrame(rng.normal(size=(rows, 4)), columns=[*"abcd"])]
)
@pytest.mark.parametrize("repeated", ["reference", "current"])
def test_repeated_rows_are_not_joint_drift(repeated: str, make: Any) -> None:
    rng = np.random.default_rng(0)
    windows = {"reference": make(rng, 4000), "current": make(rng, 3000)}
    windows[repeated] = pd.concat([windows[repeated], windows[repeated][:1500]], ignore_index=True)
    report = compare(**windows)
    assert report.joint is not None
    assert report.joint.verdict == "no drift"
    assert report.joint.auc < 0.53


def test_dependence_of_two_categories_is_found_although_it_makes_rows_repeat() -> None:
    rng = np.random.default_rng(0)

    def window(rows: int, equal: float) -> Frame:
        one, two = rng.choice(["x", "y", "z"], (2, rows))
        return pd.DataFrame({"one": one, "two": np.where(rng.random(rows) < equal, one, two)})

    assert compare(window(2000, 0.0), window(1000, 0.3)).drifted_parts == ["(joint)"]


def test_p_values_allow_for_classifiers_that_learn_from_rows_in_common() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 500)
    equal = [dependent_features(rng, 1000).drop(columns="carrier").to_numpy() for _ in range(60)]
    deviation = np.std([norm.isf(distinguish(rows, labels)[1]) for rows in equal])
    assert 0.6 < deviation < 1.1  # 1.2 without the correction


def test_same_rows_in_both_windows_are_described_as_chance() -> None:
    """The classifier has learned each row with the other label, so its AUC is far below 0.5."""
    frame = pd.DataFrame(np.random.default_rng(1).normal(size=(600, 4)), columns=[*"abcd"])
    joint = compare(frame, frame).joint
    assert joint is not None
    assert joint.auc < 0.4
    assert joint.reason == "A classifier distinguishes the windows no better than chance."


@pytest.mark.parametrize(
    ("columns", "rows", "settings"),
    [
        (["temp"], 1000, {}),
        (["temp", "humid"], 499, {}),
        (["temp", "humid"], 1000, {"minimum_samples": 300}),
    ],
)
def test_too_few_rows_or_columns_are_not_tested_jointly(columns: list[str], rows: int, settings: Any) -> None:
    current = make_frame(1, rows, correlation=-0.9)
    report = compare(make_frame(0), current, columns=columns, settings=DriftSettings(**settings))
    assert (report.verdict, report.joint) == ("no drift", None)


def test_single_feature_that_has_drifted_is_not_reported_jointly_too() -> None:
    report = compare(make_frame(0), make_frame(1).assign(wind=3.0))
    assert (report.drifted_parts, report.joint) == (["wind"], None)


def test_order_of_rows_with_rare_labels_does_not_distinguish_the_windows() -> None:
    def rows(seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        return pd.DataFrame({"shop": rng.integers(0, 2_000, 2_000).astype(str), "paid": rng.normal(size=2_000)})

    columns = [Column("shop", "categorical"), Column("paid", "numeric")]
    result = compare_jointly(columns, rows(0), rows(1), DriftSettings())
    assert result is not None
    assert (result.verdict, round(result.auc, 1)) == ("no drift", 0.5)


def test_results_do_not_depend_on_the_process() -> None:
    """Python's hashes of text and bytes differ between processes; ``PYTHONHASHSEED`` chooses them."""
    script = """
import numpy as np, pandas as pd
from paceline.drift import compare
from paceline.drift._joint import find_copies
rows = np.random.default_rng(0).normal(size=(300, 2)).repeat(2, axis=0)
print(find_copies(rows, np.repeat([0, 1], 300)).codes[:40].tolist())
rng = np.random.default_rng(0)
windows = []
for rows in ([12, 8], [8, 12]):  # of all shops together, each has 20
    codes = rng.permutation(np.repeat([f"shop {number}" for number in range(40)], rows * 20))
    windows.append(pd.DataFrame({"shop": codes, "customer": np.arange(400) // 4}))
print(compare(*windows, groups="customer").features)
"""
    command = [sys.executable, "-c", script]
    first, second = (
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert "chi-squared" in first
    assert first == second
