"""On-time policy: as many jobs on time as possible, each on the fewest devices; spare devices speed up jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

from paceline.allocate._model import Allocation, ClusterJob, Node, Placement
from paceline.allocate.on_time._bound import DeadlineDemand, moore_hodgson
from paceline.allocate.on_time.capacity import Capacity, Reservation, SpeedUpCurve
from paceline.errors import InvalidInputError

_MAX_SWAP_JOBS = 1000  # with more jobs, replacing larger jobs by smaller jobs takes too long
_SWAP_TRIES = 4  # number of the largest planned jobs that are candidates for replacement
# Fractions of the pool that chosen jobs may fill. Some devices stay idle because no job can use that number of devices.
_FILL_FRACTIONS = (0.8, 0.6)
_MIN_BENEFIT = 2.0  # minimum time saved by a change, relative to its cost
# Deadline extensions to try before dropping a promised job, as fractions of the time from arrival to deadline.
STRETCHES = (0.01, 0.02, 0.05, 0.1)


@dataclass(slots=True)
class _JobCase:
    """A job, the data for its planning, and its reservation."""

    job: ClusterJob
    curve: SpeedUpCurve
    work_left: float
    held: int
    needed: float  # fewest device seconds; infinite if the deadline is infeasible
    planned: Reservation | None = None
    stretch: float = 0.0

    @property
    def deadline_s(self) -> float:
        """Deadline plus stretch; infinite if the job has no deadline."""
        deadline_s = self.job.deadline_s
        return inf if deadline_s is None else deadline_s + self.stretch * (deadline_s - self.job.arrived_s)

    def fit(self, capacity: Capacity, change_s: float, min_devices: int = 0) -> Reservation | None:
        """Return the smallest reservation that meets the deadline."""
        return capacity.fit(self.curve, self.work_left, self.deadline_s, self.held, change_s, min_devices)

    def response_ratio(self, now_s: float) -> float:
        """Return the time since the arrival relative to the time of the remaining work on the fewest devices.

        It prefers short jobs, but grows while a job waits, so that no job starves (highest response ratio next).
        """
        shortest_s = self.work_left / self.curve.options[0][1]
        return (now_s - self.job.arrived_s) / shortest_s if shortest_s > 0 else inf

    def per_weight(self, device_s: float) -> float:
        """Return ``device_s`` per weight of the job; infinite for a job without weight."""
        return device_s / self.job.weight if self.job.weight > 0 else inf


class OnTime:
    """Policy that shares one pool elastically among jobs with deadlines.

    The policy plans jobs by deadline. Each job gets the fewest devices that meet its deadline on the capacity that
    earlier jobs leave: with sublinear speed-up, few devices for a long time use less capacity than many for a short
    time. If a job does not fit but is smaller than the largest planned job, it replaces that job. If many jobs do
    not fit, the policy selects small jobs first, as in the Moore-Hodgson method
    (:func:`~paceline.allocate.most_on_time` is the upper bound). All other jobs with a deadline are late. Late
    jobs, and jobs without a deadline, run on the other devices, the one with the highest response ratio first.
    Spare devices go to the jobs that gain the most speed, if the gain is worth a change.

    Parameters
    ----------
    change_s:
        Seconds without progress when the allocation of a job changes.
    keep_promises:
        Whether a job once planned on time has precedence over later jobs; in total, fewer jobs are then on time. If
        promised jobs have more work than estimated, each may be late by up to a tenth of the time from its arrival to
        its deadline before the policy drops a promised job.

    Examples
    --------
    Two jobs fit, on three devices and on one device; the third job does not.

    >>> from paceline.allocate import Speeds
    >>> curve = {"device": Speeds.linear(4)}
    >>> works = {"a": 30.0, "b": 10.0, "c": 35.0}
    >>> jobs = [ClusterJob(name, 0.0, work, curve, deadline_s=10.0) for name, work in works.items()]
    >>> allocation = OnTime(change_s=0.0).allocate(jobs, [Node("pool", 4)], now_s=0.0, rescale=True)
    >>> {name: placement.devices for name, placement in allocation.placements.items()}, sorted(allocation.late)
    ({'a': 3, 'b': 1}, ['c'])
    """

    name = "on_time"

    def __init__(self, change_s: float = 30.0, *, keep_promises: bool = False) -> None:
        if not 0 <= change_s < inf:
            raise InvalidInputError("change_s", change_s, "0 or more seconds")
        self._change_s = change_s
        self._keep_promises = keep_promises
        self._planned: dict[str, int] = {}  # maximum devices of each on-time job of the last plan, in planning order
        self._seen: set[str] = set()  # all jobs of the last plan
        self._curves: dict[int, tuple[object, SpeedUpCurve]] = {}

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``; ``nodes`` has to be a single pool."""
        if len(nodes) != 1:
            raise InvalidInputError("nodes", [node.name for node in nodes], "one pool of identical devices")
        node = nodes[0]
        known, self._curves = self._curves, {}
        cases = [self._job_case(job, node, now_s, known) for job in jobs]
        planned, late = self._plan(cases, node, now_s)
        devices_of = self._distribute(planned, late, node.devices, now_s)
        return Allocation(
            placements={name: Placement(node.name, count) for name, count in devices_of.items() if count},
            reasons={case.job.name: self._reason(case, devices_of.get(case.job.name, 0), now_s) for case in cases},
            late=frozenset(case.job.name for case in late if case.job.deadline_s is not None),
            replan_s=min((case.planned.changes_s for case in planned if case.planned), default=inf)
            if self._keep_promises
            else inf,
        )

    def _job_case(
        self, job: ClusterJob, node: Node, now_s: float, curves: Mapping[int, tuple[object, SpeedUpCurve]]
    ) -> _JobCase:
        speeds = job.speeds.get(node.kind)
        if speeds is None:
            raise InvalidInputError(f"{job.name}.speeds", sorted(job.speeds), f"the pool's device kind, {node.kind}")
        known = curves.get(id(speeds)) or self._curves.get(id(speeds))
        if known is None or known[0] is not speeds:
            known = (speeds, SpeedUpCurve(speeds))
        self._curves[id(speeds)] = known
        left, held = job.work_left(now_s), job.held.devices if job.held else 0
        needed = inf if job.deadline_s is None else known[1].min_device_s(left, job.deadline_s - now_s)
        return _JobCase(job, known[1], left, held, needed)

    def _plan(self, cases: Sequence[_JobCase], node: Node, now_s: float) -> tuple[list[_JobCase], list[_JobCase]]:
        """Return the jobs that are on time, and all other jobs."""
        due = [case for case in cases if case.job.deadline_s is not None]
        due.sort(key=lambda case: (case.deadline_s, case.job.arrived_s))
        if self._keep_promises:  # also those of an earlier arbiter
            earlier = {case.job.name: 0 for case in due if case.job.promised and case.job.name not in self._seen}
            self._planned = {**earlier, **self._planned}
        self._seen = {case.job.name for case in cases}
        feasible = [index for index, case in enumerate(due) if case.needed < inf]
        rank = {name: number for number, name in enumerate(self._planned)}
        last_order = sorted(feasible, key=lambda index: rank.get(due[index].job.name, len(rank)))
        # With promises, do not swap jobs: a later decision could not reproduce the plan and would break promises.
        plan = self._reserve_in_order(
            due, feasible, node, now_s, swap=len(due) <= _MAX_SWAP_JOBS and not self._keep_promises
        )
        if len(plan) < len(feasible):
            needs = [DeadlineDemand(due[index].deadline_s - now_s, due[index].needed, index) for index in feasible]
            others = [sorted(moore_hodgson(needs, node.devices * share)) for share in _FILL_FRACTIONS]
            # The last plan is still feasible, so the new plan must not be worse. Each job keeps its number of devices,
            # because the plan reserves these devices for other jobs when the job ends.
            repeated = self._reserve_in_order(due, last_order, node, now_s, min_devices=self._planned)
            plans = [plan, repeated, *(self._reserve_in_order(due, chosen, node, now_s) for chosen in others)]
            if self._keep_promises:
                promised = {index for index in repeated if due[index].job.name in self._planned}
                plans = [plan for plan in plans if promised <= plan.keys()]
            plan = max(plans, key=lambda plan: sum(due[index].job.weight for index in plan))
        if self._keep_promises:
            plan = self._stretch_deadlines(due, plan, last_order, node, now_s)
        for index, reservation in plan.items():
            due[index].planned = reservation
        planned = [due[index] for index in sorted(plan)]
        self._planned = {due[index].job.name: reservation.max_devices for index, reservation in plan.items()}
        return planned, [case for case in cases if case.planned is None]

    def _stretch_deadlines(
        self, due: Sequence[_JobCase], plan: dict[int, Reservation], last_order: Sequence[int], node: Node, now_s: float
    ) -> dict[int, Reservation]:
        """Return a plan for all promised jobs, with the smallest deadline extension; ``plan`` if there is none."""
        promised = {index for index, case in enumerate(due) if case.job.name in self._planned}
        if promised <= plan.keys():
            return plan
        for stretch in STRETCHES:
            for index in promised:
                due[index].stretch = stretch
            stretched = self._reserve_in_order(due, [*sorted(promised), *last_order], node, now_s)
            if promised <= stretched.keys():
                return stretched
        for index in promised:
            due[index].stretch = 0.0
        return plan

    def _reserve_in_order(
        self,
        due: Sequence[_JobCase],
        chosen: Iterable[int],
        node: Node,
        now_s: float,
        *,
        swap: bool = False,
        min_devices: Mapping[str, int] | None = None,
    ) -> dict[int, Reservation]:
        """Reserve devices for the ``chosen`` indices of ``due``, in this order; skip jobs that do not fit."""
        capacity = Capacity(node.devices, now_s, (case.deadline_s for case in due))
        plan: dict[int, Reservation] = {}
        largest: list[tuple[float, int]] = []  # heap of planned jobs, the most device seconds per weight first
        for index in dict.fromkeys(chosen):
            case = due[index]
            reservation = case.fit(capacity, self._change_s, (min_devices or {}).get(case.job.name, 0))
            if reservation is None and swap:
                reservation = self._replace_larger_job(case, due, plan, largest, capacity)
            if reservation is not None:
                capacity.reserve(reservation)
                plan[index] = reservation
                heappush(largest, (-case.per_weight(reservation.device_s), index))
        return plan

    def _replace_larger_job(
        self,
        case: _JobCase,
        due: Sequence[_JobCase],
        plan: dict[int, Reservation],
        largest: list[tuple[float, int]],
        capacity: Capacity,
    ) -> Reservation | None:
        """Drop a larger job from the plan if this makes room for ``case``; return the reservation of ``case``."""
        needed, reservation = case.per_weight(case.needed), None
        tried: list[tuple[float, int]] = []
        while reservation is None and len(tried) < _SWAP_TRIES and largest and -largest[0][0] > needed:
            entry = heappop(largest)
            capacity.release(plan[entry[1]])
            reservation = case.fit(capacity, self._change_s)
            if reservation is not None and case.per_weight(reservation.device_s) < -entry[0]:
                del plan[entry[1]]
            else:
                reservation = None
                capacity.reserve(plan[entry[1]])
                tried.append(entry)
        for entry in tried:
            heappush(largest, entry)
        return reservation

    def _distribute(
        self, planned: Sequence[_JobCase], late: Sequence[_JobCase], devices: int, now_s: float
    ) -> dict[str, int]:
        """Return the current devices of each job: its reservation, and a share of the spare devices."""
        devices_of = {case.job.name: case.planned.devices_now for case in planned if case.planned is not None}
        spare = devices - sum(devices_of.values())
        for case in planned:  # shrinking a job that will grow again soon costs two changes
            more = case.held - devices_of[case.job.name]
            if 0 < more <= spare:
                devices_of[case.job.name] += more
                spare -= more
        for case in sorted(late, key=lambda case: case.response_ratio(now_s), reverse=True):
            smallest = case.curve.options[0][0]
            count = case.held if smallest <= case.held <= spare else smallest
            if count <= spare:
                devices_of[case.job.name] = count
                spare -= count
        return self._distribute_spare(devices_of, [*planned, *late], spare)

    def _distribute_spare(self, devices_of: dict[str, int], cases: Sequence[_JobCase], spare: int) -> dict[str, int]:
        """Add spare devices to the jobs that gain the most speed per device."""
        gains = [gain for index, case in enumerate(cases) if (gain := self._gain(case, index, devices_of)) is not None]
        heapify(gains)
        while gains and spare > 0:
            _, index, count = heappop(gains)
            case = cases[index]
            more = count - devices_of.get(case.job.name, 0)
            if more <= spare:
                devices_of[case.job.name] = count
                spare -= more
                gain = self._gain(case, index, devices_of)
                if gain is not None:
                    heappush(gains, gain)
        return devices_of

    def _gain(self, case: _JobCase, index: int, devices_of: dict[str, int]) -> tuple[float, int, int] | None:
        """Return a heap entry: minus the relative gain per added device, the index, and the next count.

        Return ``None`` if the job should not grow.
        """
        count = devices_of.get(case.job.name, 0)
        if count == 0 and case.job.name not in devices_of and case.planned is None:
            return None  # a late job without devices
        larger = case.curve.next_count(count)
        if larger is None:
            return None
        speed, faster = case.curve.speed_of[count], case.curve.speed_of[larger]
        saved_s = case.work_left / speed - case.work_left / faster if speed else inf
        if saved_s < _MIN_BENEFIT * self._change_s and larger > case.held:
            return None
        smallest, slowest = case.curve.options[0]
        return -(faster - speed) / (larger - count) / (slowest / smallest), index, larger

    def _reason(self, case: _JobCase, count: int, now_s: float) -> str:
        if case.planned is not None:
            if count > case.planned.devices_now:
                return "more devices than its deadline requires, because spare devices are available"
            if count and case.stretch:
                return f"smallest allocation with which no promised job is more than {100 * case.stretch:.0f} % late"
            if count:
                return "smallest allocation that meets its deadline"
            return "can start later and still meet its deadline"
        if case.job.deadline_s is None:
            return "no deadline: runs on spare devices" if count else "no deadline: waits for spare devices"
        alone_s = now_s + case.work_left / case.curve.options[-1][1]
        condition = "even alone in the pool" if alone_s > case.deadline_s else "because of other jobs"
        spare = "runs on spare devices" if count else "waits for spare devices"
        return f"misses its deadline {condition}; {spare}"
