"""Statistics of one feature: two-sample tests and the population stability index, on plain arrays.

Called by ``paceline.drift._features``, which interprets the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OTHER = "(other)"
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


def kolmogorov_smirnov(reference: NDArray[np.float64], current: NDArray[np.float64]) -> TestResult:
    """Run the two-sample Kolmogorov-Smirnov test, which finds the largest gap between two cumulative distributions.

    The statistic is also the effect: 0.1 means that at some value the shares of rows below it differ by ten points.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> kolmogorov_smirnov(rng.normal(0, 1, 500), rng.normal(0.5, 1, 500)).p_value < 1e-6
    True
    """
    from scipy.stats import ks_2samp

    # The asymptotic p-value is fast to compute at every sample size; the exact p-value is not.
    result = ks_2samp(reference, current, method="asymp")
    return TestResult(float(result.statistic), float(result.pvalue), float(result.statistic))


def merge_rare(
    reference: Mapping[str, int], current: Mapping[str, int], *, minimum_expected: float = MINIMUM_EXPECTED
) -> tuple[list[str], list[int], list[int]]:
    """Merge categories too rare for a chi-squared test into ``(other)``.

    A category that one window lacks has the count 0 there. If ``(other)`` is too rare, it is merged with the smallest
    remaining category, so that every expected count is large enough or only one category remains.

    Returns
    -------
    The labels, most frequent first, and the counts of both windows in that order.

    Examples
    --------
    >>> merge_rare({"a": 86, "b": 10, "c": 4}, {"a": 62, "b": 30, "d": 8})
    (['a', 'b', '(other)'], [86, 10, 4], [62, 30, 8])
    """
    n_reference, n_current = sum(reference.values()), sum(current.values())
    smaller_share = min(n_reference, n_current) / (n_reference + n_current)
    labels = sorted(set(reference) | set(current))
    pooled = {label: reference.get(label, 0) + current.get(label, 0) for label in labels}
    kept = [label for label in labels if pooled[label] * smaller_share >= minimum_expected]
    kept.sort(key=lambda label: (-pooled[label], label))
    rows = [[reference.get(label, 0), current.get(label, 0)] for label in kept]
    other = [n_reference - sum(r for r, _ in rows), n_current - sum(c for _, c in rows)]
    if sum(other):
        if sum(other) * smaller_share >= minimum_expected or not rows:
            kept.append(OTHER)
            rows.append(other)
        else:
            kept[-1] = f"{kept[-1]} and {OTHER}"
            rows[-1] = [rows[-1][0] + other[0], rows[-1][1] + other[1]]
    return kept, [r for r, _ in rows], [c for _, c in rows]


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

    If many rows have the same value (rain is mostly 0), some bins coincide and are merged.

    >>> import numpy as np
    >>> values = np.arange(1000.0)
    >>> stability_index_of_values(values, values + 300) > 0.25
    True
    """
    import numpy as np

    edges = np.unique(np.quantile(reference, np.linspace(0, 1, bins + 1)[1:-1]))
    size = len(edges) + 1
    # side="left" puts a value equal to an edge into the bin below it, so that a frequent value has its own bin.
    r = np.bincount(np.searchsorted(edges, reference, side="left"), minlength=size)
    c = np.bincount(np.searchsorted(edges, current, side="left"), minlength=size)
    return stability_index(r.tolist(), c.tolist())
