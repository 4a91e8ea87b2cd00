"""The loss of information in dependent rows, for each test of a feature: ``Design``.

Called by ``paceline.drift._features``, which scales the tests' numbers of rows with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.drift._dependence import MeanVariance, Units, mean_variance
from paceline.drift._statistics import TestResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# With fewer independent rows, a test would rest on an uncertain estimate of their number.
FEWEST_INDEPENDENT_ROWS = 5
_DECILES = 9
# With fewer independent units, the estimates vary, so use the largest of a feature's design effects, not their mean.
_FEW_UNITS = 30


@dataclass(frozen=True)
class Design:
    """How many dependent rows tell as much as one independent row, in each window.

    ``reference`` and ``current`` are design effects of at least 1. ``freedom`` is the number of degrees of freedom of
    their estimate, infinite for independent rows.
    """

    reference: float = 1.0
    current: float = 1.0
    freedom: float = float("inf")

    def independent_rows(self, reference: float, current: float) -> tuple[float, float]:
        """Return as how many independent rows the rows of both windows count."""
        return reference / self.reference, current / self.current

    def correct(self, p_value: float) -> float:
        """Return a p-value that takes into account that the design effects are estimates.

        As in a t-test, the quantile of a t distribution takes the place of the normal quantile.

        >>> Design().correct(0.01), round(Design(5, 5, 10).correct(0.01), 3)
        (0.01, 0.028)
        """
        from scipy.stats import norm, t

        if self.freedom == float("inf"):
            return p_value
        return min(1.0, 2.0 * float(t.sf(norm.isf(p_value / 2.0), self.freedom)))

    def correct_result(self, result: TestResult) -> TestResult:
        """Return a test's result with the corrected p-value."""
        return replace(result, p_value=self.correct(result.p_value))


INDEPENDENT = Design()


def numeric_design(before: Floats, after: Floats, units: tuple[Units, Units] | None) -> Design:
    """Return the design of a test of numbers: that of the shares of values below each decile."""
    import numpy as np

    if units is None or not len(before) or not len(after):
        return INDEPENDENT
    pooled = np.concatenate([before, after])
    limits = np.unique(np.quantile(pooled, np.linspace(0, 1, _DECILES + 2)[1:-1]))
    return indicator_design([values[:, None] <= limits for values in (before, after)], units)


def indicator_design(indicators: list[NDArray[np.bool_]], units: tuple[Units, Units] | None) -> Design:
    """Return the design of a test of shares. ``indicators`` has, for both windows, an array of rows by shares."""
    import numpy as np

    if units is None:
        return INDEPENDENT
    found = [mean_variance(rows.astype(np.float64), one) for rows, one in zip(indicators, units, strict=True)]
    return combine_designs(found, list(map(len, indicators)))


def combine_designs(found: Sequence[MeanVariance], rows: Sequence[int]) -> Design:
    """Return the design of a test from the variances of means in both windows, given the windows' numbers of rows."""
    few = min(one.freedom for one in found) < _FEW_UNITS
    reference, current = (_combine(one, few) for one in found)
    # Welch's formula; the variance of a mean is the design effect over the number of rows.
    shares = [effect / number for effect, number in zip((reference, current), rows, strict=True)]
    freedom = sum(shares) ** 2 / sum(share**2 / one.freedom for share, one in zip(shares, found, strict=True))
    return Design(reference, current, freedom)


def _combine(found: MeanVariance, few: bool) -> float:
    varying = found.design_effect[found.variance > 0]
    if not len(varying):
        return 1.0
    return float(varying.max() if few else varying.mean())
