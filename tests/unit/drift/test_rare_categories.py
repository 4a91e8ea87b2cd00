"""Changes of many rare categories are drift and a data quality problem; chance and identifiers are neither."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from paceline.drift import DriftReport, DriftSettings, FeatureDrift, compare
from paceline.drift._categories import compare_rare, new_category_test

SIZES = [(5_000, 5_000), (50_000, 5_000), (5_000, 50_000), (1_000, 1_000), (5_000, 200), (200, 5_000)]


def shops(seed: int, n: int, prefix: str = "a", frequent: float = 0.5, rare: int = 1_500) -> pd.DataFrame:
    """Return a column with one frequent category and many rare ones, and a column of numbers."""
    rng = np.random.default_rng(seed)
    codes = np.char.add(prefix, rng.integers(0, rare, n).astype(str))
    return pd.DataFrame({"shop": np.where(rng.random(n) < frequent, "home", codes), "paid": rng.normal(size=n)})


def zipf(seed: int, n: int, labels: int = 100_000) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    shares = (1 / np.arange(1, labels + 1)).cumsum()
    codes = np.searchsorted(shares / shares[-1], rng.random(n)).astype(str)
    return pd.DataFrame({"shop": codes, "paid": rng.normal(size=n)}).astype({"shop": object})


def shop(report: DriftReport) -> FeatureDrift:
    return next(feature for feature in report.features if feature.name == "shop")


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_replaced_rare_categories_are_drift_of_the_size_of_their_share(before: int, after: int) -> None:
    report = compare(shops(0, before), shops(1, after, "b"))
    assert report.drifted_features == ["shop"]
    assert shop(report).test == "chi-squared, rare categories"
    assert shop(report).effect == pytest.approx(0.5, abs=0.05)
    assert shop(report).reason.startswith("the shares of its rare categories changed, with new categories b")


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_replaced_rare_categories_are_new_categories(before: int, after: int) -> None:
    [problem] = compare(shops(0, before), shops(1, after, "b")).quality
    assert (problem.kind, problem.column) == ("new categories", "shop")


def test_share_of_new_categories_that_chance_explains_is_stated() -> None:
    [problem] = compare(shops(0, 5_000), shops(1, 5_000, "b")).quality
    assert problem.reason.startswith("51.7% of the values have new categories: b")
    assert problem.reason.endswith(" more (21.8% expected by chance)")


@pytest.mark.parametrize("before", [200, 5_000])
def test_short_window_of_unknown_categories_is_drift_and_not_an_identifier(before: int) -> None:
    report = compare(shops(0, before, frequent=0, rare=50), shops(1, 200, "b", frequent=0, rare=50))
    assert report.drifted_features == ["shop"]
    assert shop(report).effect == pytest.approx(1.0)
    assert [problem.kind for problem in report.quality] == ["new categories"]


def test_changed_shares_of_known_rare_categories_are_drift_without_new_categories() -> None:
    def codes(seed: int, odd: float, n: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        numbers = 2 * rng.integers(0, 450, n) + (rng.random(n) < odd)
        return pd.DataFrame({"shop": numbers.astype(str)})

    report = compare(codes(0, 0.3, 20_000), codes(1, 0.7, 2_000))
    assert report.drifted_features == ["shop"]
    assert shop(report).effect == pytest.approx(0.4, abs=0.1)
    assert shop(report).test == "chi-squared, rare categories"
    assert report.quality == ()


@pytest.mark.parametrize(("before", "after"), [(200, 200), (5_000, 5_000), (20_000, 2_000), (2_000, 20_000)])
def test_stationary_long_tail_is_no_drift_and_no_problem(before: int, after: int) -> None:
    for seed in range(3):
        for make in (zipf, shops):
            report = compare(make(seed, before), make(1_000 + seed, after))
            assert (report.verdict, report.quality) == ("no drift", ())
            assert shop(report).verdict == "no drift"


@pytest.mark.parametrize("first", [0, 200, 500])
def test_identifiers_are_skipped_whether_or_not_the_windows_share_them(first: int) -> None:
    def rows(start: int) -> pd.DataFrame:
        numbers = np.random.default_rng(start).permutation(np.arange(start, start + 500))
        return pd.DataFrame({"shop": [f"id-{number}" for number in numbers], "paid": np.sin(numbers)})

    report = compare(rows(0), rows(first))
    assert (shop(report).verdict, report.quality) == ("skipped", ())
    assert "identifier" in shop(report).reason


def test_rare_categories_with_a_small_share_do_not_weaken_the_test_of_the_frequent_ones() -> None:
    rng = np.random.default_rng(0)
    before, after = (rng.choice(["x", "y", "a", "b", "c"], 200, p=[0.6, 0.37, 0.01, 0.01, 0.01]) for _ in range(2))
    frequent = ["x", "y"]
    merged = [np.where(np.isin(labels, frequent), labels, "other") for labels in (before, after)]
    whole, sums = (compare(*(pd.DataFrame({"shop": part}) for part in pair)) for pair in ((before, after), merged))
    assert shop(whole).p_value == shop(sums).p_value


@pytest.mark.parametrize(("before", "after"), [(300, 300), (3_000, 300), (300, 3_000)])
def test_chance_is_at_most_the_p_value_of_rare_and_of_new_categories(before: int, after: int) -> None:
    rng = np.random.default_rng(0)
    shares = np.sqrt(1 / np.arange(1, 2_001))
    pairs = [[rng.multinomial(rows, shares / shares.sum()) for rows in (before, after)] for _ in range(400)]
    rare = np.array([result.p_value for pair in pairs if (result := compare_rare(*pair))])
    new = np.array([new_category_test(*pair)[0] for pair in pairs])
    for level in (0.01, 0.05, 0.2):
        margin = 3 * (level / 400) ** 0.5
        assert np.mean(rare <= level) <= level + margin
        assert np.mean(new <= level) <= level + margin


def test_share_of_rare_categories_below_the_effect_threshold_is_not_drift() -> None:
    reference, current = shops(0, 5_000, frequent=0.95), shops(1, 5_000, "b", frequent=0.95)
    assert compare(reference, current).drifted_features == []
    assert compare(reference, current, settings=DriftSettings(effect_threshold=0.03)).drifted_features == ["shop"]
