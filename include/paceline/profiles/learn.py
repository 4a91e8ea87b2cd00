"""Learns a function from measurements as the mean of the regressions that perform best in cross-validation."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidInputError
from paceline.profiles._functions import Function

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

MIN_POINTS = 8
_FOLDS = 5
_MAX_REGRESSIONS = 3  # maximum number of regressions whose mean is the learned function
_NEGLIGIBLE_PCT = 0.1  # with a smaller error, other regressions are not tried: the measurements are less accurate
_MIN_SHARE = 0.01  # relative errors of smaller shares are relative to this share


@dataclass(frozen=True, eq=False)
class Learned:
    """A function that was learned from measured points: the mean of the regressions that were the best for them.

    The regressions are fitted when the function is called for the first time, which takes about a tenth of a second.
    Equal points and an equal ``seed`` give equal regressions.

    Parameters
    ----------
    function:
        What was learned.
    regressions:
        Names of the chosen regressions.
    features:
        Features of the measured points, in the order of ``function.features``; shape (points, features).
    target:
        The measured values; shape (points,).
    mape_pct, mape_sd_pct:
        Mean absolute percentage error in cross-validation, and its standard deviation over the points, as in the
        paper's Table I.
    seed:
        Seed of randomized regressions.
    """

    function: Function
    regressions: tuple[str, ...]
    features: Floats
    target: Floats
    mape_pct: float
    mape_sd_pct: float
    seed: int = 0

    def __call__(self, features: Floats) -> Floats:
        """Return one prediction per row of features, which are in the order of ``function.features``; shape (rows,).

        Features are clipped to the measured range, because regressions extrapolate badly.
        """
        predicted = self.model.predict(np.clip(features, self.low, self.high))
        return _function_values(self.function, np.asarray(predicted, dtype=float))

    @cached_property
    def model(self) -> Any:
        """The fitted mean of the regressions, in the interface of scikit-learn."""
        known = dict(_regressions(len(self.function.features), self.seed))
        model = _mean_of({name: known[name] for name in self.regressions})
        with warnings.catch_warnings(), quick_fits():
            warnings.simplefilter("ignore")
            return model.fit(self.features, _regression_target(self.function, self.target))

    @property
    def regression(self) -> str:
        """The names of the regressions, for people."""
        return " + ".join(self.regressions)

    @property
    def points(self) -> int:
        """Number of measured points."""
        return len(self.target)

    @property
    def low(self) -> Floats:
        """Measured minimum of each feature; shape (features,)."""
        return np.asarray(self.features.min(axis=0), dtype=float)

    @property
    def high(self) -> Floats:
        """Measured maximum of each feature; shape (features,)."""
        return np.asarray(self.features.max(axis=0), dtype=float)


def learn(function: Function, measurements: pd.DataFrame, *, seed: int = 0) -> Learned:
    """Learn a function from measurements.

    Parameters
    ----------
    function:
        Function to learn.
    measurements:
        One row for each measured point, with the function's columns.
    seed:
        Seed of the cross-validation folds and of randomized regressions.

    Raises
    ------
    InvalidInputError
        For missing columns, too few rows, values that are not numbers, or times that are not positive.

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
    features, target = _read_columns(function, measurements)
    transformed = _regression_target(function, target)
    predicted: dict[str, Floats] = {}

    def point_errors_pct(names: Sequence[str]) -> Floats:
        mean = np.mean([predicted[name] for name in names], axis=0)
        return errors_pct(function, _function_values(function, mean), target)

    def mean_error_pct(names: Sequence[str]) -> float:
        return float(np.mean(point_errors_pct(names)))

    with quick_fits():
        for name, regression in _regressions(features.shape[1], seed):
            predicted[name] = _cross_validate(regression, features, transformed, seed)
            if mean_error_pct([name]) < _NEGLIGIBLE_PCT:
                break
    ranked = sorted(predicted, key=lambda name: mean_error_pct([name]))
    best = min((ranked[:count] for count in range(1, _MAX_REGRESSIONS + 1)), key=mean_error_pct)
    mape_pct, sd_pct = round(mean_error_pct(best), 3), round(float(np.std(point_errors_pct(best))), 3)
    return Learned(function, tuple(best), features, target, mape_pct, sd_pct, seed)


