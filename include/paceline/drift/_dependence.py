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

    def first_rows(self) -> NDArray[np.int64]:
        """Return the first row of each unit."""
        import numpy as np

        return np.unique(self.codes, return_index=True)[1]


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
    totals: Floats = np.stack([np.bincount(codes, column, number) for column in centred.T], axis=1, dtype=float)
    if units.in_time_order:
        long_run, ratio = _long_run_variance(totals)
        variance = long_run * number / rows**2
        independent_units = number / max(ratio, 1.0)
    else:
        variance = (totals**2).sum(axis=0) / rows**2 * number / max(number - 1, 1)
        sizes = np.bincount(codes)
        independent_units = float(sizes.sum() ** 2 / (sizes.astype(float) ** 2).sum())  # a large group counts as one
    effect = np.divide(variance, independent, out=np.ones_like(variance), where=independent > 0).clip(min=1.0)
    return MeanVariance(independent * effect, effect, max(independent_units - 1.0, 1.0))


def effect_after(before: float, after: float, units: tuple[Units, Units]) -> float:
    """Return the design effect of later rows, given the estimates of earlier and of later ones.

    Later rows may be too few to show how much they depend on each other, for example those of one day; the earlier rows
    show it, too. ``units`` are those of the earlier and of the later rows.

    >>> import numpy as np
    >>> days, today = Units(np.repeat(np.arange(30), 10)), Units(np.zeros(50, dtype=int))
    >>> effect_after(4.0, 1.0, (days, today)) == 1 + 3.0 * 50 / 10
    True
    """
    sizes = [len(one.codes) / len(one.first_rows()) for one in units]
    return max(after, 1 + (before - 1) * sizes[1] / sizes[0])


def _long_run_variance(totals: Floats) -> tuple[Floats, float]:
    """Return the long-run variance of each column of a series, and its median ratio to the variance.

    An autoregression gives the long-run variance; Akaike's criterion chooses its order.
    """
    import numpy as np

    number = len(totals)
    highest = max(0, min(int(10 * np.log10(number)), number - 2))
    covariance = np.array([(totals[lag:] * totals[: number - lag]).sum(axis=0) for lag in range(highest + 1)]) / number
    known = covariance[0] > 0
    covariance = covariance[:, known]
    # The estimated correlations are too low in short series (M. G. Kendall, Biometrika 41, 1954).
    correlation = covariance / covariance[0]
    error = np.ones(correlation.shape[1])
    weights = np.zeros((0, correlation.shape[1]))
    best = np.full(correlation.shape[1], np.inf)
    ratio = np.ones(correlation.shape[1])
    for order in range(highest + 1):
        if order:  # the recursion of Levinson and Durbin
            reflection = (correlation[order] - (weights * correlation[order - 1 : 0 : -1]).sum(axis=0)) / error
            weights = np.concatenate([weights - reflection * weights[::-1], reflection[None]])
            error = error * (1 - reflection**2)
        criterion = number * np.log(error) + 2 * order
        better = criterion < best
        best = np.where(better, criterion, best)
        total = np.minimum(weights.sum(axis=0), _HIGHEST_CORRELATION)
        total = total + (1 + 3 * np.maximum(total, 0)) / number * (order > 0)
        total = np.minimum(total, _HIGHEST_CORRELATION)
        scale = number / max(number - order - 1, 1)
        ratio = np.where(better, error * scale / (1 - total) ** 2, ratio)
    result = np.zeros(totals.shape[1])
    result[known] = ratio * covariance[0]
    return result, float(np.median(ratio)) if known.any() else 1.0
