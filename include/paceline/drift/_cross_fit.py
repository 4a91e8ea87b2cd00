"""Estimates errors with models that are cross-fitted to the reference, with the uncertainty of the estimates.

Called by ``paceline.drift._estimates``. Cross-fitting keeps a model's fit to its own rows from biasing an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.drift._dependence import Units, effect_after, mean_variance
from paceline.drift._learners import FOLDS, Learner
from paceline.drift.units import FEWEST_REFERENCE_TIMES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Times:
    """The points in time of the rows.

    Parameters
    ----------
    reference:
        Number of points in time of the reference.
    learned:
        The point in time of each of the learner's rows of the reference, numbered in time order.
    current:
        The point in time of each current row.
    """

    reference: int
    learned: Rows
    current: Rows


@dataclass(frozen=True)
class CrossFit:
    """The models of all folds of the reference, and the estimates that follow from them.

    The methods take row numbers of the current window, counted from 0.

    Parameters
    ----------
    learner:
        The learner, which contains the rows of both windows.
    reference_error:
        Realised error of the reference.
    own:
        Prediction for each row of the reference, by the model that has not learned from this row.
    current:
        Predictions of each model for all current rows.
    learned_errors:
        Realised error of the rows from which each model has learned.
    times:
        The points in time of both windows, if they are known.
    time_variance:
        Variance of the errors' mean over one point in time that errors of independent rows would not have.
    """

    learner: Learner
    reference_error: float
    own: Floats
    current: Floats
    learned_errors: Floats
    times: Times | None = None
    time_variance: float = 0.0

    def error(self, rows: Rows) -> tuple[float, float]:
        """Return the estimated error of current rows, and its standard error; see ``PerformanceEstimate``."""
        import numpy as np

        expected = self.current[:, rows].mean(axis=0)
        noise = self.learner.noise(expected, self._positions(rows), self.own).mean() / len(rows)
        variance = _jackknife_variance(self._errors_by_fold(rows)) + float(noise)
        if self.times is not None:
            variance += self.time_variance * (1 / self.times.reference + 1 / len(np.unique(self.times.current[rows])))
        return self.reference_error + self.rise(rows), variance**0.5

    def rise(self, rows: Rows) -> float:
        """Return the expected error of current rows less that of the reference."""
        import numpy as np

        before = self.learner.values(self.own, np.arange(len(self.own)))
        return float(self.expected(rows).mean() - before.mean())

    def expected(self, rows: Rows) -> Floats:
        """Return the value of each current row whose mean is the expected error."""
        return self.learner.values(self.current[:, rows].mean(axis=0), self._positions(rows))

    def limits(self, rows: Rows) -> tuple[Floats, Floats]:
        """Return the lowest and the highest value that the label of each current row can give."""
        return self.learner.limits(self.current[:, rows].mean(axis=0), self._positions(rows))

    def rise_p_value(self, rows: Rows, added: float = 0.0) -> float:
        """Return the p-value of the hypothesis that the expected error of current rows is not above the reference's.

        ``added`` is added to the expected error.

        The jackknife gives the variance that comes from the reference, with one degree of freedom less than there are
        folds. Welch's formula combines it with the variance of the current rows. With times, rows of the same and of
        neighbouring times count as fewer rows.
        """
        from scipy.stats import t

        values, rise = self.expected(rows), self.rise(rows) + added
        before = _jackknife_variance(self._errors_by_fold(rows) - self.learned_errors)
        after = float(values.var(ddof=1)) / len(rows)
        freedoms = FOLDS - 1.0, len(rows) - 1.0
        if self.times is not None and self.times.reference >= FEWEST_REFERENCE_TIMES:
            units = Units(self.times.learned, True), Units(self.times.current[rows], True)
            (before, after), freedoms = self._dependent_variances(before, values, units)
        if not before + after > 0:  # constant predictions
            return 0.0 if rise > 0 else 1.0
        freedom = (before + after) ** 2 / (before**2 / freedoms[0] + after**2 / freedoms[1])
        return float(t.sf(rise / (before + after) ** 0.5, freedom))

    def _dependent_variances(
        self, jackknife: float, values: Floats, units: tuple[Units, Units]
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the variances that come from the reference and from current rows, and the degrees of freedom of each.

        ``jackknife`` is the variance from independent rows of the reference, and ``values`` are the expected errors of
        the current rows. The first part of this variance is that of the mean expected error of the reference. The rest
        comes from the deviations from the expected errors, which often depend less on the time.
        """
        import numpy as np

        everything = np.arange(len(self.own))
        own, known = (self.learner.values(target, everything) for target in (self.own, self.learner.target))
        found = mean_variance(np.stack([own, known - own], axis=1), units[0])
        now = mean_variance(values[:, None], units[1])
        effects = found.design_effect
        rest = max(jackknife - float(found.variance[0] / effects[0]), 0.0)
        before = jackknife + float(found.variance[0] * (1 - 1 / effects[0]) + rest * (effects[1] - 1))
        effect = effect_after(float(effects[0]), float(now.design_effect[0]), units)
        after = float(now.variance[0] / now.design_effect[0]) * effect
        return (before, after), (min(FOLDS - 1.0, found.freedom), max(len(values) / effect - 1, 1.0))

    def realised(self, target: Floats, rows: Rows) -> float:
        """Return the realised error of current rows; ``target`` has the labels or errors of all current rows."""
        return float(self.learner.values(target[rows], self._positions(rows)).mean())

    def _errors_by_fold(self, rows: Rows) -> Floats:
        import numpy as np

        return np.array([self.learner.values(fold[rows], self._positions(rows)).mean() for fold in self.current])

    def _positions(self, rows: Rows) -> Rows:
        return len(self.own) + rows


def cross_fit(learner: Learner, reference_error: float | None = None, times: Times | None = None) -> CrossFit:
    """Fit one model for each fold of the reference, to all rows outside the fold.

    ``reference_error`` is the realised error of the reference, if the learner has only a sample of its rows. Without
    ``times``, the deviations of the errors from their predictions count as independent.
    """
    import numpy as np
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    start = len(learner.target)
    if reference_error is None:
        reference_error = float(learner.values(learner.target, np.arange(start)).mean())
    own = np.empty(start)
    current, learned_errors = [], []
    with threadpool_limits(1, user_api="openmp"):  # other tasks share the machine, and the models are small
        for rows, fold in learner.split():
            model = learner.fit(rows)
            own[fold] = model.predict(learner.inputs[fold])
            current.append(model.predict(learner.inputs[start:]))
            learned_errors.append(float(learner.values(learner.target[rows], rows).mean()))
    excess = 0.0
    if times is not None:
        everything = np.arange(start)
        deviations = learner.values(learner.target, everything) - learner.values(own, everything)
        found = mean_variance(deviations[:, None], Units(times.learned, in_time_order=True))
        excess = float(found.variance[0] * (1 - 1 / found.design_effect[0])) * times.reference
    return CrossFit(learner, reference_error, own, np.array(current), np.array(learned_errors), times, excess)


def _jackknife_variance(estimates: Floats) -> float:
    """Return the variance of an estimate, given one estimate for each fold that is left out."""
    return float(((estimates - estimates.mean()) ** 2).sum() * (len(estimates) - 1) / len(estimates))
