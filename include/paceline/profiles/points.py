"""Which points to measure: a few that fill the space, then those that the models so far know least about."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InvalidInputError
from paceline.profiles.functions import Function
from paceline.profiles.learn import gaussian_process

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Point = dict[str, float]


@dataclass(frozen=True)
class Axes:
    """What is varied, and over which values; all combinations are the full grid.

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
                raise InvalidInputError(f"axes.{name}", list(values), "at least one value, each once")

    @property
    def grid(self) -> list[Point]:
        """Every combination."""
        names = list(self.values)
        return [
            {name: float(value) for name, value in zip(names, point, strict=True)}
            for point in itertools.product(*self.values.values())
        ]

    def scaled(self, points: Sequence[Point]) -> Floats:
        """Points in steps along each axis, so that one step is as far as another; shape (points, axes).

        Steps, not values: batch sizes that double from one to the next are evenly far apart.
        """
        columns = [
            np.interp([point[name] for point in points], sorted(values), np.linspace(0, 1, len(values)))
            if len(values) > 1
            else np.zeros(len(points))
            for name, values in self.values.items()
        ]
        return np.column_stack(columns)


def first_points(axes: Axes, count: int, seed: int = 0) -> list[Point]:
    """Points of the grid that fill it: each is as far as can be from those before it.

    >>> points = first_points(Axes({"cpu": (0, 0.25, 0.5, 0.75, 1), "batch_size": (1, 2, 4)}), count=4)
    >>> sorted((point["cpu"], point["batch_size"]) for point in points)
    [(0.0, 1.0), (0.0, 4.0), (1.0, 1.0), (1.0, 4.0)]
    """
    grid = axes.grid
    if not 1 <= count <= len(grid):
        raise InvalidInputError("count", count, f"a number from 1 to the {len(grid)} points of the grid")
    places = axes.scaled(grid)
    chosen = [int(np.argmin(places.sum(axis=1)))]
    nearest = np.linalg.norm(places - places[chosen[0]], axis=1)
    order = np.random.default_rng(seed).permutation(len(grid))  # among equals, no corner is preferred
    while len(chosen) < count:
        farthest = int(order[np.argmax(nearest[order])])
        chosen.append(farthest)
        nearest = np.minimum(nearest, np.linalg.norm(places - places[farthest], axis=1))
    return [grid[index] for index in chosen]


def choose_more(
    axes: Axes,
    measured: pd.DataFrame,
    functions: Sequence[Function],
    count: int,
    seed: int = 0,
    among: Callable[[Point], bool] = lambda point: True,
) -> list[Point]:
    """The points of the grid that are worth measuring next.

    A Gaussian process for each function says how unsure it is at each point that has not been measured; the point where
    the functions together are least sure comes first, then the next with that one taken as known.

    Parameters
    ----------
    axes:
        The grid.
    measured:
        What was measured so far, with the columns of the axes and of the functions' targets.
    functions:
        What will be learned.
    count:
        How many points are wanted; fewer are returned once the grid is used up.
    among:
        Which points of the grid may be chosen.
    """
    grid = axes.grid
    known = {tuple(row) for row in measured[list(axes.values)].to_numpy(dtype=float)}
    open_points = [point for point in grid if tuple(point.values()) not in known and among(point)]
    if not open_points:
        return []
    seen = axes.scaled(measured[list(axes.values)].to_dict("records"))
    places = axes.scaled(open_points)
    processes = [process for one in functions if (process := _process(one, seen, measured, seed)) is not None]
    chosen: list[int] = []
    while len(chosen) < min(count, len(open_points)):
        unsure = np.zeros(len(open_points))
        for process in processes:
            unsure += _unsure(process, np.vstack([seen, places[chosen]]), places)
        if not processes:  # nothing varies: any point is as good as another
            unsure[:] = 1.0
        unsure[chosen] = -1.0
        chosen.append(int(np.argmax(unsure)))
    return [open_points[index] for index in chosen]


def _process(function: Function, seen: Floats, measured: pd.DataFrame, seed: int) -> Any:
    """The kernel of a process fitted to a function's target, ``None`` for a target that does not vary."""
    if function.target not in measured.columns:
        return None  # an application that none of these machines has
    target = measured[function.target].to_numpy(dtype=float)
    there = np.isfinite(target)  # an application may have had no execution in a measurement
    seen, target = seen[there], target[there]
    if len(target) < 2:
        return None
    target = target if function.share else np.log(np.maximum(target, 1e-9))
    if np.ptp(target) < 1e-9:
        return None
    process = gaussian_process(seen.shape[1], seed)[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process.fit(seen, target)
    return process.kernel_


def _unsure(kernel: Any, seen: Floats, places: Floats) -> Floats:
    """Variance at ``places`` of a process that has seen ``seen``, as a share of its variance far from everything."""
    from scipy.linalg import cho_factor, cho_solve

    signal = kernel.k1  # the rest is noise, which no measurement takes away
    covariance = kernel(seen) + 1e-9 * np.eye(len(seen))
    between = signal(seen, places)
    explained = np.einsum("ij,ij->j", between, cho_solve(cho_factor(covariance), between))
    prior = signal.diag(places)
    return np.asarray(np.maximum(prior - explained, 0.0) / prior, dtype=float)
