"""ElasticFlow: admits the jobs whose deadlines it can guarantee, and uses spare devices where the return is highest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from paceline.allocate._model import Allocation, ClusterJob, Node, Placement, Policy
from paceline.allocate.elasticflow._filling import Demand, Pool, ScalingCurve, Share
from paceline.allocate.modelarts.greedy import single_pool
from paceline.contract import Reason, ReasonKind
from paceline.errors import InvalidInputError


@dataclass(slots=True)
class _Case:
    """A job in one decision: its demand, and the share that it gets; ``None`` if it has no guarantee."""

    job: ClusterJob
    demand: Demand
    share: Share | None = None
    extra: int = 0  # current devices of a job without a share

    @property
    def devices(self) -> int:
        """Current number of devices."""
        return self.extra if self.share is None else self.share.devices_now


class _Step(NamedTuple):
    """A larger allocation of a job; steps are compared by their added device seconds for each added device."""

    cost: float
    number: int  # index of the job
    granted: int  # number of steps that had been granted when this step was computed
    devices: int
    share: Share | None


class ElasticFlow(Policy):
    """Policy that guarantees the deadlines of the jobs that it admits, and rejects all other jobs with a deadline.

    The minimum satisfactory share of a job is the smallest limit on its number of devices with which it meets its
    deadline in the capacity left by jobs with earlier deadlines (progressive filling). A new job is admitted if all
    admitted jobs and the new job have such a share. Spare devices then go, step by step, to the job whose total device
    seconds grow least for each added device (marginal return); the rest of its share is filled again. Jobs without a
    deadline get spare devices only.

    Two additions make the guarantee hold while changes cost time. Shares include the pause after each change. And if
    the shares of all admitted jobs cannot be filled again, each job keeps its last share, in which a new job may fill
    gaps. Admitted jobs are then never late if their work and speeds are known exactly. Otherwise an admitted job that
    can no longer meet its deadline continues on spare devices.

    Parameters
    ----------
    slot_s:
        Length of a slot in seconds: a job keeps its devices until the end of its last slot, and two decisions are at
        least one slot apart. The published simulator uses 60 s for its large traces and 240 s for its testbed trace.
    change_s:
        Seconds without progress after each change of a job's number of devices; the shares include this time.

    References
    ----------
    Gu et al., ElasticFlow: An elastic serverless training platform for distributed deep learning, ASPLOS 2023,
    section 4. Job placement within the cluster (section 4.3) does not apply to a pool.

    Examples
    --------
    Jobs a and b need two devices and one device. Job c does not fit beside them; the fourth device is spare.

    >>> from paceline.allocate import Speeds
    >>> curve = {"device": Speeds.linear(4)}
    >>> works = {"a": 20.0, "b": 10.0, "c": 15.0}
    >>> jobs = [ClusterJob(name, 0.0, work, curve, deadline_s=10.0) for name, work in works.items()]
    >>> allocation = ElasticFlow(change_s=0.0).allocate(jobs, [Node("pool", 4)], now_s=0.0, rescale=True)
    >>> sorted(allocation.rejected), sum(placement.devices for placement in allocation.placements.values())
    (['c'], 4)
    """

    name = "elasticflow"
    shares_pool = False  # it rejects jobs

    def __init__(self, *, slot_s: float = 60.0, change_s: float = 30.0) -> None:
        if not 0 < slot_s < inf:
            raise InvalidInputError("slot_s", slot_s, "more than 0 seconds")
        if not 0 <= change_s < inf:
            raise InvalidInputError("change_s", change_s, "0 or more seconds")
        self._slot_s, self._change_s = slot_s, change_s
        self._shares: dict[str, Share] = {}  # of the admitted jobs, at the last decision
        self._admitted: set[str] = set()
        self._rejected: set[str] = set()
        self._changed_s: dict[str, float] = {}  # time of the last change of each job's devices
        self._decided_s = self._replan_s = -inf

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``; ``nodes`` has to be a single pool."""
        node = single_pool(nodes)
        names = {job.name for job in jobs}
        self._admitted &= names
        self._rejected &= names
        if now_s < min(self._decided_s + self._slot_s, self._replan_s):
            return self._unchanged(jobs)
        remaining = [job for job in jobs if job.name not in self._rejected]
        curves = [job.speeds_on(node.kind).derive(ScalingCurve) for job in remaining]
        cases = [self._case(job, curve, now_s) for job, curve in zip(remaining, curves, strict=True)]
        pool = self._guarantee(cases, node, now_s)
        self._distribute(cases, pool)
        return self._decision(cases, node, now_s)

    def _unchanged(self, jobs: Sequence[ClusterJob]) -> Allocation:
        """Return the current allocation until the next slot; jobs that arrived in this slot wait."""
        return Allocation(
            placements={job.name: job.held for job in jobs if job.held is not None},
            late=frozenset(job.name for job in jobs if job.deadline_s is not None and job.name not in self._admitted),
            rejected=frozenset(self._rejected),
            replan_s=min(self._decided_s + self._slot_s, self._replan_s),
        )

    def _case(self, job: ClusterJob, curve: ScalingCurve, now_s: float) -> _Case:
        held = job.held.devices if job.held else 0
        pause_left_s = max(0.0, self._changed_s.get(job.name, -inf) + self._change_s - now_s) if held else 0.0
        deadline_s = inf if job.deadline_s is None else job.deadline_s
        return _Case(job, Demand(curve, job.work_left(now_s), deadline_s, held, pause_left_s))

    def _guarantee(self, cases: Sequence[_Case], node: Node, now_s: float) -> Pool:
        """Fill the shares of all admitted jobs, admit or reject the new jobs, and return the pool with the shares."""
        due = [case for case in cases if case.job.deadline_s is not None]
        new = [case for case in due if case.job.name not in self._admitted]
        admitted = [case for case in due if case.job.name in self._admitted]

        def empty_pool() -> Pool:
            return Pool(node.devices, now_s, self._slot_s, self._change_s)

        pool = _fill(due, empty_pool())
        if pool is not None:
            self._admitted |= {case.job.name for case in new}
            return pool
        pool = (
            _fill(admitted, empty_pool())
            or self._keep(admitted, empty_pool())
            or _fill_possible(admitted, empty_pool())
        )
        for case in new:
            more = _fill([*admitted, case], empty_pool())
            if more is not None:
                pool = more
            else:
                case.share = pool.fill(case.demand)
                if case.share is None:
                    self._rejected.add(case.job.name)
                    continue
                pool.reserve(case.share)
            self._admitted.add(case.job.name)
            admitted.append(case)
        return pool

    def _keep(self, cases: Sequence[_Case], pool: Pool) -> Pool | None:
        """Give each job what is left of its last share; return ``None`` if this is too little for a job."""
        shares = []
        for case in cases:
            last = self._shares.get(case.job.name)
            if last is None or last.free_s <= pool.now_s:
                return None
            share = pool.check(case.demand, last.after(pool.now_s))
            if share is None:
                return None
            shares.append(share)
        for case, share in zip(cases, shares, strict=True):
            case.share = share
            pool.reserve(share)
        return None if pool.overbooked else pool

    def _distribute(self, cases: Sequence[_Case], pool: Pool) -> None:
        """Give spare devices, one step at a time, to the job whose device seconds grow least for each added device."""
        spare = pool.free_now
        cases = [case for case in cases if case.job.name not in self._rejected]
        steps = [step for number, case in enumerate(cases) if (step := self._step(case, pool, spare, number, 0))]
        heapify(steps)
        granted = 0
        while steps and spare > 0:
            step = heappop(steps)
            case = cases[step.number]
            if step.granted < granted:  # earlier steps have changed the pool
                again = self._step(case, pool, spare, step.number, granted)
                if again is not None:
                    heappush(steps, again)
                continue
            spare -= step.devices - case.devices
            granted += 1
            if step.share is None:
                case.extra = step.devices
            else:
                assert case.share is not None
                pool.release(case.share)
                pool.reserve(step.share)
                case.share = step.share
            following = self._step(case, pool, spare, step.number, granted)
            if following is not None:
                heappush(steps, following)

    def _step(self, case: _Case, pool: Pool, spare: int, number: int, granted: int) -> _Step | None:
        """Return the next larger allocation of a job; ``None`` if it does not fit or makes the job slower."""
        demand, count = case.demand, case.devices
        larger, faster = next((level for level in demand.curve.levels if level[0] > count), (0, 0.0))
        if not larger or larger - count > spare:
            return None
        speed = demand.curve.speed_of[count]
        if speed and self._seconds(demand, larger, faster) >= self._seconds(demand, count, speed):
            return None
        if case.share is None:
            before = count * demand.work / speed if speed else inf
            more = larger * demand.work / faster - before
            return _Step(more / (larger - count), number, granted, larger, None)
        pool.release(case.share)
        share = pool.fill(demand, first=(larger, pool.next_change_s))
        pool.reserve(case.share)
        if share is None:
            return None
        more = share.device_s - case.share.device_s if count else -inf
        return _Step(more / (larger - count), number, granted, larger, share)

    def _seconds(self, demand: Demand, count: int, speed: float) -> float:
        """Return the time that the remaining work takes on ``count`` devices from now on."""
        return demand.work / speed + (self._change_s if count != demand.held else demand.pause_left_s)

    def _decision(self, cases: Sequence[_Case], node: Node, now_s: float) -> Allocation:
        """Record the shares and return the allocation."""
        self._shares = {case.job.name: case.share for case in cases if case.share is not None}
        self._changed_s = {
            case.job.name: now_s if case.devices != case.demand.held else self._changed_s.get(case.job.name, -inf)
            for case in cases
        }
        self._decided_s = now_s
        self._replan_s = min((share.next_change_s for share in self._shares.values()), default=inf)
        return Allocation(
            placements={case.job.name: Placement(node.name, case.devices) for case in cases if case.devices},
            reasons={case.job.name: self._reason(case) for case in cases},
            late=frozenset(case.job.name for case in cases if case.job.name in self._admitted and case.share is None),
            rejected=frozenset(self._rejected),
            replan_s=self._replan_s,
        )

    def _reason(self, case: _Case) -> Reason:
        if case.job.name in self._rejected:
            return Reason.of(ReasonKind.REJECTED)
        state = "runs on" if case.devices else "waits for"
        if case.job.deadline_s is None:
            return Reason.of(ReasonKind.NO_DEADLINE, state=state)
        if case.share is None:
            return Reason.of(ReasonKind.OVERRUN, state=state)
        return Reason.of(ReasonKind.ADMITTED if case.devices else ReasonKind.CAN_WAIT)


def _fill(cases: Sequence[_Case], pool: Pool) -> Pool | None:
    """Fill the jobs' shares in deadline order and return the pool; ``None`` (keeping the shares) if one cannot fit."""
    shares = []
    for case in sorted(cases, key=_by_deadline):
        share = pool.fill(case.demand)
        if share is None:
            return None
        pool.reserve(share)
        shares.append((case, share))
    for case, share in shares:
        case.share = share
    return pool


def _fill_possible(cases: Sequence[_Case], pool: Pool) -> Pool:
    """Fill the jobs' shares in deadline order, and skip jobs that cannot meet their deadlines."""
    for case in sorted(cases, key=_by_deadline):
        case.share = pool.fill(case.demand)
        if case.share is not None:
            pool.reserve(case.share)
    return pool


def _by_deadline(case: _Case) -> tuple[float, float]:
    return case.demand.deadline_s, case.job.arrived_s
