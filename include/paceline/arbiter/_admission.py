"""Admission: whether a new job's deadline fits alongside all promised deadlines, and the earliest that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.allocate import ClusterJob, Node, Reservation
from paceline.allocate.on_time.capacity import Capacity
from paceline.allocate.on_time.curve import SpeedUpCurve
from paceline.allocate.on_time.promises import STRETCH
from paceline.errors import InvalidInputError

_BISECTIONS = 12  # bisection steps in the search for the earliest deadline


@dataclass(frozen=True)
class Admission:
    """The result of an admission check.

    Parameters
    ----------
    fits:
        Whether the deadline of the job is feasible alongside all promised deadlines; always true without a deadline.
    earliest_s:
        The earliest deadline that can be promised now, on the clock of ``now_s``.
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
    speeds = job.speeds.get(node.kind)
    if speeds is None or speeds.counts[0] > node.all_devices:
        raise InvalidInputError(
            f"{job.name}.speeds", sorted(job.speeds), f"speeds for {node.kind} on at most {node.all_devices} devices"
        )
    curve, work, change_s = SpeedUpCurve(speeds), job.work_left(now_s), job.change_s or 0.0
    last = {name: reservation for name, reservation in (reserved or {}).items() if name != job.name}
    earlier = [one for one in promised if one.name != job.name]
    feasible, capacity, stretch = _plan_promised_jobs(_planned_jobs(earlier, node, now_s), node, now_s, deadlines_s)
    by_deadline = not reserved or (not stretch and len(feasible) == len(earlier))
    if by_deadline:
        for one in _planned_jobs(assumed, node, now_s):
            fitted, room = _plan_by_deadline([*feasible, one], node, now_s, deadlines_s)
            if len(fitted) > len(feasible):
                feasible, capacity = fitted, room
    else:
        others = _planned_jobs([*(one for one in earlier if one.name not in last), *assumed], node, now_s)
        all_s = [*deadlines_s, *(one.deadline_s for one in (*earlier, *assumed, job) if one.deadline_s)]
        capacity = _capacity_beside(last.values(), others, node, now_s, all_s)
    ends_s = capacity.ends_s(curve, work, change_s)
    last_s = min(ends_s.values())  # within the capacity that promised jobs leave free, so this end is always feasible
    alone_s = min(Capacity(Node(node.name, node.all_devices), now_s, []).ends_s(curve, work, change_s).values())
    new = _PlannedJob.from_job(job, alone_s, node, now_s)

    def fits(deadline_s: float) -> bool:
        """Return whether all jobs fit in deadline order if the new job has this deadline."""
        if not by_deadline:
            return last_s <= deadline_s
        jobs = [*feasible, replace(new, deadline_s=deadline_s)]
        return len(_plan_by_deadline(jobs, node, now_s, deadlines_s)[0]) > len(feasible)

    earliest_s = _earliest_feasible_s(fits, alone_s, last_s)
    deadline_s = earliest_s if job.deadline_s is None else job.deadline_s
    if last_s <= deadline_s or fits(deadline_s):
        earliest_s = min(earliest_s, deadline_s)
    elif earliest_s <= deadline_s:  # feasibility is not monotonic in the deadline
        earliest_s = last_s
    enough = (count for count, end_s in ends_s.items() if end_s <= max(deadline_s, last_s))
    return Admission(
        fits=earliest_s <= deadline_s,
        earliest_s=earliest_s,
        alone_s=alone_s,
        devices=next(enough) if earliest_s <= deadline_s else None,
    )


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
    jobs: Iterable[_PlannedJob], node: Node, now_s: float, deadlines_s: Sequence[float]
) -> tuple[list[_PlannedJob], Capacity]:
    """Reserve capacity for the jobs in deadline order; return the jobs that fit, and the remaining capacity."""
    jobs = sorted(jobs, key=lambda one: one.deadline_s)
    capacity = Capacity(node, now_s, [*deadlines_s, *(one.deadline_s for one in jobs)])
    return _reserve_in_order(jobs, capacity), capacity


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


def _reserve_in_order(jobs: Sequence[_PlannedJob], capacity: Capacity) -> list[_PlannedJob]:
    """Reserve capacity for the jobs in the given order; return the jobs that fit."""
    fitted = []
    for one in jobs:
        planned = capacity.fit(one.curve, one.work, one.deadline_s, one.held, one.change_s, wait_s=one.wait_s)
        if planned is not None:
            capacity.reserve(planned)
            fitted.append(one)
    return fitted


def _earliest_feasible_s(fits: Callable[[float], bool], from_s: float, to_s: float) -> float:
    """Return the earliest deadline that fits, found by bisection; ``to_s`` if no earlier deadline fits."""
    if fits(from_s):
        return from_s
    feasible_s = to_s
    for _ in range(_BISECTIONS):
        middle_s = (from_s + feasible_s) / 2
        if fits(middle_s):
            feasible_s = middle_s
        else:
            from_s = middle_s
    return feasible_s
