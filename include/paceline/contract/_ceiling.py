"""The ceiling of a job, as stored in its live state: the largest allocation, and the arbiter's record of the grant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.contract._deadline import TOLERANCE_S
from paceline.contract._keys import CEILING
from paceline.contract._reasons import Reason
from paceline.errors import InvalidInputError

_MAX_VALUE = 1e12  # devices or seconds
_MAX_GRANT = 1e9


@dataclass(frozen=True)
class Ceiling:
    """The largest allocation that a user or an arbiter allows a job.

    A user writes a number. An arbiter writes its record of the grant, so that a restarted arbiter can read the grants
    of all jobs.

    Parameters
    ----------
    devices:
        The largest allocation; 0 preempts the job.
    grant:
        Number of the arbiter's grant; the job's samples show the grant in effect. 0 for a ceiling set by a user.
    max_devices:
        The largest allocation that the job may have until this grant takes effect.
    reason:
        The reason for the ceiling; ``None`` if the user or the arbiter's policy gives none.
    deadline_s, fits, earliest_s:
        Result of the admission check of a waiting job: the checked deadline, whether it fits alongside the deadlines
        of other jobs, and the earliest deadline that fits. Times are in seconds after the job's origin, ``None`` if
        unknown.
    promise:
        If the deadline fits, the number of this promise; in a pool, a later promise has a larger number. 0 without a
        promise, or if the number is unknown.

    Examples
    --------
    >>> Ceiling.read(1.5)
    Ceiling(devices=1.5, grant=0, max_devices=1.5, reason=None, deadline_s=None, fits=None, earliest_s=None, promise=0)
    >>> Ceiling.read(Ceiling(0.5, grant=3, reason=Reason("halved", "other jobs wait")).to_json()).reason.kind
    'halved'
    >>> Ceiling.read("much")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: ceiling: got 'much', expected a number of devices of at least 0
    """

    devices: float
    grant: int = 0
    max_devices: float = 0.0
    reason: Reason | None = None
    deadline_s: float | None = None
    fits: bool | None = None
    earliest_s: float | None = None
    promise: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_devices", max(self.max_devices, self.devices))

    @classmethod
    def read(cls, raw: object) -> Ceiling:
        """Read a value of the live state; raise InvalidInputError if it is not a ceiling."""
        fields: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {"devices": raw}
        fits, times = fields.get("fits"), [fields.get(name) for name in ("deadline_s", "earliest_s")]
        deadline_s, earliest_s = (None if value is None else _number(raw, value) for value in times)
        return cls(
            _number(raw, fields.get("devices")),
            int(_number(raw, fields.get("grant", 0), _MAX_GRANT)),
            _number(raw, fields.get("max_devices", 0.0)),
            Reason.read(fields.get("reason")),
            deadline_s,
            None if fits is None else bool(fits),
            earliest_s,
            int(_number(raw, fields.get("promise", 0))),
        )

    def has_result_for(self, deadline_s: float) -> bool:
        """Return whether the admission result is for this deadline, not for an earlier value of the deadline.

        >>> Ceiling(0.0, 1, deadline_s=60.0, fits=True, earliest_s=45.0).has_result_for(60.001)
        True
        """
        return self.deadline_s is not None and abs(self.deadline_s - deadline_s) < TOLERANCE_S

    def committed_devices(
        self, held: float, max_devices: float, applied_grant: int, applied_ceiling: float | None
    ) -> float:
        """Return the upper bound on a job's allocation, which no other job can get.

        Parameters
        ----------
        held, max_devices:
            The job's allocation, and the largest that it can use.
        applied_grant, applied_ceiling:
            The grant and the ceiling in effect in the job.

        Examples
        --------
        >>> Ceiling(0.5, grant=4, max_devices=2.0).committed_devices(0.4, 2.0, applied_grant=3, applied_ceiling=2.0)
        2.0
        """
        if self.grant > 0:
            applied, before = applied_grant == self.grant, self.max_devices
        else:  # a user's ceiling has no number, and the arbiter does not know the ceiling before it
            applied, before = applied_ceiling == self.devices, max_devices
        return max(self.devices, held, 0.0 if applied else before)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form, which ``read`` accepts."""
        grant: dict[str, Any] = {name: getattr(self, name) for name in ("devices", "grant", "max_devices")}
        grant["reason"] = self.reason and self.reason.to_json()
        admission = {name: getattr(self, name) for name in ("deadline_s", "fits", "earliest_s", "promise")}
        return grant if self.fits is None else {**grant, **admission}


def _number(raw: object, value: object, most: float = _MAX_VALUE) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise InvalidInputError(CEILING, raw, "a number of devices of at least 0")
    return float(value)
