"""Inputs and outputs of a policy: jobs with their speeds, nodes with their devices, and allocations.

Devices are whole units. A pool of CPU cores that jobs share in tenths is a node whose devices are tenths of a core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from paceline.allocate._speeds import Speeds
from paceline.contract import Reason
from paceline.errors import InvalidInputError, PacelineError

DEVICE = "device"  # default device kind, for clusters with only one kind


@dataclass(frozen=True)
class Node:
    """A machine, or a pool of identical devices.

    Parameters
    ----------
    name:
        Unique name of the node.
    devices:
        Number of devices that may be allocated now.
    kind:
        Device kind, a key of ``ClusterJob.speeds``.
    cost_per_s:
        Cost per second while 0, 1, 2, ... devices are in use (c_ng of ANDREAS); empty if the node is free of charge.
    later:
        Devices that can be allocated later: times in seconds, each with a number of devices. Only a policy that plans
        ahead uses them.
    """

    name: str
    devices: int
    kind: str = DEVICE
    cost_per_s: tuple[float, ...] = ()
    later: tuple[tuple[float, int], ...] = ()

    def __post_init__(self) -> None:
        if self.devices < 0 or self.all_devices < 1:
            raise InvalidInputError(f"{self.name}.devices", self.devices, "1 or more, now or later")
        if self.cost_per_s and len(self.cost_per_s) != self.devices + 1:
            raise InvalidInputError(
                f"{self.name}.cost_per_s",
                self.cost_per_s,
                f"{self.devices + 1} numbers, for 0 to {self.devices} devices in use",
            )

    @property
    def all_devices(self) -> int:
        """Number of devices, now and later."""
        return self.devices + sum(number for _, number in self.later)

    def cost(self, used: int) -> float:
        """Return the cost per second while ``used`` devices are in use."""
        return self.cost_per_s[used] if self.cost_per_s else 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """The node on which a job runs, and its number of devices."""

    node: str
    devices: int


@dataclass(eq=False, slots=True)
class ClusterJob:
    """A waiting or running job, as a policy sees it.

    Parameters
    ----------
    name:
        Unique name of the job.
    arrived_s:
        Arrival time in seconds, on the clock of ``now_s``.
    work:
        Estimated remaining work at ``since_s``, in any unit, for example iterations or seconds on one device.
    speeds:
        Work per second for each device kind that the job can use.
    deadline_s:
        Deadline in seconds; ``None`` if the job has none.
    weight:
        Cost of each second of tardiness (omega of ANDREAS); also the priority of the job under priority scheduling.
    requested:
        Number of devices that the user requested, for policies that do not choose the number.
    held:
        Current allocation; ``None`` while the job waits.
    since_s:
        The time to which ``work`` and ``speed`` refer.
    speed:
        Current work per second; lower than in ``speeds`` while the job is starting or being resized.
    started_s:
        Time of the first allocation.
    promise:
        Number of an earlier arbiter's promise to meet the deadline, larger for later promises; ``None`` without one.
    change_s:
        Seconds without progress when the allocation of the job changes; ``None`` if not measured.
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
    promise: int | None = None
    change_s: float | None = None

    @property
    def promised(self) -> bool:
        """Whether an earlier arbiter has promised the deadline."""
        return self.promise is not None

    def speeds_on(self, kind: str) -> Speeds:
        """Return the speeds on devices of a kind. Raise InvalidInputError if the job has none."""
        speeds = self.speeds.get(kind)
        if speeds is None:
            raise InvalidInputError(f"{self.name}.speeds", sorted(self.speeds), f"the pool's device kind, {kind}")
        return speeds

    def work_left(self, now_s: float) -> float:
        """Return the estimated remaining work, 0 or more."""
        left = self.work
        if self.speed and now_s > self.since_s:
            left -= self.speed * (now_s - self.since_s)
        return left if left > 0 else 0.0

    def seconds(self, node: Node, devices: int, now_s: float) -> float:
        """Return the seconds that the remaining work takes on ``devices`` devices of ``node`` (t_jng of ANDREAS)."""
        return self.work_left(now_s) / self.speeds[node.kind].at(devices)


@dataclass(frozen=True)
class Allocation:
    """The decision of a policy: which jobs run, where, and why.

    Parameters
    ----------
    placements:
        Placements of the running jobs, by job name; all other jobs wait.
    reasons:
        Reasons by job name; a policy need not give a reason for every job.
    late:
        Names of the jobs that are predicted to miss their deadline, or not certain enough to meet it.
    replan_s:
        Time of the next change in the policy's plan; the policy has to decide again by then, even without an event.
    rejected:
        Names of the jobs that the policy refuses to run.
    """

    placements: Mapping[str, Placement]
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    late: frozenset[str] = frozenset()
    replan_s: float = inf
    rejected: frozenset[str] = frozenset()


