"""The result of ``PromoteOperator``."""

from __future__ import annotations

from typing import Literal

from paceline.contract._record import Record, Text

PromotionVerdict = Literal[
    "first",
    "better",
    "not better",
    "improvement below min_improvement",
    "too few rows",
    "too few groups",
    "not significantly better",
    "older data",
    "champion held",
    "champion changed",
    "already champion",
]


class PromotionResult(Record):
    """Whether a version has become the champion, and why."""

    promoted: bool
    verdict: PromotionVerdict
    reason: Text
    model: Text
    registry: Text
    version: int
    champion_version: int | None
    """The champion after the task."""
    previous_version: int | None
    """The champion before the promotion."""
