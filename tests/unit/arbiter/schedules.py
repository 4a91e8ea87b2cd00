"""Arbiters, jobs and a store with compare-and-set, which a test runs in any order, step by step.

The store follows the rules of the API server (``plugins/web/grants.py``, ``plugins/web/lease.py``). Each arbiter
follows ``ArbiterOperator``: it reads the jobs, decides, and sends its grants, which arrive at once, late or never.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from paceline.arbiter import Arbiter, DeviceRequest
from paceline.contract import Ceiling

DEVICES = 4
_START = datetime(2030, 1, 1, tzinfo=timezone.utc)
# Name: arrival, work in device seconds, deadline in seconds after the arrival, smallest and largest number of devices.
_JOBS = {
    "early": (0, 200, 300, 1, 4),
    "tight": (10, 120, 60, 1, 3),
    "endless": (0, 300, None, 1, 4),
    "newcomer": (60, 60, 40, 1, 2),
}
_ALONE = "alone"  # it starts without an arbiter and cannot be preempted
_ARBITERS = 2
_TICK_S = 5.0


@dataclass
class Store:
    """The ceilings and samples of all jobs, the lease of the pool, and the version of its grants."""

    ceilings: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, Any] = field(default_factory=dict)
    arbiter: int = -1
    version: int = 0

    def take(self, arbiter: int) -> None:
        self.arbiter, self.version = arbiter, self.version + 1

    def read(self) -> tuple[int, dict[str, tuple[Any, Any]]]:
        return self.version, {name: (sample, self.ceilings.get(name)) for name, sample in self.samples.items()}

    def write(self, arbiter: int, version: int, grants: dict[str, tuple[Any, Any]]) -> None:
        """Store new ceilings, given as pairs of the ceiling that the arbiter has read and the new ceiling."""
        if (arbiter, version) != (self.arbiter, self.version):
            return
        self.version += 1
        for name, (before, ceiling) in grants.items():
            if name in self.samples and self.ceilings.get(name) == before:
                self.ceilings[name] = ceiling


@dataclass
class Job:
    """A training job that uses its whole ceiling, as soon as it knows of it."""

    name: str
    arrives_s: float
    work: float
    deadline_s: float | None
    min_devices: int
    max_devices: int
    store: Store
    shared: bool = True
    state: str = "waiting"
    held: float = 0.0
    grant: int = 0
    ceiling: float | None = None
    urgent_s: float | None = None  # a deadline that the user has moved

    def apply(self) -> None:
        """Read the ceiling, and scale to it."""
        raw = self.store.ceilings.get(self.name)
        if raw is None or self.state == "finished" or self.name not in self.store.samples:
            return
        ceiling = Ceiling.read(raw)
        self.grant, self.ceiling = ceiling.grant, ceiling.devices
        if ceiling.devices > 0:
            self.state = "training"
        elif self.state == "training":
            self.state = "preempted"
        self.held = ceiling.devices

    def publish(self, now_s: float) -> None:
        """Store a sample; the first one is the job's request for devices."""
        if now_s < self.arrives_s:
            return
        known = self.state != "waiting" or self.name != "endless"  # the speed of one job is unknown at first
        self.store.samples[self.name] = {
            "state": self.state, "t_s": now_s, "updated_at": (_START + timedelta(seconds=now_s)).isoformat(),
            "progress_pct": 1.0, "setpoint_pct": 1.0, "devices": self.held, "min_devices": float(self.min_devices),
            "max_devices": float(self.max_devices), "quantum": 1.0,
            "deadline_s": self.urgent_s or (self.arrives_s + self.deadline_s if self.deadline_s else None),
            "ceiling": self.ceiling, "grant": self.grant, "shared": self.shared, "startup_s": 4.0,
            "remaining": {"work_s": self.work, "exponent": 1.0, "after_s": 1.0} if known else None,
        }  # fmt: skip

    def most_devices(self) -> float:
        """Return the most devices that the job may use from now on without another grant."""
        if self.state == "finished":
            return 0.0
        stored = self.store.ceilings.get(self.name)
        unlimited = 0.0 if self.shared else float(self.max_devices)
        return max(self.held, unlimited if stored is None else stored["devices"])

    def move_deadline(self, now_s: float) -> None:
        """Make the deadline so urgent that it needs most of the pool, or end its urgency."""
        self.urgent_s = now_s + self.work / self.max_devices + 10.0 if self.urgent_s is None else None
        self.publish(now_s)

    def restart(self) -> None:
        """Begin the task's next try, which removes the container and the ceiling, and waits again."""
        if self.shared and self.state != "finished":
            self.store.ceilings.pop(self.name, None)
            self.state, self.held, self.grant, self.ceiling = "waiting", 0.0, 0, None

    def advance(self, seconds: float) -> None:
        self.work = max(self.work - self.held * seconds, 0.0)
        if self.work == 0.0:
            self.state, self.held = "finished", 0.0


