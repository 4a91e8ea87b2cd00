"""Tabulates a learned function, because a scheduler evaluates the same function thousands of times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.profiles.learn import Learned

Floats = NDArray[np.float64]

_STEPS = 17
_INTEGER = ("batch_size", "workers")  # features whose values are whole numbers
_LOGARITHMIC = ("pushes_per_s",)


class Table:
    """Interpolates linearly between the values of a learned function on a grid over the measured range.

    Parameters
    ----------
    learned:
        Learned function.
    fixed:
        Features that are constant in this table, and their values.

    Examples
    --------
    >>> table = Table(profile[FUNCTIONS[1]], {"server_cpu": 0.4})  # doctest: +SKIP
    >>> table(features)  # doctest: +SKIP
    array([0.021, 0.034])
    """

    def __init__(self, learned: Learned, fixed: dict[str, float]) -> None:
        bounds = zip(learned.function.features, learned.low, learned.high, strict=True)
        points = [np.array([fixed[name]]) if name in fixed else _grid(name, low, high) for name, low, high in bounds]
        grid = np.stack(np.meshgrid(*points, indexing="ij"), axis=-1)
        values = learned(grid.reshape(-1, len(points))).reshape(grid.shape[:-1])
        # The regressions have learned the logarithm of a time, so interpolate the logarithm.
        self._logarithmic = not learned.function.share
        values = np.log(values) if self._logarithmic else values
        self._values = np.squeeze(values)
        self._axes = [(axis, values) for axis, values in enumerate(points) if len(values) > 1]

    def __call__(self, features: Floats) -> Floats:
        """Return one value per row of features, which are in the order of ``function.features``; shape (rows,)."""
        from scipy.ndimage import map_coordinates

        if self._axes:
            # Clip the grid indices to the grid. SciPy's grid interpolator takes twice as long as this code.
            coordinates = [np.interp(features[:, axis], values, np.arange(len(values))) for axis, values in self._axes]
            values = map_coordinates(self._values, coordinates, order=1, mode="nearest")
        else:
            values = np.full(len(features), float(self._values))
        return np.asarray(np.exp(values) if self._logarithmic else values, dtype=float)


def _grid(feature: str, low: float, high: float) -> Floats:
    if feature in _INTEGER:
        points = np.unique(np.round(np.geomspace(low, high, _STEPS)))
        points[0], points[-1] = low, high
        return points
    spaced = np.geomspace if feature in _LOGARITHMIC and low > 0 else np.linspace
    return np.unique(spaced(low, high, _STEPS))
