"""The alerts that have been sent: the value of the live state's key ``alerts``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paceline.contract.record import Record

AlertKind = Literal["in_danger", "infeasible", "missed"]


class SentAlerts(Record):
    """Alerts sent for one deadline. A retry reads it and sends none twice.

    >>> SentAlerts.read({"told": ["missed"], "deadline_s": 60.0}).told
    ['missed']
    >>> SentAlerts.read({"told": "all"}) is None
    True
    """

    version: int = 1
    told: list[AlertKind] = Field(default_factory=list)
    deadline_s: float | None = None
