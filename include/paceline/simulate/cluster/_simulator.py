"""Discrete-event simulation of a cluster: exact and reproducible to the last digit.

Every job has a constant speed between two events, so the simulation needs no time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import floor, inf

from paceline.allocate import Allocation, ClusterJob, ImpossibleAllocationError, Node, Placement, Policy
from paceline.errors import InvalidInputError
from paceline.simulate.cluster._result import JobOutcome, Ledger, SimulationResult
from paceline.simulate.cluster._running import RunningJob
from paceline.simulate.cluster._workload import Arrival, Friction

_DONE = 1e-9  # fraction of a job's work; a smaller remainder is a rounding error


class Simulation:
    """A cluster with arriving jobs to which a policy allocates devices.

    Parameters
    ----------
    arrivals:
        The jobs in order of arrival, read one by one, so they may come from a generator.
    nodes:
        The nodes of the cluster.
    policy:
        The policy, which decides when jobs arrive or depart, and periodically.
    friction:
        The cost of allocation changes.
    period_s:
        Seconds between periodic decisions, at which jobs may be resized; with ``None``, every decision may resize jobs.
    pue:
        Power usage effectiveness: the energy of the data centre relative to that of its nodes.
    on_event:
        Function to call with this simulation after each event, for monitoring and checks.
    on_outcome:
        Function to call with the outcome of each departed job.

    Examples
    --------
    >>> from paceline.allocate import Speeds, edf
    >>> jobs = [Arrival(f"j{n}", 10.0 * n, 60.0, {"device": Speeds.linear(4)}, deadline_s=60.0) for n in range(3)]
    >>> result = Simulation(jobs, [Node("pool", 4)], edf()).run()
    >>> result.done, result.deadlines_met, round(result.mean_total_s, 1)
    (3, 3, 20.0)
    """

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        nodes: Sequence[Node],
        policy: Policy,
        *,
        friction: Friction | None = None,
        period_s: float | None = None,
        pue: float = 1.0,
        on_event: Callable[[Simulation], None] | None = None,
        on_outcome: Callable[[JobOutcome], None] | None = None,
    ) -> None:
        if period_s is not None and not 0 < period_s < inf:
            raise InvalidInputError("period_s", period_s, "more than 0 seconds, or None")
        if not nodes or len({node.name for node in nodes}) < len(nodes):
            raise InvalidInputError("nodes", [node.name for node in nodes], "at least one node, with unique names")
        self.now_s = 0.0
        self.active: dict[str, RunningJob] = {}
        self.used = {node.name: 0 for node in nodes}
        self.ledger = Ledger(nodes, pue, on_outcome)
        self._nodes = list(nodes)
        self._by_name = {node.name: node for node in nodes}
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._policy = policy
        self._friction = friction or Friction()
        self._period_s = period_s
        self._on_event = on_event
        self._events: list[tuple[float, int, int, RunningJob]] = []  # heap of (time, arrival number, version, job)
        self._versions: dict[int, int] = {}  # current version by arrival number; older events are obsolete
        self._cancels: list[tuple[float, int, RunningJob]] = []
        self._regular_s = inf  # the next periodic decision
        self._replan_s = inf  # time of the next change in the policy's plan
        self._undecided: set[str] = set()  # active jobs that the policy has not yet planned to end on time
        self._rounds = 0
        self._round_s = -inf
        self._next_arrival = self._read_arrival()
        self._arrived = 0

    def run(self, progress: Callable[[int], object] | None = None) -> SimulationResult:
        """Simulate until all jobs have departed; call ``progress`` with the number of new departures."""
        while (now_s := self._next_event_s()) < inf:
            self.now_s = now_s
            departed_before = self.ledger.departed
            changed = self._process_events()
            regular = now_s >= self._regular_s
            if self.active and (changed or regular or now_s >= self._replan_s):
                allocation = self._decide(rescale=regular or self._period_s is None)
                self._replan_s = allocation.replan_s
                self._accept_jobs(allocation)
                self._apply_allocation(allocation)
            if self._period_s is not None and (regular or self._regular_s == inf):
                next_regular_s = (floor(now_s / self._period_s + 1e-9) + 1) * self._period_s
                self._regular_s = next_regular_s if self.active else inf
            self.ledger.sample(now_s, self.active, self.used)
            if self._on_event is not None:
                self._on_event(self)
            if progress is not None and self.ledger.departed > departed_before:
                progress(self.ledger.departed - departed_before)
            if self._is_deadlocked():
                waiting = sorted(self.active)
                raise ImpossibleAllocationError(
                    f"{self._policy.name}: no job is running and none will arrive, but {len(waiting)} are waiting: "
                    + ", ".join(waiting[:3])
                )
        return self.ledger.result(self._policy.name, self.now_s)

    def _next_event_s(self) -> float:
        while self._events and self._events[0][2] != self._versions.get(self._events[0][1]):
            heappop(self._events)
        while self._cancels and self._cancels[0][2].arrival.name not in self.active:
            heappop(self._cancels)
        return min(
            self._next_arrival.arrives_s if self._next_arrival else inf,
            self._events[0][0] if self._events else inf,
            self._cancels[0][0] if self._cancels else inf,
            self._regular_s,
            self._replan_s if self.active else inf,
        )

    def _is_deadlocked(self) -> bool:
        return (
            bool(self.active)
            and self._next_arrival is None
            and self._replan_s == inf
            and not self._events
            and not any(self.used.values())
        )

    def _process_events(self) -> bool:
        """Process all events up to now; return whether the policy has to decide again."""
        changed = False
        while self._events and self._events[0][0] <= self.now_s:
            _, seq, version, job = heappop(self._events)
            if self._versions.get(seq) == version:
                changed |= self._process_job_event(job)
        while self._cancels and self._cancels[0][0] <= self.now_s:
            job = heappop(self._cancels)[2]
            if self.active.get(job.arrival.name) is job:
                job.advance(self.now_s, self._friction)
                self._remove_job(job, "cancelled")
                changed = True
        while self._next_arrival is not None and self._next_arrival.arrives_s <= self.now_s:
            self._add_job(self._next_arrival)
            self._next_arrival = self._read_arrival()
            changed = True
        return changed

    def _read_arrival(self) -> Arrival | None:
        arrival = next(self._arrivals, None)
        if arrival is not None and arrival.arrives_s < self.now_s:
            raise InvalidInputError(f"{arrival.name}.arrives_s", arrival.arrives_s, "jobs in order of arrival")
        return arrival

    def _add_job(self, arrival: Arrival) -> None:
        if arrival.name in self.active:
            raise InvalidInputError("name", arrival.name, "a unique name")
        if not any(
            node.kind in arrival.speeds and arrival.speeds[node.kind].counts[0] <= node.devices for node in self._nodes
        ):
            raise InvalidInputError(f"{arrival.name}.speeds", dict(arrival.speeds), "speeds for at least one node")
        self._arrived += 1
        job = RunningJob(arrival, self._arrived)
        self.active[arrival.name] = job
        self._undecided.add(arrival.name)
        if arrival.cancelled_after_s < inf:
            heappush(self._cancels, (arrival.arrives_s + arrival.cancelled_after_s, job.seq, job))

    def _process_job_event(self, job: RunningJob) -> bool:
        job.advance(self.now_s, self._friction)
        ends_s = self.now_s + job.work_left / job.speed if job.speed else inf
        if job.work_left <= _DONE * job.arrival.work or ends_s <= self.now_s:  # the rest is a rounding error
            self._remove_job(job, "done")
            return True
        if job.trained_s >= job.arrival.breaks_after_s * (1 - _DONE) or job.breaks_s <= self.now_s:
            self._remove_job(job, "broken")
            return True
        if job.full_speed_s <= self.now_s:
            job.reach_target_speed()
        else:
            job.update_view()  # a rounding error scheduled the event too early
        self._schedule_event(job)
        return False

    def _remove_job(self, job: RunningJob, status: str) -> None:
        if job.view.held is not None:
            self.ledger.account(self.now_s, self.used)
            self.used[job.view.held.node] -= job.view.held.devices
        del self.active[job.arrival.name]
        self._undecided.discard(job.arrival.name)
        self._versions.pop(job.seq, None)
        self.ledger.record_departure(job, status, self.now_s)

    def _decide(self, *, rescale: bool) -> Allocation:
        jobs: list[ClusterJob] = [job.view for job in self.active.values()]
        return self._policy.allocate(jobs, self._nodes, self.now_s, rescale=rescale)

    def _accept_jobs(self, allocation: Allocation) -> None:
        """Mark the jobs that are planned to end on time as accepted, and remove rejected jobs."""
        for name in allocation.rejected & self.active.keys():
            job = self.active[name]
            job.advance(self.now_s, self._friction)
            job.accepted = False
            self._remove_job(job, "rejected")
        accepted = self._undecided - allocation.late
        for name in accepted:
            self.active[name].accepted = True
        self._undecided -= accepted

    def _apply_allocation(self, allocation: Allocation) -> None:
        placements = allocation.placements
        changes = [
            (job, placement)
            for name, job in self.active.items()
            if (placement := placements.get(name)) is not job.view.held and placement != job.view.held
        ]
        if len(placements) > len(self.active) or any(name not in self.active for name in placements):
            raise ImpossibleAllocationError(f"{self._policy.name}: the allocation contains an unknown job")
        changed = {job.arrival.name for job, _ in changes}
        if not changes:
            self._begin_round(changed)
            return
        self.ledger.account(self.now_s, self.used)
        for job, _ in changes:
            if job.view.held is not None:
                self.used[job.view.held.node] -= job.view.held.devices
        for job, placement in changes:
            job.advance(self.now_s, self._friction)
            job.place(placement, self._occupy_devices(placement), self.now_s, self._friction)
            self.ledger.changes += 1
            self._schedule_event(job)
        self._begin_round(changed)

    def _begin_round(self, changed: set[str]) -> None:
        """Stop all running jobs for the duration of a scheduling round's overhead, if there is any."""
        overhead = self._friction.rounds
        if overhead is None or not (changed or self.now_s >= self._round_s + overhead.slot_s):
            return
        restart = overhead.restarts(self._rounds)
        for name, job in self.active.items():
            if job.view.held is not None:
                pool = self._by_name[job.view.held.node].devices
                job.advance(self.now_s, self._friction)
                cached = name not in changed
                job.pause(self.now_s, overhead.seconds(job.view.held.devices, pool, cached=cached, restart=restart))
                self._schedule_event(job)
        self._rounds += 1
        self._round_s = self.now_s

    def _occupy_devices(self, placement: Placement | None) -> Node | None:
        if placement is None:
            return None
        node = self._by_name.get(placement.node)
        if node is None:
            raise ImpossibleAllocationError(f"{self._policy.name}: unknown node {placement.node!r}")
        self.used[node.name] += placement.devices
        if placement.devices < 1 or self.used[node.name] > node.devices:
            raise ImpossibleAllocationError(
                f"{self._policy.name}: {self.used[node.name]} of {node.devices} devices of {node.name} are allocated"
            )
        return node

    def _schedule_event(self, job: RunningJob) -> None:
        """Schedule the next event of a job; earlier events become obsolete."""
        version = self._versions.get(job.seq, 0) + 1
        self._versions[job.seq] = version
        when_s = job.next_event_s()
        if when_s < inf:
            heappush(self._events, (max(when_s, self.now_s), job.seq, version, job))
