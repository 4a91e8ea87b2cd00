"""A deadline as users set it: in the DAG, on the page, with the command line, or by writing to the state store.

All of them, and the task that reads the store, accept and reject the same values through ``StoredDeadline``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from paceline.contract._deadline import ACCEPTED, TOLERANCE_S, YEAR_S, Deadline
from paceline.contract._keys import DEADLINE
from paceline.errors import InvalidInputError

_NOT_OPTIONAL = f"{ACCEPTED}; only a team starts without a deadline, and a deadline cannot be removed"


@dataclass(frozen=True)
class StoredDeadline:
    """A user's deadline and the user's name, as the pages in Airflow store them. Other clients may omit the name.

    ``value`` is ``None`` for no deadline, which users may also write as ``"none"``.

    Examples
    --------
    >>> StoredDeadline.read("20m")
    StoredDeadline(value='20m', by=None)
    >>> StoredDeadline.read({"deadline": "20m", "by": "anna"})
    StoredDeadline(value='20m', by='anna')
    >>> StoredDeadline.read("none") == StoredDeadline.read({"deadline": None}) == StoredDeadline(None)
    True
    """

    value: Any
    by: str | None = None

    @classmethod
    def read(cls, raw: Any) -> StoredDeadline:
        """Read a value in any of the forms; ``parse`` and ``accept`` validate it."""
        by = None
        if isinstance(raw, Mapping) and "deadline" in raw:
            raw, by = raw["deadline"], raw.get("by")
        is_none = isinstance(raw, str) and raw.strip().lower() == "none"
        return cls(None if is_none else raw, str(by) if by else None)

    def parse(self, *, optional: bool) -> Deadline:
        """Return the parsed deadline; raise InvalidInputError if it is invalid, or missing and not ``optional``.

        >>> StoredDeadline(None).parse(optional=True) == Deadline()
        True
        """
        if self.value is not None:
            return Deadline.parse(self.value)
        if optional:
            return Deadline()
        raise InvalidInputError(DEADLINE, None, _NOT_OPTIONAL)

    def accept(self, origin: datetime, now_s: float, current_s: float) -> float:
        """Return the deadline of a job in seconds after ``origin``; infinity for no deadline.

        Parameters
        ----------
        origin:
            The time from which a duration counts.
        now_s:
            The current time, in seconds after ``origin``.
        current_s:
            The deadline in effect, also the result if the value does not change it: it may have passed since it was
            set. Infinity for a job without a deadline, which may stay without.

        Raises
        ------
        InvalidInputError
            The value is invalid, is not in the future, or would remove the deadline.

        Examples
        --------
        >>> noon = datetime.fromisoformat("2030-01-01T12:00:00+00:00")
        >>> StoredDeadline("20m").accept(noon, now_s=60.0, current_s=600.0)
        1200.0
        >>> StoredDeadline("30s").accept(noon, now_s=60.0, current_s=30.0)
        30.0
        >>> StoredDeadline("30s").accept(noon, now_s=60.0, current_s=600.0)
        Traceback (most recent call last):
        paceline.errors.InvalidInputError: deadline: got '30s', expected a time in the future (60 s have passed)
        """
        deadline_s = self.parse(optional=math.isinf(current_s)).seconds_after(origin)
        if deadline_s == current_s or abs(deadline_s - current_s) < TOLERANCE_S:
            return current_s
        if deadline_s <= now_s:
            raise InvalidInputError(DEADLINE, self.value, f"a time in the future ({now_s:.0f} s have passed)")
        return deadline_s

    def is_in_force(self, origin: datetime, current_s: float) -> bool:
        """Return whether a job with the deadline ``current_s`` has applied this one; false if it has rejected it.

        >>> noon = datetime.fromisoformat("2030-01-01T12:00:00+00:00")
        >>> StoredDeadline("20m").is_in_force(noon, 1200.0), StoredDeadline("soon").is_in_force(noon, 1200.0)
        (True, False)
        """
        try:
            return self.accept(origin, -math.inf, current_s) == current_s
        except InvalidInputError:
            return False

    def to_json(self) -> object:
        """Return the stored form, which ``read`` accepts."""
        if self.by:
            return {"deadline": self.value, "by": self.by}
        return {"deadline": None} if self.value is None else self.value


def storable_deadline(seconds: float, origin: datetime) -> object:
    """Return a deadline in seconds after ``origin`` in its stored form, which ``StoredDeadline.read`` accepts.

    >>> storable_deadline(90.0, noon := datetime.fromisoformat("2030-01-01T12:00:00+00:00"))
    90.0
    >>> storable_deadline(400 * 86_400.0, noon), storable_deadline(math.inf, noon)
    ('2031-02-05T12:00:00+00:00', {'deadline': None})
    """
    if math.isinf(seconds):
        return StoredDeadline(None).to_json()
    return seconds if seconds <= YEAR_S else (origin + timedelta(seconds=seconds)).isoformat()
