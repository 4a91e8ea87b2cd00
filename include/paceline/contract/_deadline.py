"""The grammar of deadlines and durations: "20m", "PT20M", 1200, or a point in time.

``StoredDeadline`` accepts a deadline for a job. Other durations, such as a cooldown, have the same grammar.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from paceline.errors import InvalidInputError

ACCEPTED = (
    'a duration ("90s", "20m", "1h30m", "PT20M", a number of seconds greater than 0) '
    'or a time with its zone ("2030-01-31T18:00:00Z")'
)
_WRITE_TIME = 'write an ISO 8601 time with its zone, "2030-01-31T18:00:00Z"'
YEAR_S = 365 * 86_400.0
TOLERANCE_S = 0.05  # samples round deadlines to 1 ms; users change a deadline by more than this
_MIN_S = 1e-3  # controllers need a positive deadline, even if a point in time is before the origin
_MAX_TEXT = 100  # characters
_CENTURY_S = 100 * YEAR_S  # later times may be beyond the years of a datetime
_UNIT_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "min": 60.0, "s": 1.0}
_SHORT = re.compile(r"(?:\d+(?:\.\d+)?\s*(?:d|h|min|m|s)\s*)+", re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)", re.IGNORECASE)
_ISO = re.compile(
    r"P(?:(?P<d>\d+(?:\.\d+)?)D)?(?:T(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Deadline:
    """The deadline of a job: a duration from an origin, or a point in time; ``Deadline()`` means no deadline.

    A duration is at most 365 days, unless it is a ``timedelta``: a Unix time is not read as a number of seconds.

    Examples
    --------
    >>> Deadline.parse("20m")
    Deadline(duration_s=1200.0, at=None)
    >>> Deadline.parse("PT1H30M").duration_s, Deadline.parse(90).duration_s
    (5400.0, 90.0)
    >>> from datetime import datetime, timezone
    >>> noon = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
    >>> Deadline.parse("2030-01-01T12:20:00Z").seconds_after(noon)
    1200.0
    >>> Deadline.parse("-5m")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: deadline: got '-5m', expected a duration ("90s", "20m", "1h30m", "PT20M", a \
number of seconds greater than 0) or a time with its zone ("2030-01-31T18:00:00Z")
    >>> Deadline.parse(1_900_000_000)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: deadline: got 1900000000, expected a duration of at most 365 days (a Unix time? \
write an ISO 8601 time with its zone, "2030-01-31T18:00:00Z")
    """

    duration_s: float | None = None
    at: datetime | None = None

    @classmethod
    def parse(cls, value: object, field: str = "deadline", *, max_s: float = YEAR_S) -> Deadline:
        """Parse a deadline; raise InvalidInputError, which names ``field``, if it is invalid.

        A number above ``max_s`` is more likely a Unix time than a duration. Only a ``timedelta`` may be longer.
        """
        duration_s: float | None = None
        if isinstance(value, timedelta):
            duration_s, max_s = value.total_seconds(), _CENTURY_S
        elif isinstance(value, datetime):
            return cls._from_time(value, value, field)
        elif isinstance(value, str):
            text = value.strip() if len(value) <= _MAX_TEXT else ""
            duration_s = _parse_duration(text)
            if duration_s is None:
                return cls._from_time(_parse_time(text), value, field)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
            duration_s = float(value)  # raises OverflowError for a longer integer
        if duration_s is None or not math.isfinite(duration_s) or duration_s <= 0:
            raise InvalidInputError(field, value, ACCEPTED)
        if duration_s > max_s:
            accepted = f"a duration of at most {max_s / 86_400:.0f} days (a Unix time? {_WRITE_TIME})"
            raise InvalidInputError(field, value, accepted)
        return cls(duration_s=duration_s)

    @classmethod
    def _from_time(cls, at: datetime | None, value: object, field: str) -> Deadline:
        if at is None or at.tzinfo is None:
            raise InvalidInputError(field, value, ACCEPTED)
        return cls(at=at)

    def seconds_after(self, origin: datetime) -> float:
        """Return the seconds from ``origin`` to the deadline, at least 1 ms; infinity without a deadline."""
        if self.at is not None:
            return max((self.at - origin).total_seconds(), _MIN_S)
        return math.inf if self.duration_s is None else self.duration_s


def _parse_duration(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    if _SHORT.fullmatch(text):
        return sum(float(amount) * _UNIT_S[unit.lower()] for amount, unit in _PART.findall(text))
    iso = _ISO.fullmatch(text)
    if iso and any(iso.groupdict().values()):
        return sum(float(amount) * _UNIT_S[unit] for unit, amount in iso.groupdict().items() if amount)
    return None


def _parse_time(text: str) -> datetime | None:
    # fromisoformat of Python 3.10 does not accept "Z".
    if text[-1:] in ("Z", "z"):
        text = text[:-1] + "+00:00"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
