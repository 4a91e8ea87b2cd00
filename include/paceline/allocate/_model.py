"""Inputs and outputs of a policy: jobs with their speeds, nodes with their devices, and allocations.

Devices are whole units. A pool of CPU cores that jobs share in tenths is a node whose devices are tenths of a core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import exp, inf, isfinite, log2
from statistics import NormalDist
from typing import Any, NamedTuple, TypeVar

from paceline.contract import Reason
from paceline.errors import InvalidInputError, PacelineError

_Curve = TypeVar("_Curve")

DEVICE = "device"  # default device kind, for clusters with only one kind


@dataclass(frozen=True)
class Speeds:
    """Speed of a job for each allowed device count of one kind.

    Parameters
    ----------
    counts:
        Allowed device counts, ascending.
    per_s:
        Work per second for each of ``counts``, in the unit of ``ClusterJob.work``.
    sd:
        Standard deviation of each of ``per_s``, as a fraction of it; errors of the estimated work count as errors of
        the speed. Empty if all speeds are exact.

    Examples
    --------
    >>> speeds = Speeds.doubling_efficiency(8)
    >>> speeds.counts, round(speeds.at(4), 2)
    ((1, 2, 4, 8), 2.56)
    >>> speeds.largest_count(7)
    4
    """

    counts: tuple[int, ...]
    per_s: tuple[float, ...]
    sd: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.counts or list(self.counts) != sorted(set(self.counts)) or self.counts[0] < 1:
            raise InvalidInputError("counts", self.counts, "ascending numbers of devices, each 1 or more")
        if len(self.per_s) != len(self.counts) or min(self.per_s) <= 0 or not isfinite(sum(self.per_s)):
            raise InvalidInputError("per_s", self.per_s, f"{len(self.counts)} positive numbers")
        if self.sd and (len(self.sd) != len(self.counts) or min(self.sd) < 0 or not isfinite(sum(self.sd))):
            raise InvalidInputError("sd", self.sd, f"{len(self.counts)} numbers of at least 0, or none")

    @classmethod
    def doubling_efficiency(cls, max_devices: int, efficiency: float = 0.8, base: float = 1.0) -> Speeds:
        """Return the curve k · 0.8^log2(k) of ModelArts (figure 6): each doubling of k cuts efficiency by a fifth."""
        if max_devices < 1:
            raise InvalidInputError("max_devices", max_devices, "1 or more devices")
        counts = tuple(2**power for power in range(int(log2(max_devices)) + 1))
        return cls(counts, tuple(base * count * efficiency ** log2(count) for count in counts))

    @classmethod
    def linear(cls, max_devices: int, base: float = 1.0) -> Speeds:
        """Return a linear speed-up curve; every number of devices up to ``max_devices`` is allowed."""
        return cls(tuple(range(1, max_devices + 1)), tuple(base * count for count in range(1, max_devices + 1)))

    @cached_property
    def _speed_by_count(self) -> dict[int, float]:
        return dict(zip(self.counts, self.per_s, strict=True))

    def at(self, devices: int) -> float:
        """Return the work per second on ``devices`` devices, which has to be an allowed count or 0."""
        if devices == 0:
            return 0.0
        try:
            return self._speed_by_count[devices]
        except KeyError:
            raise InvalidInputError("devices", devices, f"one of {self.counts}") from None

    def largest_count(self, devices: int) -> int:
        """Return the largest allowed device count up to ``devices``; 0 if there is none."""
        index = bisect_right(self.counts, devices)
        return self.counts[index - 1] if index else 0

    def cautious(self, confidence: float) -> Speeds:
        """Return the speeds that the job reaches with a probability of ``confidence``, if errors are log-normal.

        >>> [round(speed, 2) for speed in Speeds((1, 2), (1.0, 2.0), sd=(0.0, 0.1)).cautious(0.9).per_s]
        [1.0, 1.76]
        """
        if confidence == 0.5 or not any(self.sd):
            return self
        deviations = NormalDist().inv_cdf(confidence)
        pairs = zip(self.per_s, self.sd, strict=True)
        return Speeds(self.counts, tuple(speed * exp(-deviations * sd) for speed, sd in pairs))

    @cached_property
    def _derived(self) -> dict[object, Any]:
        return {}

    def derive(self, make: Callable[..., _Curve], *arguments: float) -> _Curve:
        """Return ``make(self, *arguments)``, kept as long as this object: what a policy needs of the speeds to plan.

        >>> speeds = Speeds.linear(2)
        >>> speeds.derive(Speeds.cautious, 0.9) is speeds.derive(Speeds.cautious, 0.9)
        True
        """
        key = (make, *arguments)
        if key not in self._derived:
            self._derived[key] = make(self, *arguments)
        curve: _Curve = self._derived[key]
        return curve

    @cached_property
    def useful(self) -> tuple[int, ...]:
        """Return the allowed device counts on which the job is faster than on every smaller number."""
        best, useful = 0.0, []
        for count, speed in zip(self.counts, self.per_s, strict=True):
            if speed > best:
                best = speed
                useful.append(count)
        return tuple(useful)

    @cached_property
    def fastest(self) -> int:
        """Return the smallest number of devices with the highest speed."""
        return self.useful[-1]


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
        return max(0.0, self.work - self.speed * max(0.0, now_s - self.since_s))

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
    confidence:
        Probability with which a promised deadline is to be met, given how exactly the speeds are known; 0.5 plans
        with the speeds as they are.
    """

    name: str
    shares_pool: bool = True
    plans_ahead: bool = False
    uses_priority: bool = False
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
