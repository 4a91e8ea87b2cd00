"""What a policy sees and says: jobs with their speeds, nodes with their devices, and who gets which.

Devices are whole units. A pool of CPU cores that is shared in steps of a tenth of a core is a node of that many tenths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, log2
from typing import Protocol

from paceline.errors import InvalidInputError, PacelineError

DEVICE = "device"  # the kind of a device where there is only one kind


@dataclass(frozen=True)
class Speeds:
    """How fast a job trains on so many devices of one kind.

    Parameters
    ----------
    counts:
        The legal numbers of devices, ascending.
    per_s:
        Work done in a second with each of them, in the unit of ``ClusterJob.work``.

    Examples
    --------
    >>> speeds = Speeds.halving_efficiency(8)
    >>> speeds.counts, round(speeds.at(4), 2)
    ((1, 2, 4, 8), 2.56)
    >>> speeds.most(7)    # the largest legal number that fits
    4
    """

    counts: tuple[int, ...]
    per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.counts or list(self.counts) != sorted(set(self.counts)) or self.counts[0] < 1:
            raise InvalidInputError("counts", self.counts, "ascending numbers of devices, from 1")
        if len(self.per_s) != len(self.counts) or not all(0 < each < float("inf") for each in self.per_s):
            raise InvalidInputError("per_s", self.per_s, f"{len(self.counts)} positive numbers")

    @classmethod
    def halving_efficiency(cls, most: int, kept: float = 0.8, one: float = 1.0) -> Speeds:
        """The curve k · 0.8^log2(k) of ModelArts (figure 6): a fifth of the efficiency goes with each doubling."""
        if most < 1:
            raise InvalidInputError("most", most, "a number of devices from 1")
        counts = tuple(2**power for power in range(int(log2(most)) + 1))
        return cls(counts, tuple(one * count * kept ** log2(count) for count in counts))

    @classmethod
    def linear(cls, most: int, one: float = 1.0) -> Speeds:
        """Twice the devices, twice the speed; every number up to ``most`` is legal."""
        return cls(tuple(range(1, most + 1)), tuple(one * count for count in range(1, most + 1)))

    @cached_property
    def _by_count(self) -> dict[int, float]:
        return dict(zip(self.counts, self.per_s, strict=True))

    def at(self, devices: int) -> float:
        """Work in a second on ``devices``, which must be a legal number; 0 on none."""
        if devices == 0:
            return 0.0
        try:
            return self._by_count[devices]
        except KeyError:
            raise InvalidInputError("devices", devices, f"one of {self.counts}") from None

    def most(self, devices: int) -> int:
        """The largest legal number of devices that is not above ``devices``; 0 if even the smallest is."""
        place = bisect_right(self.counts, devices)
        return self.counts[place - 1] if place else 0

    @cached_property
    def useful(self) -> tuple[int, ...]:
        """The legal numbers that are faster than every smaller one: more is waste, or worse."""
        best, kept = 0.0, []
        for count, speed in zip(self.counts, self.per_s, strict=True):
            if speed > best:
                best = speed
                kept.append(count)
        return tuple(kept)

    @cached_property
    def fastest(self) -> int:
        """The number of devices with the highest speed, the smallest of them."""
        return self.useful[-1]


@dataclass(frozen=True)
class Node:
    """A machine, or a whole pool of devices that are as good as each other.

    Parameters
    ----------
    name:
        Its name.
    devices:
        How many it has.
    kind:
        Of which kind, see ``ClusterJob.speeds``.
    cost_per_s:
        What it costs in a second while 0, 1, 2, ... of its devices are in use (c_ng of ANDREAS); empty: nothing.
    """

    name: str
    devices: int
    kind: str = DEVICE
    cost_per_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise InvalidInputError(f"{self.name}.devices", self.devices, "1 or more")
        if self.cost_per_s and len(self.cost_per_s) != self.devices + 1:
            raise InvalidInputError(
                f"{self.name}.cost_per_s",
                self.cost_per_s,
                f"{self.devices + 1} numbers: for 0 to {self.devices} in use",
            )

    def cost(self, used: int) -> float:
        """What it costs in a second with so many devices in use."""
        return self.cost_per_s[used] if self.cost_per_s else 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job runs, and on how many devices."""

    node: str
    devices: int


