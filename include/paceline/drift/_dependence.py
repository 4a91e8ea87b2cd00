"""The variance of a mean whose rows depend on each other: rows of one group, or rows that follow each other in time.

Called by the tests of ``paceline.drift``. A test that assumes independent rows raises false alarms if ten rows of one
customer, or the rows of one hour, are nearly equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# The estimated correlation of neighbours is limited to this, because a higher one leaves no independent rows.
_HIGHEST_CORRELATION = 0.97


@dataclass(frozen=True)
class Units:
    """The units of a window between which rows may be independent: its groups, or its points in time.

    Parameters
    ----------
    codes:
        The unit of each row, a number from 0.
    in_time_order:
        Whether the numbers follow the time, so that neighbouring units may depend on each other, too.
    """

    codes: NDArray[np.int64]
    in_time_order: bool = False

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Units:
        """Return the units of some rows."""
        return Units(self.codes[rows], self.in_time_order)


@dataclass(frozen=True)
class MeanVariance:
    """The variance of each column's mean.

    ``variance`` has one value for each column. ``design_effect`` is the ratio to the variance with independent rows, at
    least 1. ``freedom`` is the number of degrees of freedom of the estimate, at least 1: the effective number of units,
    less one.
    """

    variance: Floats
    design_effect: Floats
    freedom: float


def mean_variance(values: Floats, units: Units | None) -> MeanVariance:
    """Return the variance of the mean of each column of ``values``, an array of rows by columns.

    Without units, all rows are independent. The variance is never below that of independent rows.

    Notes
    -----
    For groups, the variance follows from the totals of the groups (M. H. Hansen, W. N. Hurwitz and W. G. Madow, "Sample
    Survey Methods and Theory", Wiley 1953). In time order, it is the long-run variance of the totals, prewhitened
    with an autoregression of first order (D. W. K. Andrews and J. C. Monahan, Econometrica 60, 1992).

    Examples
    --------
    >>> import numpy as np
    >>> customers = np.random.default_rng(0).normal(size=200)
    >>> values = np.repeat(customers, 10)[:, None]  # ten equal rows of each customer
    >>> effect = mean_variance(values, Units(np.repeat(np.arange(200), 10))).design_effect[0]
    >>> round(float(effect), 1)
    10.0
    """
    import numpy as np

    rows = len(values)
    centred = values - values.mean(axis=0)
    independent = (centred**2).sum(axis=0) / max(rows - 1, 1) / rows
    if units is None:
        return MeanVariance(independent, np.ones(values.shape[1]), max(rows - 1.0, 1.0))
    _, codes = np.unique(units.codes, return_inverse=True)
    number = int(codes.max()) + 1
    totals = np.stack([np.bincount(codes, column, number) for column in centred.T], axis=1)
    if units.in_time_order:
        long_run, correlation = _long_run_variance(totals)
        variance = long_run * number / rows**2
        independent_units = number * (1 - correlation) / (1 + correlation)
    else:
        variance = (totals**2).sum(axis=0) / rows**2 * number / max(number - 1, 1)
        independent_units = float(number)
    effect = np.divide(variance, independent, out=np.ones_like(variance), where=independent > 0).clip(min=1.0)
    return MeanVariance(independent * effect, effect, max(independent_units - 1.0, 1.0))


def _long_run_variance(totals: Floats) -> tuple[Floats, float]:
    """Return the long-run variance of each column of a series, and the median correlation of neighbours."""
    import numpy as np

    number = len(totals)
    square = (totals**2).sum(axis=0)
    product = (totals[1:] * totals[:-1]).sum(axis=0)
    correlation = np.divide(product, square, out=np.zeros_like(square), where=square > 0)
    # The estimate is too low in short series (M. G. Kendall, Biometrika 41, 1954).
    correlation = np.clip(correlation + (1 + 3 * correlation) / number, 0.0, _HIGHEST_CORRELATION)
    residuals = totals[1:] - correlation * totals[:-1]
    lags = int(4 * (number / 100) ** (2 / 9))  # the usual bandwidth of the Bartlett kernel
    residuals = residuals - residuals.mean(axis=0) if len(residuals) else totals
    variance = (residuals**2).sum(axis=0)
    for lag in range(1, min(lags, len(residuals) - 1) + 1):
        weight = 1 - lag / (lags + 1)
        variance = variance + 2 * weight * (residuals[lag:] * residuals[:-lag]).sum(axis=0)
    variance = variance.clip(min=0.0) / max(len(residuals), 1)
    return variance / (1 - correlation) ** 2, float(np.median(correlation))
