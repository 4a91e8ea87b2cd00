"""What a training says of itself, as far as an arbiter needs it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from paceline.contract import Ceiling, PaceSample
from paceline.control import RemainingWork, aim
from paceline.errors import InvalidInputError

_ENDED = ("finished", "failed")
LOST = "lost"
_MOST = 1e6  # devices


@dataclass(frozen=True)
class DeviceRequest:
    """A training that holds devices of a pool, or waits for some.

    Times are in seconds since the epoch.

    Parameters
    ----------
    key:
        What tells it from all others.
    state:
        What it does, see :class:`~paceline.contract.PaceSample`.
    arrived_s:
        When it came.
    deadline_s:
        When it has to be done, its safety factor taken off; infinite without a deadline.
    origin_s:
        The moment that its deadline counts from.
    said_s:
        When it said all this.
    least, most, quantum:
        Fewest and most devices that it takes, and the step between.
    held:
        What it held then.
    taken:
        The last grant that it had taken then; ``None`` for one that does not wait for grants.
    ceiling:
        What it has been granted; ``None`` if nothing has been said to it yet.
    obeys:
        The ceiling that it obeyed then; ``None`` if it obeyed none.
    asked_s:
        The deadline as set by the user, in seconds after ``origin_s``; ``None`` without one.
    began_s, alpha:
        Start, and safety factor: the target end is this fraction of the time from the start to the deadline.
    weight:
        How important it is, for policies that ask.
    remaining:
        What its rest takes; ``None`` while that is not known.
    late:
        Whether it says that it cannot be on time with what it may have.
    """

    key: str
    state: str
    arrived_s: float
    deadline_s: float
    origin_s: float
    said_s: float
    least: float
    most: float
    quantum: float
    held: float
    taken: int | None
    ceiling: Ceiling | None
    remaining: RemainingWork | None = None
    late: bool = False
    obeys: float | None = None
    asked_s: float | None = None
    began_s: float = 0.0
    alpha: float = 1.0
    weight: float = 1.0

    @classmethod
    def read(
        cls, key: str, pace: object, ceiling: object, arrived: datetime | None = None, weight: float = 1.0
    ) -> DeviceRequest | None:
        """Read what a training has published under ``pace`` and what was said to it under ``ceiling``.

        Anybody who may write there can write anything. What cannot be read is taken for silence: ``None``, or a lost
        one, if an arbiter has granted it something.
        """
        try:
            granted = None if ceiling is None else Ceiling.read(ceiling)
        except InvalidInputError:
            granted = None
        sample = PaceSample.read(pace)
        request = None if sample is None else cls._read(key, sample, granted, arrived, weight)
        if request is None and granted is not None and granted.grant > 0:
            return cls.of_a_lost_one(key, granted)
        return request

    @classmethod
    def _read(
        cls, key: str, pace: PaceSample, granted: Ceiling | None, arrived: datetime | None, weight: float
    ) -> DeviceRequest | None:
        origin_s = pace.origin.timestamp()
        ended = pace.state in _ENDED
        # What a job on whole devices reported last says nothing of one that was stopped since.
        in_force = 0.0 if pace.state == "paused" else float(pace.devices_in_force or 0)
        held = max(pace.devices, in_force)
        if pace.grant is not None and (granted is None or granted.grant == 0):
            # Deleted, or a person's: it keeps to what its arbiter said last.
            granted = None if pace.ceiling is None else Ceiling(pace.ceiling, pace.grant)
        request = cls(
            key=key,
            state=pace.state,
            arrived_s=origin_s if arrived is None else arrived.timestamp(),
            deadline_s=math.inf
            if pace.deadline_s is None
            else origin_s + aim(pace.began_s, pace.deadline_s, pace.alpha),
            asked_s=pace.deadline_s,
            origin_s=origin_s,
            said_s=origin_s + pace.t_s,
            least=pace.min_devices,
            most=pace.max_devices,
            quantum=pace.quantum,
            held=0.0 if ended else held,
            taken=pace.grant,
            ceiling=granted,
            remaining=RemainingWork(**pace.remaining.to_json()) if pace.remaining else None,
            late=not pace.feasible,
            obeys=pace.ceiling,
            began_s=origin_s + pace.began_s,
            alpha=pace.alpha,
            weight=weight,
        )
        sound = request.quantum > 0 and request.least <= request.most and held <= _MOST
        return request if sound else None

    @classmethod
    def of_a_lost_one(cls, key: str, ceiling: Ceiling, held: float = 0.0) -> DeviceRequest:
        """One that says nothing any more, and may still hold all that it was granted."""
        return cls(key, LOST, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, held, taken=-1, ceiling=ceiling, remaining=None)

    @property
    def has_deadline(self) -> bool:
        """Whether it has to be done by any time."""
        return math.isfinite(self.deadline_s)

    @property
    def lost(self) -> bool:
        """Whether nobody steers it any more: nothing is said to it, and what it may hold is given to nobody."""
        return self.state == LOST

    @property
    def ended(self) -> bool:
        """Whether it needs nothing any more, although its task has not ended yet."""
        return self.state in _ENDED

    @property
    def granted(self) -> float:
        """The most devices that it may take when it looks next."""
        if self.ceiling is not None:
            return self.ceiling.devices
        return 0.0 if self.taken is not None else self.most  # who does not wait for grants helps itself

    @property
    def committed(self) -> float:
        """The most devices that it may hold now, as far as is known: what nobody else can be given."""
        if self.ended:
            return 0.0
        if self.ceiling is None:
            return max(self.granted, self.held)
        # One that does not wait for grants has no number to answer with: it has heard if it obeys what was said.
        heard = self.taken == self.ceiling.grant if self.taken is not None else self.obeys == self.ceiling.devices
        return max(self.ceiling.devices if heard else self.ceiling.at_most, self.held)
