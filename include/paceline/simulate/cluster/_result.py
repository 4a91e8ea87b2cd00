"""Results of a simulation, accumulated as jobs depart, so that memory use does not grow with the number of jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.allocate import Node

if TYPE_CHECKING:
    from paceline.simulate.cluster._running import RunningJob

_MAX_SAMPLES = 2000


class JobOutcome(NamedTuple):
    """A departed job: its status ("done", "broken", "cancelled" or "rejected"), and its times."""

    name: str
    status: str
    arrived_s: float
    started_s: float | None
    departed_s: float
    met: bool | None  # whether the job met its deadline; None if it has none
    accepted: bool  # whether the policy has ever planned the job to end on time


class ClusterSample(NamedTuple):
    """The state of the cluster at one time."""

    now_s: float
    queued: int
    used_devices: float
    done: int


@dataclass(frozen=True)
class SimulationResult:
    """The result of a workload under a policy.

    Means are over finished jobs; ``deadlines_met_pct`` is over all jobs with a deadline, and rejected jobs miss theirs.
    ``accepted`` is the number of jobs with a deadline that the policy, at some time, did not expect to be late, and
    ``accepted_late`` the number of those that missed it. A policy that makes no predictions accepts all jobs.
    """

    policy: str
    jobs: int
    done: int
    broken: int
    cancelled: int
    rejected: int
    with_deadline: int
    deadlines_met: int
    accepted: int
    accepted_late: int
    mean_queue_s: float
    mean_total_s: float
    tardiness_cost: float
    energy_cost: float
    device_s: float
    ended_s: float
    changes: int
    samples: tuple[ClusterSample, ...]

    @property
    def deadlines_met_pct(self) -> float:
        """Percentage of deadlines met, over all jobs with a deadline."""
        return 100.0 * self.deadlines_met / self.with_deadline if self.with_deadline else 100.0

    @property
    def promises_kept_pct(self) -> float:
        """Percentage of deadlines met, over the jobs that the policy has accepted."""
        return 100.0 * (1 - self.accepted_late / self.accepted) if self.accepted else 100.0

    @property
    def total_cost(self) -> float:
        """Cost of energy and tardiness."""
        return self.energy_cost + self.tardiness_cost

    def in_devices(self, unit: float) -> SimulationResult:
        """Return the result of nodes whose devices are ``unit`` devices each, such as 0.05 of a core, in devices."""
        samples = tuple(one._replace(used_devices=one.used_devices * unit) for one in self.samples)
        return self if unit == 1 else replace(self, device_s=self.device_s * unit, samples=samples)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except the samples as JSON-safe values."""
        plain = asdict(self)
        del plain["samples"]
        return {**plain, "deadlines_met_pct": self.deadlines_met_pct, "total_cost": self.total_cost}


class Ledger:
    """Accumulates the result of a simulation."""

    def __init__(self, nodes: Sequence[Node], pue: float, on_outcome: Callable[[JobOutcome], None] | None) -> None:
        self.departed = self.done = self.broken = self.cancelled = self.rejected = self.changes = 0
        self._with_deadline = self._met = self._accepted = self._accepted_late = 0
        self._queue_s = self._total_s = self._tardiness = 0.0
        self._energy = self._device_s = 0.0
        self._nodes, self._pue = nodes, pue
        self._accounted_s: float | None = None
        self._samples: list[ClusterSample] = []
        self._stride, self._skipped = 1, 0
        self._on_outcome = on_outcome

    def account(self, now_s: float, used: Mapping[str, int]) -> None:
        """Add energy and device seconds since the last call; call before every change of ``used``."""
        if self._accounted_s is not None and now_s > self._accounted_s:
            passed_s = now_s - self._accounted_s
            self._device_s += passed_s * sum(used.values())
            self._energy += passed_s * self._pue * sum(node.cost(used[node.name]) for node in self._nodes)
        self._accounted_s = now_s

    def record_departure(self, job: RunningJob, status: str, now_s: float) -> None:
        """Add the outcome of a departed job to the result."""
        arrival, started_s = job.arrival, job.view.started_s
        self.departed += 1
        met = None
        if status == "done":
            self.done += 1
            assert started_s is not None
            self._queue_s += started_s - arrival.arrives_s
            self._total_s += now_s - arrival.arrives_s
        else:
            self.broken += status == "broken"
            self.cancelled += status == "cancelled"
            self.rejected += status == "rejected"
        if arrival.deadline_s is not None:
            self._with_deadline += 1
            late_s = now_s - arrival.deadline_s
            met = status == "done" and late_s <= 1e-6 * max(1.0, arrival.deadline_s - arrival.arrives_s)
            self._met += met
            self._accepted += job.accepted
            self._accepted_late += job.accepted and not met and (status != "cancelled" or late_s > 0)
            if status == "done":
                self._tardiness += arrival.weight * max(0.0, late_s)
        if self._on_outcome is not None:
            self._on_outcome(JobOutcome(arrival.name, status, arrival.arrives_s, started_s, now_s, met, job.accepted))

    def sample(self, now_s: float, active: Mapping[str, RunningJob], used: Mapping[str, int]) -> None:
        """Record every ``_stride``-th sample; at the limit, drop every second sample and double the stride."""
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        queued = sum(job.view.held is None for job in active.values())
        self._samples.append(ClusterSample(now_s, queued, sum(used.values()), self.done))
        if len(self._samples) > _MAX_SAMPLES:
            self._samples = self._samples[::2]
            self._stride *= 2

    def result(self, policy: str, now_s: float) -> SimulationResult:
        """Return the result of the simulation up to now."""
        done = max(self.done, 1)
        return SimulationResult(
            policy=policy,
            jobs=self.departed,
            done=self.done,
            broken=self.broken,
            cancelled=self.cancelled,
            rejected=self.rejected,
            with_deadline=self._with_deadline,
            deadlines_met=self._met,
            accepted=self._accepted,
            accepted_late=self._accepted_late,
            mean_queue_s=self._queue_s / done,
            mean_total_s=self._total_s / done,
            tardiness_cost=self._tardiness,
            energy_cost=self._energy,
            device_s=self._device_s,
            ended_s=now_s,
            changes=self.changes,
            samples=tuple(self._samples),
        )
