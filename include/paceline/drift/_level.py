"""Tests whether the model's error is higher in some rows than in others. Called by ``paceline.drift.concept``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.drift._dependence import Units, effect_after, mean_variance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ErrorRows:
    """The errors of some rows in time order.

    Parameters
    ----------
    errors:
        The error of each row.
    units:
        The units between which rows may be independent.
    classes:
        Class of each row, if the mean is that of the classes' means.
    seasons:
        Season of each row, if only rows of the same season are comparable.
    """

    errors: Floats
    units: Units
    classes: Floats | None = None
    seasons: NDArray[np.int64] | None = None

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> ErrorRows:
        """Return some of the rows."""
        return ErrorRows(
            self.errors[rows],
            self.units.take(rows),
            None if self.classes is None else self.classes[rows],
            None if self.seasons is None else self.seasons[rows],
        )

    def strata(self) -> NDArray[np.int64]:
        """Return a code for each row; rows with equal codes have the same class and season."""
        import numpy as np

        codes = np.zeros(len(self.errors), np.int64) if self.seasons is None else 2 * self.seasons
        return codes if self.classes is None else codes + (self.classes == 1)


def mean_error(errors: Floats, classes: Floats | None) -> float:
    """Return the mean of the errors; with ``classes``, the mean of the means of the classes that occur."""
    return float((_weigh(classes, len(errors)) * errors).mean())


def _weigh(classes: Floats | None, rows: int) -> Floats:
    """Return the weight of each row in the mean; the mean weight is 1."""
    import numpy as np

    if classes is None:
        return np.ones(rows)
    _, codes, counts = np.unique(classes, return_inverse=True, return_counts=True)
    weights: Floats = rows / len(counts) / counts[codes]
    return weights


def compare_means(before: ErrorRows, after: ErrorRows) -> tuple[float, float]:
    """Return how much higher the mean error is after than before, and the p-value of a one-sided test.

    The errors before are weighted so that each class and season has the same share as after. Rows whose class and
    season the other rows lack do not count. Without comparable rows, the rise is 0 and the p-value is 1.

    Notes
    -----
    B. L. Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34, 1947. For the ranking error, the variance of the difference is that of E. R. DeLong et al.,
    Biometrics 44, 1988: both means are of placements among the same reference scores, so half of the variation of
    those scores cancels.
    """
    import numpy as np
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]

    old, new = before.strata(), after.strata()
    before, after = before.take(np.isin(old, new)), after.take(np.isin(new, old))
    if min(len(before.errors), len(after.errors)) < 2:
        return 0.0, 1.0
    _, codes = np.unique(np.concatenate([before.strata(), after.strata()]), return_inverse=True)
    old, new = np.split(codes, [len(before.errors)])
    weights = _weigh(after.classes, len(after.errors))
    counts = np.bincount(old)
    means = np.bincount(old, before.errors) / counts
    share = np.bincount(new, weights) / len(new)
    rises = after.errors - means[new]
    rise = float((weights * rises).mean())
    group = (
        np.zeros(len(rises), np.int64) if after.classes is None else np.unique(after.classes, return_inverse=True)[1]
    )
    centres = np.bincount(group, rises) / np.bincount(group)
    freedom = (len(old) - 1) / max(len(old) - len(counts), 1)  # a mean of each class and season is estimated
    deviations = (
        freedom**0.5 * len(old) * (share / counts)[old] * (before.errors - means[old]),
        weights * (rises - centres[group]),
    )
    variances, freedoms = _variances(deviations, (before.units, after.units))
    if not sum(variances):
        return rise, float(rise <= 0)
    freedom = sum(variances) ** 2 / sum(v**2 / f for v, f in zip(variances, freedoms, strict=True))
    return rise, float(stats.t.sf(rise / sum(variances) ** 0.5, freedom))


def _variances(
    deviations: tuple[Floats, Floats], units: tuple[Units, Units]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the variance of the mean of the rows before and after, and the degrees of freedom of each."""
    rows = [len(part) for part in deviations]
    found = [mean_variance(part[:, None], unit) for part, unit in zip(deviations, units, strict=True)]
    single = [float(v.variance[0] / v.design_effect[0]) for v in found]
    # Few rows may have equal errors, by chance or because they depend on each other. Use at least the variance of all.
    pooled = sum(v * n**2 for v, n in zip(single, rows, strict=True)) / sum(rows)
    single = [max(v, pooled / n) for v, n in zip(single, rows, strict=True)]
    before, after = (float(v.design_effect[0]) for v in found)
    after = effect_after(before, after, units)
    return (single[0] * before, single[1] * after), (found[0].freedom, max(rows[1] / after - 1, 1.0))
