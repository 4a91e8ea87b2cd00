"""What a training says of itself, as far as an arbiter needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from paceline.control import NO_DEADLINE_S, Outlook
from paceline.errors import InvalidInputError
from paceline.pace.ceiling import Ceiling
from paceline.pace.sample import is_sample, origin_of

_ENDED = ("finished", "failed")
LOST = "lost"
_MOST = 1e6  # devices
_LATEST_S = 1e11  # some thousand years
_ROUNDING_S = 1.0  # samples round their times, so that a year from the start may come out a little shorter
_STEEPEST = 2.0  # of a speed's growth with the devices; 1 is in proportion to them


@dataclass(frozen=True)
class Claim:
    """A training that holds devices of a pool, or waits for some.

    Times are in seconds since the epoch.

    Parameters
    ----------
    key:
        What tells it from all others.
    state:
        What it does, see :mod:`paceline.pace.sample`.
    arrived_s:
        When it came.
    deadline_s:
        When it has to be done, its safety factor taken off.
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
    alpha:
        Its safety factor.
    weight:
        How important it is, for policies that ask.
    outlook:
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
    outlook: Outlook | None
    late: bool = False
    obeys: float | None = None
    alpha: float = 1.0
    weight: float = 1.0

    @classmethod
    def read(
        cls, key: str, pace: object, ceiling: object, arrived: datetime | None = None, weight: float = 1.0
    ) -> Claim | None:
        """Read what a training has published under ``pace`` and what was said to it under ``ceiling``.

        Anybody who may write there can write anything. What cannot be read is taken for silence: ``None``, or a lost
        one, if an arbiter has granted it something.
        """
        try:
            granted = None if ceiling is None else Ceiling.read(ceiling)
        except InvalidInputError:
            granted = None
        try:
            claim = cls._read(key, pace, granted, arrived, weight) if is_sample(pace) else None
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            claim = None
        if claim is None and granted is not None and granted.grant > 0:
            return cls.of_a_lost_one(key, granted)
        return claim

    @classmethod
    def _read(
        cls, key: str, pace: Mapping[str, Any], granted: Ceiling | None, arrived: datetime | None, weight: float
    ) -> Claim | None:
        origin_s = origin_of(pace).timestamp()
        ended = pace["state"] in _ENDED
        # What a job on whole devices reported last says nothing of one that was stopped since.
        in_force = 0.0 if pace["state"] == "paused" else float(pace.get("devices_in_force") or 0.0)
        held = max(float(pace["devices"]), in_force)
        alpha = float(pace.get("alpha") or 1.0)
        grant, obeys = pace.get("grant"), pace.get("ceiling")
        obeyed = None if obeys is None else float(obeys)
        if grant is not None and (granted is None or granted.grant == 0):
            # Deleted, or a person's: it keeps to what its arbiter said last.
            granted = None if obeyed is None else Ceiling(obeyed, int(grant))
        claim = cls(
            key=key,
            state=str(pace["state"]),
            arrived_s=origin_s if arrived is None else arrived.timestamp(),
            deadline_s=origin_s + float(pace["deadline_s"]) * alpha,
            origin_s=origin_s,
            said_s=origin_s + float(pace["t_s"]),
            least=float(pace["min_devices"]),
            most=float(pace["max_devices"]),
            quantum=float(pace["quantum"]),
            held=0.0 if ended else held,
            taken=None if grant is None else int(grant),
            ceiling=granted,
            outlook=_outlook(pace.get("outlook")),
            late=pace.get("feasible") is False,
            obeys=obeyed,
            alpha=alpha,
            weight=weight,
        )
        sound = (
            0 < claim.quantum <= _MOST
            and 0 <= claim.least <= claim.most <= _MOST
            and 0 <= float(pace["devices"]) <= held <= _MOST
        )
        return claim if sound and 0 < alpha <= 1 and abs(claim.deadline_s) < _LATEST_S else None

    @classmethod
    def of_a_lost_one(cls, key: str, ceiling: Ceiling, held: float = 0.0) -> Claim:
        """One that says nothing any more, and may still hold all that it was granted."""
        return cls(key, LOST, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, held, taken=-1, ceiling=ceiling, outlook=None)

    @property
    def has_deadline(self) -> bool:
        """Whether it has to be done by any time."""
        return self.deadline_s - self.origin_s < (NO_DEADLINE_S - _ROUNDING_S) * self.alpha

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


def _outlook(said: Any) -> Outlook | None:
    if not isinstance(said, Mapping):
        return None
    try:
        usable = said.get("usable_devices")
        found = Outlook(
            float(said["work_s"]),
            float(said["exponent"]),
            float(said["after_s"]),
            None if usable is None else float(usable),
        )
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None
    sound = 0 <= found.work_s < _LATEST_S and 0 < found.exponent <= _STEEPEST and 0 <= found.after_s < _LATEST_S
    return found if sound and (found.usable_devices is None or found.usable_devices > 0) else None
