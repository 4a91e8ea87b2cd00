"""A deadline as stored in the live state: the value that a user wrote, and the user's name if known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.contract._deadline import Deadline


@dataclass(frozen=True)
class StoredDeadline:
    """A user's deadline and the user's name, as the pages in Airflow store them. Other clients may omit the name.

    ``value`` is ``None`` for a job without a deadline.

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
        """Read a value of the live state in either form; ``parse`` validates it."""
        if isinstance(raw, Mapping) and "deadline" in raw:
            by = raw.get("by")
            return cls(raw["deadline"], str(by) if by else None)
        return cls(raw)

    def parse(self) -> Deadline:
        """Return the parsed deadline; raise InvalidInputError if the value is invalid."""
        return Deadline.parse(self.value)

    def to_json(self) -> object:
        """Return the stored form, which ``read`` accepts."""
        if self.by:
            return {"deadline": self.value, "by": self.by}
        return {"deadline": None} if self.value is None else self.value
