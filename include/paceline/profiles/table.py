"""A learned function as a table: for schedulers, who ask the same function thousands of times with other numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.profiles.learn import Learned

Floats = NDArray[np.float64]

_STEPS = 17
_WHOLE = ("batch_size", "workers")  # features that come in few sizes
_BY_RATIO = ("pushes_per_s",)


class Table:
    """The values of a function on a grid between what was measured, and straight lines between them.

    Parameters
    ----------
    learned:
        The function.
    fixed:
        Features that are always the same, and their values.

    Examples
    --------
    >>> table = Table(profile[FUNCTIONS[1]], {"server_cpu": 0.4})  # doctest: +SKIP
    >>> table(features)  # doctest: +SKIP
    array([0.021, 0.034])
    """

    def __init__(self, learned: Learned, fixed: dict[str, float]) -> None:
        bounds = zip(learned.function.features, learned.low, learned.high, strict=True)
        points = [np.array([fixed[name]]) if name in fixed else _points(name, low, high) for name, low, high in bounds]
        grid = np.stack(np.meshgrid(*points, indexing="ij"), axis=-1)
        values = learned(grid.reshape(-1, len(points))).reshape(grid.shape[:-1])
        # As functions are learned: a tenth too long is as wrong at 1 ms as at 1 s.
        self._by_ratio = not learned.function.share
        values = np.log(values) if self._by_ratio else values
        self._values = np.squeeze(values)
        self._axes = [(axis, each) for axis, each in enumerate(points) if len(each) > 1]

    def __call__(self, features: Floats) -> Floats:
        """Values for rows of features, in the order of the function's; shape (rows,)."""
        from scipy.ndimage import map_coordinates

        if self._axes:
            # In steps of each axis; at its ends what lies beyond. SciPy's interpolator of grids takes twice as long.
            places = [np.interp(features[:, axis], each, np.arange(len(each))) for axis, each in self._axes]
            values = map_coordinates(self._values, places, order=1, mode="nearest")
        else:
            values = np.full(len(features), float(self._values))
        return np.asarray(np.exp(values) if self._by_ratio else values, dtype=float)


def _points(feature: str, low: float, high: float) -> Floats:
    if feature in _WHOLE:
        found = np.unique(np.round(np.geomspace(low, high, _STEPS)))
        found[0], found[-1] = low, high
        return found
    spaced = np.geomspace if feature in _BY_RATIO and low > 0 else np.linspace
    return np.unique(spaced(low, high, _STEPS))
