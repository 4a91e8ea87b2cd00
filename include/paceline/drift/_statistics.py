"""Statistics of one feature: two-sample tests and the population stability index, on plain arrays.

Called by ``paceline.drift._features``, which interprets the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Counts = NDArray[np.int64] | NDArray[np.float64]  # not whole numbers if rows depend on each other

# With fewer than five expected rows in a cell, the chi-squared distribution no longer describes the statistic well
# (Cochran, "Some methods for strengthening the common chi-squared tests", Biometrics 10, 1954).
MINIMUM_EXPECTED = 5.0


@dataclass(frozen=True)
class TestResult:
    """One two-sample test: its statistic, its p-value and the size of the effect on a scale from 0 to 1."""

    __test__ = False  # pytest must not collect this class

    statistic: float
    p_value: float
    effect: float


def count_values(
    reference: NDArray[np.float64], current: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how often each distinct number occurs in each window, in ascending order of the numbers.

    >>> import numpy as np
    >>> count_values(np.array([2.0, 1.0]), np.array([2.0, 2.0]))
    (array([1, 1]), array([0, 2]))
    """
    import numpy as np

    values, codes = np.unique(np.concatenate([reference, current]), return_inverse=True)
    before, after = np.split(codes, [len(reference)])
    return np.bincount(before, minlength=len(values)), np.bincount(after, minlength=len(values))


def kolmogorov_smirnov(reference: Counts, current: Counts) -> TestResult:
    """Run the two-sample Kolmogorov-Smirnov test, which finds the largest gap between two cumulative distributions.

    The arguments are the counts of each distinct value, in ascending order. The statistic is also the effect: 0.1 means
    that at some value the shares of rows below it differ by ten points.

    The usual p-value assumes that all values differ. If many rows have one value (rain is mostly 0), the gap can only
    be large below and above it, so that chance explains less. The p-value is then bounded by the probability that a
    Brownian bridge leaves the band below or above that value, which follows from the reflection principle.

    No p-value is below the exact one of windows without common values: 2 / C(m + n, m) for m and n rows.

    >>> import numpy as np
    >>> kolmogorov_smirnov(np.arange(50), np.arange(50)[::-1]).p_value < 1e-6
    True
    >>> kolmogorov_smirnov(np.array([900, 40, 60]), np.array([860, 60, 80])).p_value < 0.02
    True
    """
    import numpy as np
    from scipy.special import gammaln
    from scipy.stats import kstwo

    rows_before, rows_after = reference.sum(), current.sum()
    statistic = float(np.abs(reference.cumsum() / rows_before - current.cumsum() / rows_after).max())
    # The distribution for one sample of this size is an accurate approximation, and fast at every sample size.
    size = rows_before * rows_after / (rows_before + rows_after)
    p_value = float(kstwo.sf(statistic, max(1, round(size))))
    pooled = (reference + current) / (rows_before + rows_after)
    frequent = int(pooled.argmax())
    if (1 - pooled[frequent]) * min(rows_before, rows_after) >= MINIMUM_EXPECTED:
        gap = statistic * size**0.5
        outside = sum(_bridge_exceeds(gap, float(part.sum())) for part in (pooled[:frequent], pooled[frequent + 1 :]))
        p_value = min(p_value, 2 * outside)
    lowest = 2 * np.exp(gammaln(rows_before + 1) + gammaln(rows_after + 1) - gammaln(rows_before + rows_after + 1))
    return TestResult(statistic, min(1.0, max(p_value, float(lowest))), statistic)


def _bridge_exceeds(gap: float, end: float) -> float:
    """Return the probability that a Brownian bridge exceeds ``gap`` between 0 and ``end``, a number below 1."""
    from math import exp

    from scipy.special import ndtr

    if not end:
        return 0.0
    deviation = (end * (1 - end)) ** 0.5
    return float(ndtr(-gap / deviation) + exp(-2 * gap**2) * ndtr(gap * (2 * end - 1) / deviation))


