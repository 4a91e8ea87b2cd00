"""What arrives at a simulated cluster, and what it costs there to start, resize and stop a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from paceline.allocate import Speeds
from paceline.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job, as it comes and as it will turn out.

    Parameters
    ----------
    name:
        Unique in its workload.
    arrives_s:
        When it comes, in seconds.
    work:
        What there truly is to do, in the unit of ``speeds``.
    speeds:
        Work in a second on each kind of device.
    deadline_s:
        When it should be done, on the clock of ``arrives_s``.
    weight:
        What a second of tardiness costs.
    requested:
        So many devices its user asked for.
    estimated:
        What policies think of the work, as a factor: 1.1 is ten percent too much.
    breaks_after_s:
        A bug: it ends without a result after so many seconds of training.
    cancelled_after_s:
        Its user ends it so many seconds after it came, if it still waits or runs.
    """

    name: str
    arrives_s: float
    work: float
    speeds: Mapping[str, Speeds]
    deadline_s: float | None = None
    weight: float = 1.0
    requested: int | None = None
    estimated: float = 1.0
    breaks_after_s: float = inf
    cancelled_after_s: float = inf

    def __post_init__(self) -> None:
        for field, value in (("work", self.work), ("estimated", self.estimated)):
            if not 0 < value < inf:
                raise InvalidInputError(f"{self.name}.{field}", value, "a positive number")
        if not self.speeds:
            raise InvalidInputError(f"{self.name}.speeds", self.speeds, "at least one kind of device")


@dataclass(frozen=True)
class Friction:
    """What changes cost that are free on paper.

    Parameters
    ----------
    delay_s:
        Seconds from the decision to start a job, or to give it more, until it is as fast as that: until then it goes
        on as before. Giving devices back takes no time (ModelArts, section 5.5).
    pause_s:
        Seconds for which a job stands still whenever it starts, moves or changes its size.
    snapshot_every_s:
        Seconds of training between two snapshots: who is stopped or moved begins again at its last one. ``None``: it
        is saved when it is stopped, and loses nothing.
    """

    delay_s: float = 0.0
    pause_s: float = 0.0
    snapshot_every_s: float | None = None

    def __post_init__(self) -> None:
        for field, value in (("delay_s", self.delay_s), ("pause_s", self.pause_s)):
            if not 0 <= value < inf:
                raise InvalidInputError(field, value, "0 or more seconds")
        if self.snapshot_every_s is not None and not 0 < self.snapshot_every_s < inf:
            raise InvalidInputError("snapshot_every_s", self.snapshot_every_s, "more than 0 seconds, or None")
