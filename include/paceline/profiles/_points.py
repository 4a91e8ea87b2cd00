"""Selects the points to measure: first points spread over the grid, then points with the largest predicted variance."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidInputError
from paceline.profiles._functions import Function
from paceline.profiles.learn import gaussian_process, quick_fits

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Point = dict[str, float]


@dataclass(frozen=True)
class Axes:
    """The varied parameters and their values. The combinations of all values form a grid.

    Examples
    --------
    >>> axes = Axes({"cpu": (0.0, 0.5, 0.9), "batch_size": (1, 8, 32)})
    >>> len(axes.grid), axes.grid[1]
    (9, {'cpu': 0.0, 'batch_size': 8.0})
    """

    values: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        for name, values in self.values.items():
            if not values or len(set(values)) < len(values):
                raise InvalidInputError(f"axes.{name}", list(values), "at least one value, without duplicates")

    @property
    def grid(self) -> list[Point]:
        """All combinations of the values."""
        names = list(self.values)
        return [
            {name: float(value) for name, value in zip(names, point, strict=True)}
            for point in itertools.product(*self.values.values())
        ]

    def scaled(self, points: Sequence[Point]) -> Floats:
        """Scale each axis of the points to the range from 0 to 1; shape (points, axes).

        The scale uses the index of each value, so that batch sizes that double at each step are equidistant.
        """
        columns = [
            np.interp([point[name] for point in points], sorted(values), np.linspace(0, 1, len(values)))
            if len(values) > 1
            else np.zeros(len(points))
            for name, values in self.values.items()
        ]
        return np.column_stack(columns)


def first_points(axes: Axes, count: int, seed: int = 0) -> list[Point]:
    """Return points spread over the grid: each point has the largest distance from the previous points.

    >>> points = first_points(Axes({"cpu": (0, 0.25, 0.5, 0.75, 1), "batch_size": (1, 2, 4)}), count=4)
    >>> sorted((point["cpu"], point["batch_size"]) for point in points)
    [(0.0, 1.0), (0.0, 4.0), (1.0, 1.0), (1.0, 4.0)]
    """
    grid = axes.grid
    if not 1 <= count <= len(grid):
        raise InvalidInputError("count", count, f"a number from 1 to {len(grid)}, the number of points")
    coordinates = axes.scaled(grid)
    chosen = [int(np.argmin(coordinates.sum(axis=1)))]
    nearest = np.linalg.norm(coordinates - coordinates[chosen[0]], axis=1)
    order = np.random.default_rng(seed).permutation(len(grid))  # random order among equal distances
    while len(chosen) < count:
        farthest = int(order[np.argmax(nearest[order])])
        chosen.append(farthest)
        nearest = np.minimum(nearest, np.linalg.norm(coordinates - coordinates[farthest], axis=1))
    return [grid[index] for index in chosen]


def choose_more(
    axes: Axes,
    measured: pd.DataFrame,
    functions: Sequence[Function],
    count: int,
    seed: int = 0,
    is_allowed: Callable[[Point], bool] = lambda point: True,
) -> list[Point]:
    """Return the points of the grid to measure next.

    A Gaussian process for each function predicts the variance at each unmeasured point. The point with the largest sum
    of variances is chosen first. Each choice assumes that the earlier choices have been measured.

    Parameters
    ----------
    axes:
        The grid.
    measured:
        Measurements so far, with the columns of the axes and of the functions' targets.
    functions:
        The functions to learn.
    count:
        Number of points; fewer if the grid is exhausted.
    is_allowed:
        Function that returns whether a point may be chosen.
    """
    grid = axes.grid
    known = {tuple(row) for row in measured[list(axes.values)].to_numpy(dtype=float)}
    unmeasured = [point for point in grid if tuple(point.values()) not in known and is_allowed(point)]
    if not unmeasured:
        return []
    observed = axes.scaled(measured[list(axes.values)].to_dict("records"))
    coordinates = axes.scaled(unmeasured)
    with quick_fits():
        kernels = [kernel for one in functions if (kernel := _fit_kernel(one, observed, measured, seed)) is not None]
    chosen: list[int] = []
    while len(chosen) < min(count, len(unmeasured)):
        variance = np.zeros(len(unmeasured))
        for kernel in kernels:
            variance += _relative_variance(kernel, np.vstack([observed, coordinates[chosen]]), coordinates)
        if not kernels:  # no target varies, so all points are equally useful
            variance[:] = 1.0
        variance[chosen] = -1.0
        chosen.append(int(np.argmax(variance)))
    return [unmeasured[index] for index in chosen]


def _fit_kernel(function: Function, observed: Floats, measured: pd.DataFrame, seed: int) -> Any:
    """Return the kernel of a Gaussian process fitted to a function's target; ``None`` for a constant target."""
    if function.target not in measured.columns:
        return None  # none of the measured machines runs the application
    target = measured[function.target].to_numpy(dtype=float)
    finite = np.isfinite(target)  # some measurements ended before the application's first execution
    observed, target = observed[finite], target[finite]
    if len(target) < 2:
        return None
    target = target if function.share else np.log(np.maximum(target, 1e-9))
    if np.ptp(target) < 1e-9:
        return None
    kernel = gaussian_process(observed.shape[1], seed)[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel.fit(observed, target)
    return kernel.kernel_


def _relative_variance(kernel: Any, observed: Floats, coordinates: Floats) -> Floats:
    """Return the variance at ``coordinates`` given ``observed``, relative to the prior variance."""
    from scipy.linalg import cho_factor, cho_solve

    signal = kernel.k1  # k2 is noise, which measurements do not reduce
    covariance = kernel(observed) + 1e-9 * np.eye(len(observed))
    between = signal(observed, coordinates)
    explained = np.einsum("ij,ij->j", between, cho_solve(cho_factor(covariance), between))
    prior = signal.diag(coordinates)
    return np.asarray(np.maximum(prior - explained, 0.0) / prior, dtype=float)
