"""``FeatureSettings``: the thresholds and the importance of one feature. Used by ``DriftSettings``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from paceline.errors import InvalidInputError


@dataclass(frozen=True)
class FeatureSettings:
    """Thresholds of one feature, instead of those of ``DriftSettings``, and its importance.

    Parameters
    ----------
    effect_threshold, psi_threshold, missing_threshold:
        As in ``DriftSettings``; None for the value there.
    importance:
        Weight of the feature in ``DriftSettings.drift_share``, for example its importance for the model.

    Raises
    ------
    InvalidInputError
        For a value out of range.

    Examples
    --------
    >>> FeatureSettings(effect_threshold=0.2).importance
    1.0
    """

    effect_threshold: float | None = None
    psi_threshold: float | None = None
    missing_threshold: float | None = None
    importance: float = 1.0

    def __post_init__(self) -> None:
        for field in ("effect_threshold", "missing_threshold"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, read_share(field, getattr(self, field)))
        for field in ("psi_threshold", "importance"):
            if getattr(self, field) is not None or field == "importance":
                object.__setattr__(self, field, read_least(field, getattr(self, field)))


def read_share(field: str, value: object) -> float:
    """Return a number between 0 and 1, both excluded, as a float; raise InvalidInputError for another value."""
    number = to_float(value)
    if number is None or not 0 < number < 1:
        raise InvalidInputError(field, value, "a number between 0 and 1, both excluded")
    return number


def read_least(field: str, value: object) -> float:
    """Return a finite number of at least 0 as a float; raise InvalidInputError for another value."""
    number = to_float(value)
    if number is None or not 0 <= number < math.inf:
        raise InvalidInputError(field, value, "a number of at least 0")
    return number


def to_float(value: object) -> float | None:
    """Return a number of any type, for example of numpy, as a float; ``None`` if the value is not a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