class Cluster:
    """A pool, its jobs and its arbiters. Each method is one step of one of them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.store = Store()
        self.jobs = [
            Job(name, arrives_s, work, deadline_s, low, high, self.store)
            for name, (arrives_s, work, deadline_s, low, high) in _JOBS.items()
        ]
        alone = Job(_ALONE, 0.0, 150, 500, 1, 2, self.store, shared=False, state="training", held=2.0)
        self.jobs.append(alone)
        self._ids = list(range(_ARBITERS))  # ids of the arbiters' task instances
        self._arbiters = [Arbiter(DEVICES, quantum=1, every_s=30.0) for _ in self._ids]
        self._seen: list[tuple[int, dict[str, tuple[Any, Any]]]] = [(-1, {}) for _ in self._ids]
        self._late: list[tuple[int, int, dict[str, tuple[Any, Any]]]] = []
        self.update(0)

    def take(self, number: int) -> None:
        """Take the lease, as if Airflow had declared every other arbiter dead."""
        self.store.take(self._ids[number])

    def kill(self, number: int) -> None:
        """Kill an arbiter; its next try has no memory, and another id."""
        self._ids[number] = max(self._ids) + 1
        self._arbiters[number] = Arbiter(DEVICES, quantum=1, every_s=30.0)
        self._seen[number] = (-1, {})

    def read(self, number: int) -> None:
        self._seen[number] = self.store.read()

    def write(self, number: int, *, late: bool = False) -> None:
        """Decide on what was read, and send the grants; a late request waits for ``arrive``."""
        version, rows = self._seen[number]
        requests = [DeviceRequest.read(name, sample, ceiling) for name, (sample, ceiling) in rows.items()]
        assert None not in requests
        grants = {
            grant.key: (rows[grant.key][1], grant.ceiling.to_json())
            for grant in self._arbiters[number].step(requests, _START.timestamp() + self.now_s)
        }
        if late:
            self._late.append((self._ids[number], version, grants))
        elif grants:
            self.store.write(self._ids[number], version, grants)

    def arrive(self, number: int) -> None:
        """Let one of the late requests arrive at the store."""
        if self._late:
            self.store.write(*self._late.pop(number % len(self._late)))

    def apply(self, number: int) -> None:
        self.jobs[number % len(self.jobs)].apply()

    def publish(self, number: int) -> None:
        self.jobs[number % len(self.jobs)].publish(self.now_s)

    def move_deadline(self, number: int) -> None:
        self.jobs[number % len(self.jobs)].move_deadline(self.now_s)

    def restart(self, number: int) -> None:
        self.jobs[number % len(self.jobs)].restart()

    def tick(self, number: int) -> None:
        self.now_s += _TICK_S
        for job in self.jobs:
            job.advance(_TICK_S)

    def decide(self, number: int) -> None:
        """Let an arbiter that has the lease, or gets it now, read, decide and write without a pause."""
        if self.store.arbiter != self._ids[number]:
            self.take(number)
        self.read(number)
        self.write(number)

    def decide_late(self, number: int) -> None:
        self.read(number)
        self.write(number, late=True)

    def update(self, number: int) -> None:
        """Let all jobs apply their ceilings and publish samples."""
        for job in self.jobs:
            job.apply()
            job.publish(self.now_s)

    def run(self, name: str, number: int) -> None:
        """Run one step of a schedule and check that nothing was given out twice."""
        getattr(self, name)(number % _ARBITERS if name in _STEPS_OF_ARBITERS else number)
        most = {job.name: job.most_devices() for job in self.jobs}
        assert sum(most.values()) <= DEVICES, most

    def finish(self) -> None:
        """Run one arbiter and all jobs without further faults until all jobs have ended."""
        self._late.clear()
        limit_s = self.now_s + 2000.0  # 1,230 device seconds of work, and times without work
        self.kill(0)
        self.take(0)
        while any(job.state != "finished" for job in self.jobs):
            assert self.now_s < limit_s, {job.name: (job.state, job.work, job.held) for job in self.jobs}
            for step in ("update", "decide", "tick"):
                self.run(step, 0)


_STEPS_OF_ARBITERS = ("take", "kill", "read", "write", "decide", "decide_late")
_STEPS = (*_STEPS_OF_ARBITERS, "decide", "decide", "update", "apply", "apply", "publish", "tick", "move_deadline",
          "move_deadline", "arrive", "restart")  # fmt: skip
schedules = st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 4)), min_size=30, max_size=60)


def check_schedule(schedule: list[tuple[str, int]]) -> None:
    """Run a schedule: the ceilings never exceed the pool, and afterwards all jobs end."""
    cluster = Cluster()
    for name, number in schedule:
        cluster.run(name, number)
    cluster.finish()
