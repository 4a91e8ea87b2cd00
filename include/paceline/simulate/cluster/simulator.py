"""A cluster, simulated from event to event: exact, and the same to the last digit each time.

Between two events every job trains at one speed, so that nothing is stepped through and nothing rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import floor, inf

from paceline.allocate import Allocation, ClusterJob, ImpossibleAllocationError, Node, Placement, Policy
from paceline.errors import InvalidInputError
from paceline.simulate.cluster.result import JobOutcome, Ledger, SimulationResult
from paceline.simulate.cluster.running import Running
from paceline.simulate.cluster.workload import Arrival, Friction

_DONE = 1e-9  # of its work: less is left only by rounding


class Simulation:
    """A policy, a cluster and what arrives there.

    Parameters
    ----------
    arrivals:
        The jobs, by the time at which they come; read one by one, so they may be generated.
    nodes:
        The cluster.
    policy:
        Who decides: when jobs come, when they end, and at each regular moment.
    friction:
        What changes cost.
    period_s:
        Seconds between two regular moments, at which jobs change their sizes; ``None``: every moment is one.
    pue:
        Power usage effectiveness: what the data centre adds to the cost of its nodes, as a factor.
    on_event:
        Called after each event, with this simulation: to watch, or to check.

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
            raise InvalidInputError("nodes", [node.name for node in nodes], "at least one, each with a name of its own")
        self.now_s = 0.0
        self.active: dict[str, Running] = {}
        self.used = {node.name: 0 for node in nodes}
        self.ledger = Ledger(nodes, pue, on_outcome)
        self._nodes = list(nodes)
        self._by_name = {node.name: node for node in nodes}
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._policy = policy
        self._friction = friction or Friction()
        self._period_s = period_s
        self._on_event = on_event
        self._due: list[tuple[float, int, int, Running]] = []  # time, order of arrival, version, job
        self._versions: dict[int, int] = {}
        self._cancels: list[tuple[float, int, Running]] = []
        self._moment_s = inf  # the next regular one
        self._again_s = inf  # when the policy wants to be asked
        self._next = self._read()
        self._came = 0

    def run(self, progress: Callable[[int], object] | None = None) -> SimulationResult:
        """Simulate until all have left; ``progress`` is told how many of them just have."""
        while (now_s := self._next_s()) < inf:
            self.now_s = now_s
            left_before = self.ledger.left
            changed = self._let_happen()
            regular = now_s >= self._moment_s
            if self.active and (changed or regular or now_s >= self._again_s):
                allocation = self._ask(rescale=regular or self._period_s is None)
                self._again_s = allocation.again_s
                self._apply(allocation)
            if self._period_s is not None and (regular or self._moment_s == inf):
                next_s = (floor(now_s / self._period_s + 1e-9) + 1) * self._period_s
                self._moment_s = next_s if self.active else inf
            self.ledger.look(now_s, self.active, self.used)
            if self._on_event is not None:
                self._on_event(self)
            if progress is not None and self.ledger.left > left_before:
                progress(self.ledger.left - left_before)
            if self._stuck():
                waiting = sorted(self.active)
                raise ImpossibleAllocationError(
                    f"{self._policy.name}: nothing runs, nothing will come, and {len(waiting)} wait: "
                    + ", ".join(waiting[:3])
                )
        return self.ledger.result(self._policy.name, self.now_s)

    def _next_s(self) -> float:
        while self._due and self._due[0][2] != self._versions.get(self._due[0][1]):
            heappop(self._due)
        while self._cancels and self._cancels[0][2].arrival.name not in self.active:
            heappop(self._cancels)
        return min(
            self._next.arrives_s if self._next else inf,
            self._due[0][0] if self._due else inf,
            self._cancels[0][0] if self._cancels else inf,
            self._moment_s,
            self._again_s if self.active else inf,
        )

    def _stuck(self) -> bool:
        return bool(self.active) and self._next is None and not self._due and not any(self.used.values())

    def _let_happen(self) -> bool:
        """All that is due now; returns whether it gives the policy something to decide."""
        changed = False
        while self._due and self._due[0][0] <= self.now_s:
            _, seq, version, job = heappop(self._due)
            if self._versions.get(seq) == version:
                changed |= self._progress(job)
        while self._cancels and self._cancels[0][0] <= self.now_s:
            job = heappop(self._cancels)[2]
            if self.active.get(job.arrival.name) is job:
                job.advance(self.now_s, self._friction)
                self._leave(job, "cancelled")
                changed = True
        while self._next is not None and self._next.arrives_s <= self.now_s:
            self._arrive(self._next)
            self._next = self._read()
            changed = True
        return changed

    def _read(self) -> Arrival | None:
        arrival = next(self._arrivals, None)
        if arrival is not None and arrival.arrives_s < self.now_s:
            raise InvalidInputError(
                f"{arrival.name}.arrives_s", arrival.arrives_s, "jobs in the order in which they come"
            )
        return arrival

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.name in self.active:
            raise InvalidInputError("name", arrival.name, "a name that no other job has")
        if not any(
            node.kind in arrival.speeds and arrival.speeds[node.kind].counts[0] <= node.devices for node in self._nodes
        ):
            raise InvalidInputError(f"{arrival.name}.speeds", dict(arrival.speeds), "a node that it can run on")
        self._came += 1
        job = Running(arrival, self._came)
        self.active[arrival.name] = job
        if arrival.cancelled_after_s < inf:
            heappush(self._cancels, (arrival.arrives_s + arrival.cancelled_after_s, job.seq, job))

    def _progress(self, job: Running) -> bool:
        job.advance(self.now_s, self._friction)
        if job.left <= _DONE * job.arrival.work:
            self._leave(job, "done")
            return True
        if job.trained_s >= job.arrival.breaks_after_s * (1 - _DONE):
            self._leave(job, "broken")
            return True
        if job.settles_s <= self.now_s:
            job.settle()
        else:
            job.show()  # rounding brought us here a moment too soon
        self._plan(job)
        return False

    def _leave(self, job: Running, how: str) -> None:
        if job.shown.held is not None:
            self.ledger.account(self.now_s, self.used)
            self.used[job.shown.held.node] -= job.shown.held.devices
        del self.active[job.arrival.name]
        self._versions.pop(job.seq, None)
        self.ledger.close(job, how, self.now_s)

    def _ask(self, *, rescale: bool) -> Allocation:
        jobs: list[ClusterJob] = [job.shown for job in self.active.values()]
        return self._policy.allocate(jobs, self._nodes, self.now_s, rescale=rescale)

    def _apply(self, allocation: Allocation) -> None:
        given = allocation.placements
        changes = [(job, given.get(name)) for name, job in self.active.items() if job.shown.held != given.get(name)]
        if len(given) > len(self.active) or any(name not in self.active for name in given):
            raise ImpossibleAllocationError(f"{self._policy.name}: it named a job that neither waits nor runs")
        if not changes:
            return
        self.ledger.account(self.now_s, self.used)
        for job, _ in changes:
            if job.shown.held is not None:
                self.used[job.shown.held.node] -= job.shown.held.devices
        for job, placement in changes:
            job.advance(self.now_s, self._friction)
            job.place(placement, self._take(placement), self.now_s, self._friction)
            self.ledger.changes += 1
            self._plan(job)

    def _take(self, placement: Placement | None) -> Node | None:
        if placement is None:
            return None
        node = self._by_name.get(placement.node)
        if node is None:
            raise ImpossibleAllocationError(f"{self._policy.name}: there is no node {placement.node!r}")
        self.used[node.name] += placement.devices
        if placement.devices < 1 or self.used[node.name] > node.devices:
            raise ImpossibleAllocationError(
                f"{self._policy.name}: {self.used[node.name]} of {node.devices} devices of {node.name} are given out"
            )
        return node

    def _plan(self, job: Running) -> None:
        """Note when the next thing happens to a job; what was noted before does not count any more."""
        version = self._versions.get(job.seq, 0) + 1
        self._versions[job.seq] = version
        when_s = job.next_s()
        if when_s < inf:
            heappush(self._due, (max(when_s, self.now_s), job.seq, version, job))
