"""Compares the categories of two windows: frequent ones by their shares, rare ones by how often they recur.

Called by ``paceline.drift._features`` for drift and by ``paceline.drift.quality`` for new categories. The tests take
the counts of the same categories in both windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.drift._design import INDEPENDENT, Design
from paceline.drift._statistics import MINIMUM_EXPECTED, TestResult, chi_squared, stability_index

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]
    Rows = NDArray[np.int64] | NDArray[np.float64]  # not whole numbers if rows depend on each other

RARE = "rare categories"
# Smallest number of rows that repeat a rare category within a window. With fewer, as in identifiers, no difference of
# the windows would be significant.
FEWEST_REPEATS = 10
# Range in which the exponent of Chernoff's bound is minimised; a steeper one would change the bound by less than 1e-12.
_STEEPEST = 30.0


@dataclass(frozen=True)
class CategoryComparison:
    """The test of a column of categories; ``test`` is the name of the test with the smaller p-value."""

    test: str
    result: TestResult
    psi: float


def align(reference: Mapping[str, int], current: Mapping[str, int]) -> tuple[Counts, Counts]:
    """Return the counts of all categories of both windows, in the same order.

    >>> align({"b": 3}, {"a": 5, "b": 4})
    (array([0, 3]), array([5, 4]))
    """
    import numpy as np

    labels = sorted(reference.keys() | current.keys())
    before, after = (np.array([counts.get(label, 0) for label in labels]) for counts in (reference, current))
    return before, after


def merge_rare(reference: Rows, current: Rows) -> tuple[Rows, Rows, NDArray[np.bool_]]:
    """Merge categories too rare for a chi-squared test into one.

    If this one is too rare, it is merged with the smallest of the others, so that every expected count is large enough
    or only one category remains.

    Returns
    -------
    The counts of both windows, and which categories are too rare.

    Examples
    --------
    >>> import numpy as np
    >>> before, after, rare = merge_rare(np.array([86, 10, 4, 0]), np.array([62, 30, 0, 8]))
    >>> before.tolist(), after.tolist(), rare.tolist()
    ([86, 10, 4], [62, 30, 8], [False, False, True, True])
    """
    import numpy as np

    pooled = reference + current
    smaller_share = min(reference.sum(), current.sum()) / pooled.sum()
    rare = pooled * smaller_share < MINIMUM_EXPECTED
    before, after = reference[~rare], current[~rare]
    other = [reference[rare].sum(), current[rare].sum()]
    if not len(before) or sum(other) * smaller_share >= MINIMUM_EXPECTED:
        return np.append(before, other[0]), np.append(after, other[1]), rare
    smallest = int((before + after).argmin())
    before[smallest] += other[0]
    after[smallest] += other[1]
    return before, after, rare


def compare_categories(
    reference: Counts,
    current: Counts,
    least_rare: float,
    design: Design = INDEPENDENT,
    single: tuple[Counts, Counts] | None = None,
) -> CategoryComparison | None:
    """Test whether the categories of two windows have the same shares; return ``None`` if all are too rare.

    The chi-squared test compares the frequent categories and the sum of the rare ones. If the rare ones hold at least
    the share ``least_rare`` of both windows, ``compare_rare`` tests them, too (Simes's method combines the p-values).
    The effect is the total variation distance: the share of rows whose category would have to change.

    If rows depend on each other, ``design`` scales the numbers of rows, and ``single`` has the counts in one row of
    each unit, in which ``compare_rare`` finds no pairs of dependent rows.

    Examples
    --------
    Half of the rows have one category, the others 300 rare ones. All rare ones are replaced.

    >>> import numpy as np
    >>> old, new = np.zeros(300, dtype=int), np.full(300, 2)
    >>> found = compare_categories(np.r_[600, new, old], np.r_[600, old, new], 0.1)
    >>> found.test, found.result.p_value < 1e-9, found.result.effect
    ('chi-squared, rare categories', True, 0.5)
    """
    from scipy.stats import false_discovery_control

    before, after, rare = merge_rare(reference / design.reference, current / design.current)
    share = min(reference[rare].sum() / reference.sum(), current[rare].sum() / current.sum())
    counts = (reference, current) if single is None else single
    tail = compare_rare(counts[0][rare], counts[1][rare]) if share >= least_rare else None
    psi = stability_index((before * design.reference).tolist(), (after * design.current).tolist())
    shares = None if rare.all() else design.correct_result(chi_squared(before.tolist(), after.tolist()))
    if tail is None:
        return None if shares is None else CategoryComparison("chi-squared", shares, psi)
    name = f"chi-squared, {RARE}"
    if shares is None:
        return CategoryComparison(name, tail, psi)
    p_value = float(false_discovery_control([shares.p_value, tail.p_value]).min())
    effect = float(shares.effect + share * tail.effect)
    test, lower = ("chi-squared", shares) if shares.p_value <= tail.p_value else (name, tail)
    return CategoryComparison(test, TestResult(lower.statistic, p_value, effect), psi)


def compare_rare(reference: Counts, current: Counts) -> TestResult | None:
    """Test whether many rare categories have the same shares; return ``None`` if too few rows repeat a category.

    If the windows have the same distribution, a row shares its category with rows of the other window as often as with
    rows of its own. The statistic sums the pairs of rows with equal categories within the windows, less those between
    the windows: it is Pearson's statistic without the terms of single rows, and therefore has the expectation 0 for
    any number of categories, however rare. In windows of unequal size, these weights find new categories in the shorter
    window; equal weights of all categories with less than one expected row there find those in the longer window.
    Three moments, given the total count of each category, approximate the distribution. Simes's method combines both
    p-values and that of ``new_category_test``, which finds new categories in few rows. The reported statistic is in
    standard deviations.

    The effect estimates the total variation distance. That of the counts, D, exceeds its expectation without drift, D0,
    even for equal shares; as independent deviations add up in squares, the estimate is the root of (D² - D0²) /
    (1 - D0²): 0 for equal shares, 1 if the windows have no category in common.

    Notes
    -----
    S.-O. Chan, I. Diakonikolas, P. Valiant and G. Valiant, "Optimal algorithms for testing closeness of discrete
    distributions", SODA 2014. B. Bhattacharya and G. Valiant, "Testing closeness with unequal sized samples", NeurIPS
    2015. R. J. Simes, Biometrika 73, 1986. The mean deviation of a binomial distribution is de Moivre's (P. Diaconis
    and S. Zabell, Statistical Science 6, 1991).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> before, after = rng.poisson(1, 1000), rng.poisson(1, 1000)
    >>> compare_rare(before, after).p_value > 0.01
    True
    >>> compare_rare(np.arange(20) % 2, (np.arange(20) + 1) % 2) is None
    True
    """
    import numpy as np
    from scipy.stats import binom, false_discovery_control, pearson3

    known = reference + current > 0
    r, c = (counts[known].astype(float) for counts in (reference, current))
    rows_r, rows_c = r.sum(), c.sum()
    repeats = rows_r + rows_c - np.count_nonzero(r) - np.count_nonzero(c)
    if len(r) < 2 or repeats < FEWEST_REPEATS or not rows_r * rows_c:
        return None
    pooled, rows, product = r + c, rows_r + rows_c, rows_r * rows_c
    excess = (rows_r**2 * c * (c - 1) + rows_c**2 * r * (r - 1) - 2 * product * r * c) / product
    pairs = pooled * (pooled - 1)
    imbalance = rows**2 / product - 4  # the squared skewness of the window of a row
    scale = 1 - 1 / len(pooled)  # one degree of freedom less, because the windows' rows are given
    statistics, p_values = [], []
    for weight in (1 / pooled, 1 / np.maximum(pooled, rows / min(rows_r, rows_c))):
        variance = scale * 2 * (pairs * weight**2).sum()
        third = scale * (pairs * (8 * (pooled - 2) + 4 * imbalance) * weight**3).sum()
        statistics.append(float((excess * weight + pairs * weight / (rows - 1)).sum() / variance**0.5))
        p_values.append(float(pearson3.sf(statistics[-1], third / variance**1.5)))

    distance = np.abs(c / rows_c - r / rows_r).sum() / 2
    share = rows_c / rows
    least = np.floor(pooled * share) + 1
    deviation = 2 * least * (1 - share) * binom.pmf(least, pooled, share)
    by_chance = rows * deviation.sum() / (2 * product)
    effect = (max(0.0, float(distance**2 - by_chance**2)) / (1 - float(by_chance) ** 2)) ** 0.5
    p_values.append(new_category_test(reference, current)[0])
    return TestResult(max(statistics), float(false_discovery_control(p_values).min()), effect)


def new_category_test(reference: Counts, current: Counts) -> tuple[float, float]:
    """Test whether chance explains the categories that the reference lacks, given the total count of each category.

    Chance often omits rare categories from the reference, but seldom a frequent one, or most of the rare ones. The
    p-value is the smallest of three, times three: for the most frequent new category, with Bonferroni's correction for
    the number of categories; for the number of rows with new categories; and for the number of these rows that repeat
    a category, because a category with a single row says little (Chernoff's bound).

    Returns
    -------
    The p-value, and the share of current rows that chance gives new categories.

    Notes
    -----
    The bound is valid because the counts of the current window are negatively associated (K. Joag-Dev and F. Proschan,
    Annals of Statistics 11, 1983).

    Examples
    --------
    >>> import numpy as np
    >>> rare_by_chance = new_category_test(np.array([98, 1, 1, 0, 0]), np.array([98, 0, 0, 1, 1]))
    >>> one_category = new_category_test(np.array([100, 0]), np.array([80, 20]))
    >>> rare_by_chance[0], one_category[0] < 1e-5
    (1.0, True)
    """
    import numpy as np
    from scipy.optimize import minimize_scalar
    from scipy.special import gammaln

    new = current[(reference == 0) & (current > 0)]
    if not len(new):
        return 1.0, 0.0
    rows, total = int(current.sum()), int(current.sum() + reference.sum())
    pooled, number = np.unique((reference + current)[reference + current > 0], return_counts=True)
    pooled, number = pooled[pooled <= rows], number[pooled <= rows]
    # The probability that all rows of a category are current is C(rows, count) / C(total, count).
    log = gammaln(rows + 1) - gammaln(rows - pooled + 1) - gammaln(total + 1) + gammaln(total - pooled + 1)

    def bound(tilt: float, weights: Counts, observed: int) -> float:
        moments = np.logaddexp(np.log1p(-np.exp(log)), log + tilt * weights)
        return float((number * moments).sum() - tilt * observed)

    smallest = min(0.0, log[pooled == new.max()][0] + np.log(len(reference)))
    for weights, observed in ((pooled, new.sum()), (pooled - 1, (new - 1).sum())):
        found = minimize_scalar(bound, bounds=(0, _STEEPEST), args=(weights, observed), method="bounded")
        smallest = min(smallest, found.fun)
    return min(1.0, 3 * float(np.exp(smallest))), float((number * pooled * np.exp(log)).sum() / rows)
