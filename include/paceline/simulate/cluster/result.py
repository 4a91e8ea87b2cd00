"""What became of all jobs, counted while they leave: memory does not grow with those that have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.allocate import Node

if TYPE_CHECKING:
    from paceline.simulate.cluster.running import Running

_SAMPLES = 2000  # of the picture, at most


class JobOutcome(NamedTuple):
    """One job that has left: how ("done", "broken", "cancelled"), and when it came, began and left."""

    name: str
    how: str
    arrived_s: float
    started_s: float | None
    left_s: float
    met: bool | None  # its deadline; None if it had none


class ClusterSample(NamedTuple):
    """The cluster at one moment."""

    now_s: float
    queued: int
    used_devices: int
    done: int


@dataclass(frozen=True)
class SimulationResult:
    """What became of a workload under a policy.

    Means are over the jobs that were done; ``deadlines_met_pct`` is of all jobs that had a deadline.
    """

    policy: str
    jobs: int
    done: int
    broken: int
    cancelled: int
    with_deadline: int
    deadlines_met: int
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
        """Percent of the jobs with a deadline that met it."""
        return 100.0 * self.deadlines_met / self.with_deadline if self.with_deadline else 100.0

    @property
    def total_cost(self) -> float:
        """Energy and tardiness."""
        return self.energy_cost + self.tardiness_cost

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON; without the samples."""
        plain = asdict(self)
        del plain["samples"]
        return {**plain, "deadlines_met_pct": self.deadlines_met_pct, "total_cost": self.total_cost}


class Ledger:
    """Counts what happens, as it happens."""

    def __init__(self, nodes: Sequence[Node], pue: float, on_outcome: Callable[[JobOutcome], None] | None) -> None:
        self.left = self.done = self.broken = self.cancelled = self.changes = 0
        self._with_deadline = self._met = 0
        self._queue_s = self._total_s = self._tardiness = 0.0
        self._energy = self._device_s = 0.0
        self._nodes, self._pue = nodes, pue
        self._accounted_s: float | None = None
        self._samples: list[ClusterSample] = []
        self._stride, self._skipped = 1, 0
        self._on_outcome = on_outcome

    def account(self, now_s: float, used: Mapping[str, int]) -> None:
        """Energy and devices since the last change; called right before each one."""
        if self._accounted_s is not None and now_s > self._accounted_s:
            passed_s = now_s - self._accounted_s
            self._device_s += passed_s * sum(used.values())
            self._energy += passed_s * self._pue * sum(node.cost(used[node.name]) for node in self._nodes)
        self._accounted_s = now_s

    def close(self, job: Running, how: str, now_s: float) -> None:
        """A job leaves."""
        arrival, started_s = job.arrival, job.shown.started_s
        self.left += 1
        met = None
        if how == "done":
            self.done += 1
            assert started_s is not None
            self._queue_s += started_s - arrival.arrives_s
            self._total_s += now_s - arrival.arrives_s
        else:
            self.broken += how == "broken"
            self.cancelled += how == "cancelled"
        if arrival.deadline_s is not None:
            self._with_deadline += 1
            late_s = now_s - arrival.deadline_s
            met = how == "done" and late_s <= 1e-6 * max(1.0, abs(arrival.deadline_s))
            self._met += met
            if how == "done":
                self._tardiness += arrival.weight * max(0.0, late_s)
        if self._on_outcome is not None:
            self._on_outcome(JobOutcome(arrival.name, how, arrival.arrives_s, started_s, now_s, met))

    def look(self, now_s: float, active: Mapping[str, Running], used: Mapping[str, int]) -> None:
        """Keep a sample, or not: each time there are too many, every second one goes."""
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        queued = sum(job.shown.held is None for job in active.values())
        self._samples.append(ClusterSample(now_s, queued, sum(used.values()), self.done))
        if len(self._samples) > _SAMPLES:
            self._samples = self._samples[::2]
            self._stride *= 2

    def result(self, policy: str, now_s: float) -> SimulationResult:
        """All of it."""
        done = max(self.done, 1)
        return SimulationResult(
            policy=policy,
            jobs=self.left,
            done=self.done,
            broken=self.broken,
            cancelled=self.cancelled,
            with_deadline=self._with_deadline,
            deadlines_met=self._met,
            mean_queue_s=self._queue_s / done,
            mean_total_s=self._total_s / done,
            tardiness_cost=self._tardiness,
            energy_cost=self._energy,
            device_s=self._device_s,
            ended_s=now_s,
            changes=self.changes,
            samples=tuple(self._samples),
        )