@dataclass(eq=False, slots=True)
class ClusterJob:
    """A job that waits or runs, as far as a policy knows it.

    Parameters
    ----------
    name:
        Its name, unique among the jobs.
    arrived_s:
        When it came, in seconds on the clock of ``now_s``.
    work:
        What was left to do at ``since_s``, in any unit: iterations, seconds on one device. An estimate.
    speeds:
        Work in a second on each kind of device that it can use.
    deadline_s:
        When it should be done; ``None`` if it need not be by any time.
    weight:
        What a second of tardiness costs (omega of ANDREAS), and the job's rank under priority scheduling.
    requested:
        So many devices its user asked for, for policies that do not choose.
    held:
        What it has now; ``None`` while it waits.
    speed:
        Work in a second now: less than ``speeds`` says while it starts or changes its size.
    started_s:
        When it got devices for the first time.
    """

    name: str
    arrived_s: float
    work: float
    speeds: Mapping[str, Speeds]
    deadline_s: float | None = None
    weight: float = 1.0
    requested: int | None = None
    held: Placement | None = None
    since_s: float = 0.0
    speed: float = 0.0
    started_s: float | None = None

    def left(self, now_s: float) -> float:
        """Work left now, by the estimate; never negative."""
        return max(0.0, self.work - self.speed * max(0.0, now_s - self.since_s))

    def seconds(self, node: Node, devices: int, now_s: float) -> float:
        """How long the rest takes on that many devices of that node (t_jng of ANDREAS)."""
        return self.left(now_s) / self.speeds[node.kind].at(devices)


@dataclass(frozen=True)
class Allocation:
    """Who runs from now on, where, and why. Who is not named waits.

    Parameters
    ----------
    placements:
        The jobs that run, by their names.
    reasons:
        Why a job has what it has, or waits; not every policy explains every job.
    late:
        Names of the jobs that will not meet their deadline beside the others, as far as can be told.
    again_s:
        When the policy wants to be asked again, even if nothing happens until then: its plan has a change there.
    """

    placements: Mapping[str, Placement]
    reasons: Mapping[str, str] = field(default_factory=dict)
    late: frozenset[str] = frozenset()
    again_s: float = inf


class Policy(Protocol):
    """Decides who gets which devices."""

    name: str

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """Say who runs from now on.

        Parameters
        ----------
        jobs:
            All that wait or run, in the order in which they came.
        nodes:
            All nodes, in use or not.
        now_s:
            The time, in seconds.
        rescale:
            Whether this is one of the regular moments at which running jobs are given other sizes. At other times,
            when a job comes or ends, policies that plan from time to time only let in who waits.
        """
        ...


class ImpossibleAllocationError(PacelineError):
    """A policy gave out what is not there, or what a job cannot use."""


def free_devices(jobs: Sequence[ClusterJob], nodes: Sequence[Node]) -> dict[str, int]:
    """How many devices of each node nobody holds."""
    free = {node.name: node.devices for node in nodes}
    for job in jobs:
        if job.held is not None:
            free[job.held.node] -= job.held.devices
    return free


def check(allocation: Allocation, jobs: Sequence[ClusterJob], nodes: Sequence[Node]) -> None:
    """Raise ``ImpossibleAllocationError`` if an allocation cannot be carried out."""
    known = {job.name: job for job in jobs}
    left = {node.name: node.devices for node in nodes}
    kinds = {node.name: node.kind for node in nodes}
    for name, given in allocation.placements.items():
        if name not in known:
            raise ImpossibleAllocationError(f"{name}: no such job waits or runs")
        if given.node not in left:
            raise ImpossibleAllocationError(f"{name}: there is no node {given.node!r}")
        speeds = known[name].speeds.get(kinds[given.node])
        if speeds is None or given.devices not in speeds.counts:
            raise ImpossibleAllocationError(f"{name}: cannot use {given.devices} devices of {given.node!r}")
        left[given.node] -= given.devices
        if left[given.node] < 0:
            raise ImpossibleAllocationError(f"{given.node}: more devices are given out than it has")
