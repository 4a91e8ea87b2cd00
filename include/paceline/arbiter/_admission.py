"""Admission: whether a new job's deadline fits alongside all promised deadlines, and the earliest that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.allocate import ClusterJob, Node, Reservation
from paceline.allocate.on_time.capacity import Capacity
from paceline.allocate.on_time.curve import SpeedUpCurve
from paceline.allocate.on_time.promises import STRETCH
from paceline.errors import InvalidInputError

_PRECISION = 0.01  # of the time until the earliest deadline


@dataclass(frozen=True)
class Admission:
    """The result of an admission check.

    Parameters
    ----------
    fits:
        Whether the deadline of the job is feasible alongside all promised deadlines; always true without a deadline.
    earliest_s:
        The earliest deadline that can be promised now, on the clock of ``now_s``, to one percent; if the deadline of
        the job fits, one up to it that can be promised.
    alone_s:
        Time at which the job would end if it had the whole pool to itself.
    devices:
        If the deadline fits, the fewest devices that meet it within the capacity that promised jobs leave free. If the
        deadline fits only because promised jobs start later, the number of devices with the earliest end.
    """

    fits: bool
    earliest_s: float
    alone_s: float
    devices: int | None


def check_admission(
    job: ClusterJob,
    promised: Sequence[ClusterJob],
    node: Node,
    now_s: float,
    *,
    assumed: Sequence[ClusterJob] = (),
    reserved: Mapping[str, Reservation] | None = None,
    deadlines_s: Sequence[float] = (),
) -> Admission:
    """Return whether a new job's deadline fits alongside all promised deadlines, and the earliest that fits.

    As in ElasticFlow's admission, promised deadlines stay feasible. The check plans all jobs in deadline order, each
    on the fewest devices. It also plans the new job in the capacity that promised jobs leave free, and uses the better
    plan.

    Parameters
    ----------
    job:
        The new job.
    promised:
        Jobs with promised deadlines.
    node:
        The pool.
    now_s:
        The time in seconds.
    assumed:
        Jobs without a promise whose work is only assumed; the check ignores those that do not fit beside promised jobs.
    reserved:
        Reservations of the promised jobs in the last plan, by name. If the promised jobs do not all fit in deadline
        order, the new job gets only devices beside these reservations. Without ``reserved``, all promised jobs may then
        be slightly late, as in :class:`~paceline.allocate.OnTime`, and the check ignores jobs that still do not fit.
    deadlines_s:
        Deadlines of all jobs that the next plan contains. Devices change at these times, so the check must not assume
        finer changes than the plan.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> curve = {"device": Speeds.linear(4)}
    >>> promised = [ClusterJob("a", 0.0, 30.0, curve, deadline_s=10.0)]
    >>> new = ClusterJob("b", 0.0, 30.0, curve, deadline_s=12.0)
    >>> admission = check_admission(new, promised, Node("pool", 4), now_s=0.0)
    >>> admission.fits, admission.earliest_s, admission.alone_s
    (False, 15.0, 7.5)
    """
    checks = AdmissionChecks(promised, node, now_s, assumed=assumed, reserved=reserved, deadlines_s=deadlines_s)
    return checks.check(job)


class AdmissionChecks:
    """Admission checks of several jobs at the same time, for which the promised jobs are planned once.

    The parameters are those of :func:`check_admission`.
    """

    def __init__(
        self,
        promised: Sequence[ClusterJob],
        node: Node,
        now_s: float,
        *,
        assumed: Sequence[ClusterJob] = (),
        reserved: Mapping[str, Reservation] | None = None,
        deadlines_s: Sequence[float] = (),
    ) -> None:
        self._promised = {one.name: one for one in promised}
        self._node, self._now_s, self._assumed = node, now_s, assumed
        self._reserved, self._deadlines_s = dict(reserved or {}), deadlines_s
        self._plan: _PromisedPlan | None = None

    def promise(self, job: ClusterJob) -> None:
        """Count a job among the promised jobs in later checks."""
        if self._promised.get(job.name) != job:
            self._promised[job.name], self._plan = job, None

    def check(self, job: ClusterJob) -> Admission:
        """Return the result of :func:`check_admission`."""
        node, now_s = self._node, self._now_s
        speeds = job.speeds.get(node.kind)
        if speeds is None or speeds.counts[0] > node.all_devices:
            accepted = f"speeds for {node.kind} on at most {node.all_devices} devices"
            raise InvalidInputError(f"{job.name}.speeds", sorted(job.speeds), accepted)
        curve, work, change_s = SpeedUpCurve(speeds), job.work_left(now_s), job.change_s or 0.0
        plan = self._plan_for(job)
        ends_s = plan.capacity.ends_s(curve, work, change_s)
        last_s = min(ends_s.values())  # within the capacity that promised jobs leave free, so always feasible
        alone_s = min(Capacity(Node(node.name, node.all_devices), now_s, []).ends_s(curve, work, change_s).values())
        new = _PlannedJob.from_job(job, alone_s, node, now_s)

        def fits(deadline_s: float) -> bool:
            """Return whether all jobs fit in deadline order if the new job has this deadline."""
            if not plan.by_deadline:
                return last_s <= deadline_s
            jobs = [*plan.feasible, replace(new, deadline_s=deadline_s)]
            return _plan_by_deadline(jobs, node, now_s, self._deadlines_s, all_or_none=True)[0] != []

        wanted_s = job.deadline_s
        if wanted_s is not None and (last_s <= wanted_s or (alone_s <= wanted_s and fits(wanted_s))):
            earliest_s = min(last_s, wanted_s)
        else:
            earliest_s = _earliest_feasible_s(fits, max(alone_s, wanted_s or 0.0), last_s, now_s)
        deadline_s = earliest_s if wanted_s is None else wanted_s
        enough = (count for count, end_s in ends_s.items() if end_s <= max(deadline_s, last_s))
        return Admission(
            fits=earliest_s <= deadline_s,
            earliest_s=earliest_s,
            alone_s=alone_s,
            devices=next(enough) if earliest_s <= deadline_s else None,
        )

    def _plan_for(self, job: ClusterJob) -> _PromisedPlan:
        """Return the plan of the other promised jobs."""
        others = [one for one in self._promised.values() if one.name != job.name]
        # A plan without the new job's deadline has no such end of a span.
        if len(others) < len(self._promised) or (job.deadline_s and job.deadline_s not in self._deadlines_s):
            return self._plan_promised(others, job)
        if self._plan is None:
            self._plan = self._plan_promised(others, job)
        return self._plan

    def _plan_promised(self, earlier: Sequence[ClusterJob], job: ClusterJob) -> _PromisedPlan:
        node, now_s, deadlines_s = self._node, self._now_s, self._deadlines_s
        planned = _planned_jobs(earlier, node, now_s)
        feasible, capacity, stretch = _plan_promised_jobs(planned, node, now_s, deadlines_s)
        if not self._reserved or (not stretch and len(feasible) == len(earlier)):
            for one in _planned_jobs(self._assumed, node, now_s):
                fitted, room = _plan_by_deadline([*feasible, one], node, now_s, deadlines_s)
                if len(fitted) > len(feasible):
                    feasible, capacity = fitted, room
            return _PromisedPlan(feasible, capacity, by_deadline=True)
        last = {name: reservation for name, reservation in self._reserved.items() if name != job.name}
        not_last = [*(one for one in earlier if one.name not in last), *self._assumed]
        others = _planned_jobs(not_last, node, now_s)
        all_s = [*deadlines_s, *(one.deadline_s for one in (*earlier, *self._assumed, job) if one.deadline_s)]
        capacity = _capacity_beside(last.values(), others, node, now_s, all_s)
        return _PromisedPlan(feasible, capacity, by_deadline=False)


def promises_fit_as_well(
    promised: Sequence[ClusterJob], node: Node, other: Node, now_s: float, reserved: Mapping[str, Reservation]
) -> bool:
    """Return whether promised deadlines fit into ``node`` no worse than into ``other``, which has more free devices.

    ``reserved`` are the jobs' reservations in the last plan; the next plan keeps them if the jobs do not fit in
    deadline order.
    """
    reservations = [reserved[one.name] for one in promised if one.name in reserved]
    deadlines_s = [one.deadline_s for one in promised if one.deadline_s]

    def lateness(pool: Node) -> tuple[int, float]:
        """Return the number of jobs that do not fit, and the deadline extension of the others."""
        planned = _planned_jobs(promised, pool, now_s)
        feasible, _, stretch = _plan_promised_jobs(planned, pool, now_s)
        return len(planned) - len(feasible), stretch

    def is_overbooked(pool: Node) -> bool:
        return _capacity_beside(reservations, (), pool, now_s, deadlines_s).is_overbooked

    late = lateness(node)
    return late == (0, 0.0) or (late <= lateness(other) and is_overbooked(node) <= is_overbooked(other))


@dataclass(frozen=True)
class _PromisedPlan:
    """The promised jobs that fit, what they leave free, and whether they fit in deadline order."""

    feasible: Sequence[_PlannedJob]
    capacity: Capacity
    by_deadline: bool


@dataclass(frozen=True)
class _PlannedJob:
    curve: SpeedUpCurve
    work: float
    arrived_s: float
    deadline_s: float
    held: int
    change_s: float
    wait_s: float  # remaining seconds of the pause after the last change, as in OnTime

    @classmethod
    def from_job(cls, job: ClusterJob, deadline_s: float, node: Node, now_s: float) -> _PlannedJob:
        curve, held = SpeedUpCurve(job.speeds[node.kind]), job.held.devices if job.held else 0
        change_s = job.change_s or 0.0
        wait_s = max(job.since_s + change_s - now_s, 0.0) if held and not job.speed else 0.0
        return cls(curve, job.work_left(now_s), job.arrived_s, deadline_s, held, change_s, wait_s)

    def with_stretch(self, stretch: float) -> _PlannedJob:
        return replace(self, deadline_s=self.deadline_s + stretch * (self.deadline_s - self.arrived_s))


def _planned_jobs(jobs: Iterable[ClusterJob], node: Node, now_s: float) -> list[_PlannedJob]:
    """Return the jobs that have deadlines, in the form that planning needs."""
    return [_PlannedJob.from_job(one, one.deadline_s, node, now_s) for one in jobs if one.deadline_s]


def _plan_promised_jobs(
    promised: Sequence[_PlannedJob], node: Node, now_s: float, deadlines_s: Sequence[float] = ()
) -> tuple[list[_PlannedJob], Capacity, float]:
    """Plan promised jobs in deadline order, with the smallest deadline extension.

    Return the feasible jobs, the remaining capacity, and the extension as a fraction.
    """
    for stretch in (0.0, STRETCH):
        fitted, capacity = _plan_by_deadline([one.with_stretch(stretch) for one in promised], node, now_s, deadlines_s)
        if len(fitted) == len(promised):
            return fitted, capacity, stretch
    return *_plan_by_deadline(promised, node, now_s, deadlines_s), 0.0


def _plan_by_deadline(
    jobs: Iterable[_PlannedJob], node: Node, now_s: float, deadlines_s: Sequence[float], *, all_or_none: bool = False
) -> tuple[list[_PlannedJob], Capacity]:
    """Reserve capacity for the jobs in deadline order; return the jobs that fit, and the remaining capacity."""
    jobs = sorted(jobs, key=lambda one: one.deadline_s)
    capacity = Capacity(node, now_s, [*deadlines_s, *(one.deadline_s for one in jobs)])
    return _reserve_in_order(jobs, capacity, all_or_none=all_or_none), capacity


def _capacity_beside(
    reservations: Iterable[Reservation],
    others: Sequence[_PlannedJob],
    node: Node,
    now_s: float,
    deadlines_s: Sequence[float],
) -> Capacity:
    """Return the capacity left by the reservations of the last plan and by those of ``others`` that fit beside them."""
    trimmed = (one._replace(runs=tuple(run for run in one.runs if run[0] > now_s)) for one in reservations)
    left = [one for one in trimmed if one.runs]
    ends_s = [end_s for one in left for end_s, _ in one.runs[:-1]]  # as in a plan that keeps the reservations
    last_s = max(deadlines_s, default=now_s)
    ends_s += [one.ends_s for one in left if one.ends_s > last_s]  # of jobs that may be slightly late
    capacity = Capacity(node, now_s, deadlines_s, [*ends_s, *deadlines_s])
    for one in left:
        capacity.reserve(one)
    _reserve_in_order(others, capacity)
    return capacity


def _reserve_in_order(
    jobs: Sequence[_PlannedJob], capacity: Capacity, *, all_or_none: bool = False
) -> list[_PlannedJob]:
    """Reserve capacity for the jobs in the given order; return the jobs that fit, or none if one of them does not."""
    fitted = []
    for one in jobs:
        planned = capacity.fit(one.curve, one.work, one.deadline_s, one.held, one.change_s, wait_s=one.wait_s)
        if planned is not None:
            capacity.reserve(planned)
            fitted.append(one)
        elif all_or_none:
            return []
    return fitted


def _earliest_feasible_s(fits: Callable[[float], bool], from_s: float, to_s: float, now_s: float) -> float:
    """Return the earliest deadline after ``from_s`` that fits, found by bisection; ``to_s`` if no earlier one does."""
    if fits(from_s):
        return from_s
    feasible_s = to_s
    while feasible_s - from_s > _PRECISION * (feasible_s - now_s):
        middle_s = (from_s + feasible_s) / 2
        if fits(middle_s):
            feasible_s = middle_s
        else:
            from_s = middle_s
    return feasible_s