def regression_names() -> list[str]:
    """Return the names of the regressions among which ``learn`` chooses."""
    return [name for name, _ in _regressions(1, 0)]


def errors_pct(function: Function, predicted: Floats, target: Floats) -> Floats:
    """Return the absolute error of each prediction in percent of its target."""
    minimum = _MIN_SHARE if function.share else 0.0
    return np.asarray(100.0 * np.abs(predicted - target) / np.maximum(target, minimum), dtype=float)


def _read_columns(function: Function, measurements: pd.DataFrame) -> tuple[Floats, Floats]:
    columns = [*function.features, function.target]
    missing = [name for name in columns if name not in measurements.columns]
    if missing:
        raise InvalidInputError("measurements", list(measurements.columns), f"also the columns {', '.join(missing)}")
    try:
        values = measurements[columns].to_numpy(dtype=float)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("measurements", str(error), f"numbers in {', '.join(columns)}") from None
    if len(values) < MIN_POINTS:
        raise InvalidInputError("measurements", f"{len(values)} points", f"at least {MIN_POINTS} for {function.name}")
    invalid = ~np.isfinite(values)
    if invalid.any():
        row, column = np.argwhere(invalid)[0]
        raise InvalidInputError(f"{columns[column]} in row {row}", values[row, column], "a finite number")
    target = values[:, -1]
    if not function.share and (target <= 0).any():
        row = int(np.argmax(target <= 0))
        raise InvalidInputError(f"{function.target} in row {row}", float(target[row]), "seconds greater than 0")
    return values[:, :-1], target


def _regression_target(function: Function, target: Floats) -> Floats:
    """Convert values of the function into what regressions learn."""
    return target if function.share else np.log(target)


def _function_values(function: Function, predicted: Floats) -> Floats:
    """Convert the predictions of a regression into values of the function.

    Regressions learn the logarithm of a time, so that an error of 10 % has the same weight at 1 ms and at 1 s.
    """
    return np.clip(predicted, 0.0, 1.0) if function.share else np.exp(predicted)


@contextlib.contextmanager
def quick_fits() -> Iterator[None]:
    """Fit regressions to few points in a fraction of the time: in a single thread, without scikit-learn's checks.

    For so few points, threads only wait for each other: on a busy machine, most of the time. ``_read_columns`` has
    checked the values.
    """
    import sklearn
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(limits=1), sklearn.config_context(skip_parameter_validation=True, assume_finite=True):
        yield


def _cross_validate(regression: Any, features: Floats, target: Floats, seed: int) -> Floats:
    """Predict each point with a regression fitted to the folds that do not contain the point; shape (points,)."""
    from sklearn.model_selection import KFold, cross_val_predict

    folds = KFold(n_splits=_FOLDS, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ignore warnings about kernel parameters at their bounds
        return np.asarray(cross_val_predict(regression, features, target, cv=folds), dtype=float)


def _mean_of(regressions: Mapping[str, Any]) -> Any:
    """Return a regression that predicts the mean of ``regressions``, whose errors partly cancel out."""
    from sklearn.ensemble import VotingRegressor

    if len(regressions) == 1:
        return next(iter(regressions.values()))
    return VotingRegressor(list(regressions.items()))


def _regressions(features: int, seed: int) -> Iterator[tuple[str, Any]]:
    """Yield the candidate regressions: smooth regressions, which need few points, and tree ensembles."""
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
    """Return a Gaussian process with a length scale for each feature; the process also predicts variances."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kernel = ConstantKernel(1.0) * Matern(np.ones(features), (0.05, 1e3), nu=2.5) + WhiteKernel(0.01, (1e-6, 1.0))
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    return make_pipeline(StandardScaler(), process)
