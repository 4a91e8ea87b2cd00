"""Numbers in a stored controller state, which users may have changed in the store; ``restore`` checks them."""

from __future__ import annotations

import math

_MOST = 1e30  # larger than all numbers of a controller: batches, seconds, and forecasts of very slow jobs


def stored_number(value: object, low: float = -_MOST, high: float = _MOST) -> float:
    """Return ``value``; raise ValueError if it is not a number from ``low`` to ``high``.

    >>> stored_number(1.5), stored_number(60, low=0)
    (1.5, 60)
    >>> stored_number("soon")
    Traceback (most recent call last):
    ValueError: got 'soon', expected a number from -1e+30 to 1e+30
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ValueError(f"got {value!r}, expected a number from {low:g} to {high:g}")
    return value


def finite_or_none(value: float) -> float | None:
    """Return ``None`` for infinity, which JSON lacks."""
    return value if math.isfinite(value) else None


def stored_or_infinite(value: object, *bounds: float) -> float:
    """Return a stored number within bounds; infinity for ``None``, as ``finite_or_none`` stores it, and for 0."""
    return math.inf if value is None else stored_number(value, *bounds) or math.inf