class Reservation(NamedTuple):
    """Devices reserved for one job from now until the job ends.

    ``runs`` are the periods with a constant number of devices, each with its end; the job uses ``max_devices`` in
    spans with that many free devices.
    """

    runs: tuple[tuple[float, int], ...]
    device_s: float
    max_devices: int

    @property
    def devices_now(self) -> int:
        """Devices in the first span."""
        return self.runs[0][1]

    @property
    def ends_s(self) -> float:
        """The end of the job."""
        return self.runs[-1][0]

    @property
    def changes_s(self) -> float:
        """Time of the first change of the number of devices; infinite if it stays the same."""
        return self.runs[0][0] if len(self.runs) > 1 else inf

    def most_devices(self, until_s: float) -> int:
        """Return the largest number of devices from now to a time."""
        most = self.devices_now
        for (begin_s, _), (_, number) in pairwise(self.runs):
            if begin_s >= until_s:
                break
            most = max(most, number)
        return most


class Policy(ABC):
    """An interchangeable rule that allocates the devices of a cluster to jobs.

    Attributes
    ----------
    name:
        Name of the policy.
    shares_pool:
        Whether an arbiter can use the policy: it needs only one pool of identical devices, and rejects no job.
    plans_ahead:
        Whether the policy plans with the devices that a node has ``later``, so that it decides also while the node has
        none, and changes allocations that no longer fit.
    uses_priority:
        Whether the weight of a job in an arbiter's pool is the ``priority_weight`` of its task, instead of 1.
    keeps_promises:
        Whether the policy plans every job whose deadline an arbiter has promised, with ``reservations``. Arbiters
        promise deadlines only for such a policy.
    confidence:
        Probability with which a promised deadline is to be met, given how exactly the speeds are known; 0.5 plans
        with the speeds as they are.
    """

    name: str
    shares_pool: bool = True
    plans_ahead: bool = False
    uses_priority: bool = False
    keeps_promises: bool = False
    confidence: float = 0.5

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """What the last plan reserves for the jobs that are on time, by name; empty for a policy without such plans."""
        return {}

    @property
    def promised_ends_s(self) -> Mapping[str, float]:
        """Ends that the last plan promises to jobs that are late or have no deadline, by name; usually empty."""
        return {}

    @abstractmethod
    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """Return the allocation that applies from ``now_s``.

        Parameters
        ----------
        jobs:
            All waiting and running jobs, in order of arrival.
        nodes:
            All nodes, in use or idle.
        now_s:
            The time in seconds.
        rescale:
            Whether running jobs may be resized. Periodic policies resize only at periodic decisions. If a job arrives
            or ends between these times, they only start waiting jobs.
        """


class ImpossibleAllocationError(PacelineError):
    """A policy allocated devices that do not exist or that the job cannot use."""


def free_devices(jobs: Sequence[ClusterJob], nodes: Sequence[Node]) -> dict[str, int]:
    """Return the number of free devices of each node."""
    free = {node.name: node.devices for node in nodes}
    for job in jobs:
        if job.held is not None:
            free[job.held.node] -= job.held.devices
    return free


def check(allocation: Allocation, jobs: Sequence[ClusterJob], nodes: Sequence[Node]) -> None:
    """Raise ``ImpossibleAllocationError`` if an allocation cannot be executed."""
    known = {job.name: job for job in jobs}
    left = {node.name: node.devices for node in nodes}
    kinds = {node.name: node.kind for node in nodes}
    for name, placement in allocation.placements.items():
        if name not in known:
            raise ImpossibleAllocationError(f"{name}: unknown job")
        if placement.node not in left:
            raise ImpossibleAllocationError(f"{name}: unknown node {placement.node!r}")
        speeds = known[name].speeds.get(kinds[placement.node])
        if speeds is None or placement.devices not in speeds.counts:
            counts = [] if speeds is None else list(speeds.counts)
            raise ImpossibleAllocationError(
                f"{name}: got {placement.devices} devices of {placement.node!r}, expected one of {counts}"
            )
        left[placement.node] -= placement.devices
    for node in nodes:
        if left[node.name] < 0:
            allocated = f"{node.devices - left[node.name]} of {node.devices} devices"
            raise ImpossibleAllocationError(f"{node.name}: more devices are allocated than the node has: {allocated}")
