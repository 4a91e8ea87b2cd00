"""A ceiling as the live state keeps it: the most devices that a job may hold, and what an arbiter needs to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.contract.keys import CEILING
from paceline.errors import InvalidInputError

_SAME_S = 0.05  # samples round to a millisecond; people do not move a deadline by less
_MOST = 1e12  # devices, or seconds: whatever is more is nonsense


@dataclass(frozen=True)
class Ceiling:
    """The most devices that a job may hold.

    People write a number. An arbiter, who shares a pool among several jobs, also writes what makes its ledger: it is
    kept with the jobs, so that nothing is lost with the arbiter.

    Parameters
    ----------
    devices:
        The most devices; 0: the job stands still.
    grant:
        Counts what an arbiter has said to this job; its samples tell which one it has taken. 0: not an arbiter's.
    at_most:
        What the job may still hold until it has taken this grant.
    reason:
        Why, in words.
    asked_s, fits, earliest_s:
        Before the job's start: the deadline that this answers, whether it fits beside those of others, and the earliest
        that would, in seconds since the moment that its deadline counts from; ``None`` where that is not known.

    Examples
    --------
    >>> Ceiling.read(1.5)
    Ceiling(devices=1.5, grant=0, at_most=1.5, reason='', asked_s=None, fits=None, earliest_s=None)
    >>> Ceiling.read(Ceiling(0.5, grant=3, at_most=2.0, reason="others wait").to_json()).at_most
    2.0
    >>> Ceiling.read("much")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: ceiling: got 'much', expected a number of devices from 0
    """

    devices: float
    grant: int = 0
    at_most: float = 0.0
    reason: str = ""
    asked_s: float | None = None
    fits: bool | None = None
    earliest_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "at_most", max(self.at_most, self.devices))

    @classmethod
    def read(cls, raw: object) -> Ceiling:
        """Read a value of the live state. Raises InvalidInputError for what is none."""
        told: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {"devices": raw}
        fits, times = told.get("fits"), [told.get(name) for name in ("asked_s", "earliest_s")]
        asked_s, earliest_s = (None if value is None else _number(raw, value) for value in times)
        return cls(
            _number(raw, told.get("devices")),
            int(_number(raw, told.get("grant", 0))),
            _number(raw, told.get("at_most", 0.0)),
            str(told.get("reason", "")),
            asked_s,
            None if fits is None else bool(fits),
            earliest_s,
        )

    def answers(self, deadline_s: float) -> bool:
        """Whether it says something of this deadline, and not of one that has been moved since.

        >>> Ceiling(0.0, 1, asked_s=60.0, fits=True, earliest_s=45.0).answers(60.001)
        True
        """
        return self.asked_s is not None and abs(self.asked_s - deadline_s) < _SAME_S

    def to_json(self) -> dict[str, Any]:
        """What ``read`` takes back."""
        told = {"devices": self.devices, "grant": self.grant, "at_most": self.at_most, "reason": self.reason}
        answer = {"asked_s": self.asked_s, "fits": self.fits, "earliest_s": self.earliest_s}
        return told if self.fits is None else {**told, **answer}


def _number(raw: object, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise InvalidInputError(CEILING, raw, "a number of devices from 0")
    return float(value)