def chi_squared(reference: Sequence[int], current: Sequence[int]) -> TestResult:
    """Run the chi-squared test of two windows over the same categories; the effect is the total variation distance.

    This distance is the share of rows whose category would have to change to make the shares equal. Like the KS
    statistic, and unlike Cramér's V, it does not depend on the ratio of the windows' rows. With a single category the
    p-value is 1.

    >>> result = chi_squared([90, 10], [70, 30])
    >>> result.p_value < 0.01, round(result.effect, 3)
    (True, 0.2)
    >>> chi_squared([50], [60])
    TestResult(statistic=0.0, p_value=1.0, effect=0.0)
    """
    from scipy.stats import chi2_contingency

    if len(reference) < 2:
        return TestResult(0.0, 1.0, 0.0)
    result = chi2_contingency([list(reference), list(current)], correction=False)
    rows_before, rows_after = sum(reference), sum(current)
    pairs = zip(reference, current, strict=True)
    distance = sum(abs(before / rows_before - after / rows_after) for before, after in pairs) / 2.0
    return TestResult(float(result.statistic), float(result.pvalue), distance)


def missing_test(missing_reference: int, rows_reference: int, missing_current: int, rows_current: int) -> TestResult:
    """Test whether the shares of missing values are equal; the effect is the difference between the shares.

    >>> missing_test(0, 500, 50, 500).effect
    0.1
    >>> missing_test(3, 500, 3, 500).p_value
    1.0
    """
    import numpy as np
    from scipy.stats import chi2_contingency, fisher_exact

    shares = missing_reference / rows_reference, missing_current / rows_current
    table = [
        [missing_reference, rows_reference - missing_reference],
        [missing_current, rows_current - missing_current],
    ]
    columns = [missing_reference + missing_current, table[0][1] + table[1][1]]
    if 0 in columns:
        return TestResult(0.0, 1.0, 0.0)
    least = min(columns) * min(rows_reference, rows_current) / (rows_reference + rows_current)
    if least < MINIMUM_EXPECTED:
        p_value = float(fisher_exact(np.array(table)).pvalue)
    else:
        p_value = float(chi2_contingency(table, correction=False).pvalue)
    effect = abs(shares[1] - shares[0])
    return TestResult(effect, min(1.0, p_value), effect)


def stability_index(reference: Sequence[int], current: Sequence[int]) -> float:
    """Return the population stability index of two histograms over the same bins.

    PSI = Σ (c_i - r_i) ln(c_i / r_i) over the shares r_i and c_i of each bin. Half a row is added to each bin
    (Jeffreys' prior), so that an empty bin gives a large but finite number.

    >>> round(stability_index([50, 50], [50, 50]), 3)
    0.0
    >>> stability_index([900, 100], [500, 500]) > 0.25
    True
    """
    from math import log

    n_reference = sum(reference) + 0.5 * len(reference)
    n_current = sum(current) + 0.5 * len(current)
    total = 0.0
    for r, c in zip(reference, current, strict=True):
        r_share, c_share = (r + 0.5) / n_reference, (c + 0.5) / n_current
        total += (c_share - r_share) * log(c_share / r_share)
    return total


def stability_index_of_values(reference: NDArray[np.float64], current: NDArray[np.float64], *, bins: int = 10) -> float:
    """Return the PSI of numbers, in bins with equal shares of the reference window (deciles by default).

    If many rows have the same value (rain is mostly 0), some bins coincide and are merged, and this value has its own
    bin.

    >>> import numpy as np
    >>> values = np.arange(1000.0)
    >>> stability_index_of_values(values, values + 300) > 0.25
    True
    """
    import numpy as np

    edges, times = np.unique(np.quantile(reference, np.linspace(0, 1, bins + 1)[1:-1]), return_counts=True)
    # side="left" puts a value equal to an edge into the bin below it, so a frequent value needs an edge just below it.
    frequent = edges[(times > 1) & (edges > reference.min())]
    edges = np.unique(np.concatenate([edges, np.nextafter(frequent, -np.inf)]))
    size = len(edges) + 1
    r = np.bincount(np.searchsorted(edges, reference, side="left"), minlength=size)
    c = np.bincount(np.searchsorted(edges, current, side="left"), minlength=size)
    return stability_index(r.tolist(), c.tolist())
