"""The result of ``ArbiterOperator``."""

from __future__ import annotations

from paceline.contract._record import Record, Rounded, Text


class ArbiterResult(Record):
    """What an arbiter has done in its lifetime."""

    decisions: int
    grants: int
    jobs: int
    reasons: dict[Text, int]
    """Number of grants for each constant of a reason."""
    peak_devices: Rounded
    """The largest total allocation."""
