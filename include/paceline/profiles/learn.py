"""Learns one function from measurements: the mean of the regressions that cross-validation finds best."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidInputError
from paceline.profiles.functions import Function

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

LEAST_POINTS = 8
_FOLDS = 5
_MOST_REGRESSIONS = 3  # whose mean is taken
_SMALLEST_SHARE = 0.01  # a share below it counts as wrong in parts of this


@dataclass(frozen=True)
class Learned:
    """A function as it was learned.

    ``mape_pct`` and ``mape_sd_pct`` are the mean absolute percentage error on points that were left out, and its
    standard deviation over them, as in the paper's Table I. ``regression`` names the kind that was chosen, or those
    whose mean was. ``low`` and ``high`` are the least and the most of each feature that was measured: beyond them a
    regression may say anything, so what lies there counts as if it were there.
    """

    function: Function
    model: Any
    regression: str
    points: int
    mape_pct: float
    mape_sd_pct: float
    low: tuple[float, ...]
    high: tuple[float, ...]

    def __call__(self, features: Floats) -> Floats:
        """Predict for rows of features, in the order of ``function.features``; shape (rows,)."""
        predicted = self.model.predict(np.clip(features, self.low, self.high))
        return _values(self.function, np.asarray(predicted, dtype=float))


def learn(function: Function, measurements: pd.DataFrame, *, seed: int = 0) -> Learned:
    """Learn a function from measurements.

    Parameters
    ----------
    function:
        What to learn.
    measurements:
        One row for each point that was measured, with the function's columns.
    seed:
        Of the folds and of regressions that draw numbers.

    Raises
    ------
    InvalidInputError
        For missing columns, too few rows, values that are no numbers, times that are not positive.

    Examples
    --------
    >>> import pandas as pd
    >>> cpu = np.linspace(0, 1, 30)
    >>> rows = pd.DataFrame({"cpu": cpu, "gpu": 0.0, "batch_size": 8.0, "compute_s": 0.02 * (1 + cpu)})
    >>> from paceline.profiles import FUNCTIONS
    >>> learned = learn(FUNCTIONS[0], rows)
    >>> learned.mape_pct < 1, round(float(learned(np.array([[0.5, 0.0, 8.0]]))[0]), 3)
    (True, 0.03)
    """
    features, target = _columns(function, measurements)
    wanted = target if function.share else np.log(target)
    regressions = dict(_regressions(features.shape[1], seed))
    left_out = {name: _left_out(regression, features, wanted, seed) for name, regression in regressions.items()}

    def errors(names: Sequence[str]) -> Floats:
        return errors_pct(function, _values(function, np.mean([left_out[name] for name in names], axis=0)), target)

    def error(names: Sequence[str]) -> float:
        return float(np.mean(errors(names)))

    ranked = sorted(regressions, key=lambda name: error([name]))
    best = min((ranked[:count] for count in range(1, _MOST_REGRESSIONS + 1)), key=error)
    model = _mean_of({name: regressions[name] for name in best})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(features, wanted)
    low, high = (tuple(map(float, bound(features, axis=0))) for bound in (np.min, np.max))
    mape_pct, sd_pct = round(error(best), 3), round(float(np.std(errors(best))), 3)
    return Learned(function, model, " + ".join(best), len(target), mape_pct, sd_pct, low, high)


def errors_pct(function: Function, predicted: Floats, target: Floats) -> Floats:
    """How far off each prediction is, in percent of the truth."""
    least = _SMALLEST_SHARE if function.share else 0.0
    return np.asarray(100.0 * np.abs(predicted - target) / np.maximum(target, least), dtype=float)


def _columns(function: Function, measurements: pd.DataFrame) -> tuple[Floats, Floats]:
    wanted = [*function.features, function.target]
    missing = [name for name in wanted if name not in measurements.columns]
    if missing:
        raise InvalidInputError("measurements", list(measurements.columns), f"the columns {', '.join(missing)} as well")
    try:
        values = measurements[wanted].to_numpy(dtype=float)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("measurements", str(error), f"numbers in {', '.join(wanted)}") from None
    if len(values) < LEAST_POINTS:
        raise InvalidInputError("measurements", f"{len(values)} points", f"at least {LEAST_POINTS} for {function.name}")
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InvalidInputError(f"{wanted[column]} in row {row}", values[row, column], "a finite number")
    target = values[:, -1]
    if not function.share and (target <= 0).any():
        row = int(np.argmax(target <= 0))
        raise InvalidInputError(f"{function.target} in row {row}", float(target[row]), "seconds, more than 0")
    return values[:, :-1], target


def _values(function: Function, predicted: Floats) -> Floats:
    """What a regression predicts, as the function's values.

    Shares are learned as they are, times by their logarithm: a tenth too long is as wrong at 1 ms as at 1 s.
    """
    return np.clip(predicted, 0.0, 1.0) if function.share else np.exp(predicted)


def _left_out(regression: Any, features: Floats, wanted: Floats, seed: int) -> Floats:
    """What a regression predicts of each point when it has learned from the other folds; shape (points,)."""
    from sklearn.model_selection import KFold, cross_val_predict

    folds = KFold(n_splits=_FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a kernel's parameter at its bound is no news
        return np.asarray(cross_val_predict(regression, features, wanted, cv=folds), dtype=float)


def _mean_of(regressions: Mapping[str, Any]) -> Any:
    """One regression that predicts the mean of several: where they are wrong in different places, it is less so."""
    from sklearn.ensemble import VotingRegressor

    if len(regressions) == 1:
        return next(iter(regressions.values()))
    return VotingRegressor(list(regressions.items()))


def _regressions(features: int, seed: int) -> Iterator[tuple[str, Any]]:
    """The kinds that compete: smooth ones that need few points, and ensembles of trees for what is not smooth."""
    from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    penalties = np.logspace(-6, 2, 9)
    for degree in (1, 2, 3):
        yield (
            f"polynomial of degree {degree}",
            make_pipeline(StandardScaler(), PolynomialFeatures(degree), RidgeCV(penalties)),
        )
    yield "Gaussian process", gaussian_process(features, seed)
    boosted = GradientBoostingRegressor(n_estimators=150, learning_rate=0.1, max_depth=3, random_state=seed)
    yield "gradient boosting", boosted
    yield "extra trees", ExtraTreesRegressor(100, min_samples_leaf=2, random_state=seed)


def gaussian_process(features: int, seed: int) -> Any:
    """A Gaussian process with a length scale for each feature; it also knows how sure it is."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kernel = ConstantKernel(1.0) * Matern(np.ones(features), (0.05, 1e3), nu=2.5) + WhiteKernel(0.01, (1e-6, 1.0))
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    return make_pipeline(StandardScaler(), process)
