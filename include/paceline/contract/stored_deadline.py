"""A deadline as the live state keeps it: what was written, and by whom, where that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.contract.deadline import Deadline


@dataclass(frozen=True)
class StoredDeadline:
    """What a user wrote as a deadline. Airflow's pages say who; the REST API and the command line need not.

    ``value`` is ``None`` for a training without a deadline.

    Examples
    --------
    >>> StoredDeadline.read("20m")
    StoredDeadline(value='20m', by=None)
    >>> StoredDeadline.read({"deadline": "20m", "by": "anna"})
    StoredDeadline(value='20m', by='anna')
    >>> StoredDeadline("20m", "anna").parse().duration_s
    1200.0
    """

    value: Any
    by: str | None = None

    @classmethod
    def read(cls, raw: object) -> StoredDeadline:
        """Read a value of the live state, in either form; what it says is looked at by ``parse``."""
        if isinstance(raw, Mapping) and "deadline" in raw:
            by = raw.get("by")
            return cls(raw["deadline"], str(by) if by else None)
        return cls(raw)

    def parse(self) -> Deadline:
        """What it means. Raises InvalidInputError if that is nothing."""
        return Deadline.parse(self.value)

    def to_json(self) -> object:
        """What ``read`` takes back."""
        if self.by:
            return {"deadline": self.value, "by": self.by}
        return {"deadline": None} if self.value is None else self.value
