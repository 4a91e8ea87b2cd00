"""``QualitySettings``: which data quality problems a drift check looks for, and which prevent training.

Part of ``DriftSettings``; ``paceline.drift.quality`` finds the problems.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from paceline.contract import ProblemKind
from paceline.drift._feature_settings import read_share, to_float
from paceline.errors import InvalidInputError

KINDS: tuple[ProblemKind, ...] = get_args(ProblemKind)


@dataclass(frozen=True)
class QualitySettings:
    """Thresholds of the data quality problems that a comparison with the reference finds.

    Parameters
    ----------
    severe:
        Kinds of problems that make the verdict ``"bad data"``, so that drift does not start training: by default
        ``"missing column"``, ``"changed type"``, ``"no values"`` (in a column that has values in the reference) and
        ``"stale"``. Further kinds, which are reported only: ``"missing values"`` (a larger share of them),
        ``"out of range"``, ``"new categories"``, ``"duplicated rows"`` and ``"new column"``.
    ignored:
        Kinds of problems that are not reported. A column that cannot be compared is skipped nevertheless.
    range_threshold:
        Smallest relevant share of a column's values outside the range of the reference (0.01: one percent).
    category_threshold:
        Smallest relevant share of a column's values with categories that the reference lacks, in excess of the share
        that chance explains (0.01).
    duplicate_threshold:
        Smallest relevant rise in the share of duplicated rows (0.05: five percentage points).
    max_age_s:
        Greatest age of the newest value of the column ``time``, in seconds; ``None`` for any age. A time without a
        zone is in UTC.

    Notes
    -----
    The threshold for missing values is ``DriftSettings.missing_threshold``.

    Raises
    ------
    InvalidInputError
        For an unknown kind and a value out of range.

    Examples
    --------
    >>> QualitySettings(max_age_s=2 * 86_400, ignored=["new column"]).ignored
    ('new column',)
    >>> QualitySettings(range_threshold=2)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: range_threshold: got 2, expected a number between 0 and 1, both excluded
    """

    severe: tuple[ProblemKind, ...] = ("missing column", "changed type", "no values", "stale")
    ignored: tuple[ProblemKind, ...] = ()
    range_threshold: float = 0.01
    category_threshold: float = 0.01
    duplicate_threshold: float = 0.05
    max_age_s: float | None = None

    def __post_init__(self) -> None:
        for field in ("severe", "ignored"):
            kinds = getattr(self, field)
            if isinstance(kinds, str) or not set(kinds) <= set(KINDS):
                raise InvalidInputError(field, kinds, "a list with any of " + ", ".join(map(repr, KINDS)))
            object.__setattr__(self, field, tuple(kinds))  # JSON has lists
        for field in ("range_threshold", "category_threshold", "duplicate_threshold"):
            object.__setattr__(self, field, read_share(field, getattr(self, field)))
        if self.max_age_s is not None:
            age = to_float(self.max_age_s)
            if age is None or not 0 < age < math.inf:
                raise InvalidInputError("max_age_s", self.max_age_s, "a number of seconds greater than 0, or None")
            object.__setattr__(self, "max_age_s", age)
