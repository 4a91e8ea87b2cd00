"""The alerts sent so far: the value of the live state's key ``alerts``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paceline.contract._record import Record

AlertKind = Literal["in_danger", "infeasible", "missed"]


class SentAlerts(Record):
    """The alerts sent for one deadline. A retry reads them and sends no alert twice.

    >>> SentAlerts.read({"sent": ["missed"], "deadline_s": 60.0}).sent
    ['missed']
    >>> SentAlerts.read({"sent": "all"}) is None
    True
    """

    version: int = 1
    sent: list[AlertKind] = Field(default_factory=list)
    deadline_s: float | None = None
