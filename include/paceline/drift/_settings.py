"""``DriftSettings``: how two windows of data are compared. Used by ``compare``, the drift sensor and its triggers."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.drift.concept import DETECTORS, ERROR_KINDS, Detector, ErrorKind
from paceline.errors import InvalidInputError


@dataclass(frozen=True)
class DriftSettings:
    """Thresholds and methods of a drift check.

    Parameters
    ----------
    significance:
        False discovery rate: if nothing drifts, about this share of checks reports drift. The default of 1 % is below
        the common 5 %, and loses little statistical power with hundreds of rows.
    psi_threshold, effect_threshold:
        A difference matters if its population stability index reaches ``psi_threshold`` (0.1 is the usual limit of
        stable data) or its KS statistic or Cramér's V reaches ``effect_threshold`` (0.1: the shares of rows differ by
        ten percentage points).
    missing_threshold:
        Smallest relevant change of the share of missing values (0.05: five percentage points).
    minimum_samples:
        Minimum number of rows and of a feature's values in each window; with fewer, ``compare`` tests nothing.
    error_threshold:
        Smallest relevant rise of the model's error (0.02: two percentage points).
    detector, error:
        Detector and measure of the errors; see ``paceline.drift.concept``.

    Raises
    ------
    InvalidInputError
        For a value out of range.

    Examples
    --------
    >>> DriftSettings(minimum_samples=500).significance
    0.01
    >>> DriftSettings(minimum_samples=0)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: minimum_samples: got 0, expected a whole number of at least 2
    """

    significance: float = 0.01
    psi_threshold: float = 0.1
    effect_threshold: float = 0.1
    missing_threshold: float = 0.05
    minimum_samples: int = 100
    error_threshold: float = 0.02
    detector: Detector = "adwin"
    error: ErrorKind = "auto"

    def __post_init__(self) -> None:
        for field in ("significance", "effect_threshold", "missing_threshold", "error_threshold"):
            number = _to_float(getattr(self, field))
            if number is None or not 0 < number < 1:
                raise InvalidInputError(field, getattr(self, field), "a number between 0 and 1, both excluded")
        psi = _to_float(self.psi_threshold)
        if psi is None or not 0 <= psi < float("inf"):
            raise InvalidInputError("psi_threshold", self.psi_threshold, "a number of at least 0")
        minimum = self.minimum_samples
        if isinstance(minimum, bool) or not isinstance(minimum, int) or minimum < 2:
            raise InvalidInputError("minimum_samples", minimum, "a whole number of at least 2")
        for field, accepted in (("detector", DETECTORS), ("error", ERROR_KINDS)):
            if getattr(self, field) not in accepted:
                raise InvalidInputError(field, getattr(self, field), "one of " + ", ".join(accepted))


def _to_float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
