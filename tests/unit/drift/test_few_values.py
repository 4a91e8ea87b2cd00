"""Numbers with few distinct values, or with one frequent value, are tested with the power that their values allow."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from paceline.drift import FeatureDrift, compare
from paceline.drift._statistics import kolmogorov_smirnov, stability_index_of_values


def measure(before: object, after: object) -> FeatureDrift:
    [feature] = compare(pd.DataFrame({"value": before}), pd.DataFrame({"value": after})).features
    return feature


def stars(seed: int, shares: list[float], n: int = 500) -> np.ndarray:
    return np.random.default_rng(seed).choice(len(shares), n, p=shares)


def rain(seed: int, dry: float, n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < dry, 0.0, rng.exponential(size=n))


def test_zeros_and_ones_are_tested_like_two_categories() -> None:
    before, after = stars(2, [0.7, 0.3], 200), stars(1, [0.55, 0.45], 200)
    numbers, labels = measure(before, after), measure(before.astype(str), after.astype(str))
    assert (numbers.kind, numbers.test, numbers.verdict) == ("numeric", "chi-squared", "drift")
    assert (numbers.p_value, numbers.effect, numbers.psi) == (labels.p_value, labels.effect, labels.psi)
    assert (numbers.level_reference, numbers.level_current) == (before.mean(), after.mean())
    assert numbers.histogram is not None
    assert (numbers.histogram.reference[0], numbers.histogram.current[-1]) == (1 - before.mean(), after.mean())


def test_more_extreme_values_of_a_scale_are_drift_although_the_mean_stays() -> None:
    before, after = stars(2, [0.1, 0.2, 0.4, 0.2, 0.1]), stars(1, [0.17, 0.2, 0.26, 0.2, 0.17])
    feature = measure(before, after)
    assert (feature.test, feature.verdict) == ("chi-squared", "drift")
    assert feature.level_current == pytest.approx(2.0, abs=0.05)


def test_larger_share_of_zeros_is_drift_in_few_rows() -> None:
    feature = measure(rain(0, 0.9), rain(1, 0.75))
    assert (feature.test, feature.verdict) == ("Kolmogorov-Smirnov", "drift")


@pytest.mark.parametrize(("before", "after"), [(200, 200), (2_000, 200)])
@pytest.mark.parametrize("dry", [0.6, 0.9])
def test_chance_is_at_most_the_p_value_of_mostly_equal_values(before: int, after: int, dry: float) -> None:
    p_values = []
    for seed in range(500):
        codes = np.unique(np.r_[rain(seed, dry, before), rain(10_000 + seed, dry, after)], return_inverse=True)[1]
        counts = [np.bincount(part, minlength=codes.max() + 1) for part in (codes[:before], codes[before:])]
        p_values.append(kolmogorov_smirnov(*counts).p_value)
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(p_values) <= level) <= level + 3 * (level / 500) ** 0.5


def test_stability_index_separates_a_frequent_greatest_value_from_lower_ones() -> None:
    before, after = 1 - rain(0, 0.92, 2_000), 1 - rain(1, 0.7, 2_000)
    assert stability_index_of_values(before, after) == pytest.approx(
        stability_index_of_values(-before, -after), abs=0.02
    )
    assert stability_index_of_values(before, after) > 0.25


def test_rare_value_of_two_is_no_drift() -> None:
    assert measure(stars(0, [0.998, 0.002]), stars(1, [0.998, 0.002])).verdict == "no drift"
