"""``FeatureSettings``: the thresholds and the importance of one feature. Used by ``DriftSettings``."""

from __future__ import annotations

from dataclasses import dataclass

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
                check_between(field, getattr(self, field), 0.0, 1.0)
        if self.psi_threshold is not None:
            check_least(field="psi_threshold", value=self.psi_threshold)
        check_least(field="importance", value=self.importance)


def check_between(field: str, value: object, low: float, high: float) -> None:
    """Raise InvalidInputError if a value is not a number between two others, both excluded."""
    number = _to_float(value)
    if number is None or not low < number < high:
        raise InvalidInputError(field, value, f"a number between {low:g} and {high:g}, both excluded")


def check_least(field: str, value: object) -> None:
    """Raise InvalidInputError if a value is not a finite number of at least 0."""
    number = _to_float(value)
    if number is None or not 0 <= number < float("inf"):
        raise InvalidInputError(field, value, "a number of at least 0")


def _to_float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
