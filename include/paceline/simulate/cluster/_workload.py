"""The jobs that arrive at a simulated cluster, and the cost of starting, resizing and stopping them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from paceline.allocate import Speeds
from paceline.errors import InvalidInputError
from paceline.simulate.cluster._overhead import ElasticFlowOverhead


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job of a workload: its arrival, its work, and its failure or cancellation, if any.

    Parameters
    ----------
    name:
        Unique name in the workload.
    arrives_s:
        Arrival time in seconds.
    work:
        True work, in the unit of ``speeds``.
    speeds:
        Work per second for each device kind.
    deadline_s:
        Deadline, on the clock of ``arrives_s``; ``None`` if the job has none.
    weight:
        Cost of each second of tardiness.
    requested:
        Number of devices that the user requested.
    estimated:
        Estimated work relative to the true work: 1.1 is an overestimate by ten percent.
    breaks_after_s:
        Seconds of training after which a bug ends the job without a result.
    cancelled_after_s:
        Seconds from arrival until the user cancels the job, if it is still waiting or running.
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
    """The cost of allocation changes.

    Parameters
    ----------
    delay_s:
        Seconds from a decision to start or grow a job until its speed changes; until then, it keeps its old speed.
        Shrinking takes no time (ModelArts, section 5.5).
    pause_s:
        Seconds without progress when a job starts, moves or is resized.
    snapshot_every_s:
        Seconds of training between snapshots; a preempted or moved job loses the work since its last snapshot. A
        resize on the same node loses no work: with a pause, the processes restart from a checkpoint that they write
        before the change; without one, they continue and save nothing. With ``None``, a job saves one at each stop.
    rounds:
        Overhead of each decision for all running jobs; ``None`` if jobs whose allocation does not change do not stop.
    """

    delay_s: float = 0.0
    pause_s: float = 0.0
    snapshot_every_s: float | None = None
    rounds: ElasticFlowOverhead | None = None

    def __post_init__(self) -> None:
        for field, value in (("delay_s", self.delay_s), ("pause_s", self.pause_s)):
            if not 0 <= value < inf:
                raise InvalidInputError(field, value, "0 or more seconds")
        if self.snapshot_every_s is not None and not 0 < self.snapshot_every_s < inf:
            raise InvalidInputError("snapshot_every_s", self.snapshot_every_s, "more than 0 seconds, or None")
