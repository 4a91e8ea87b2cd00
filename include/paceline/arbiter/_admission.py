"""Admission: whether a new job's deadline fits alongside all promised deadlines, and the earliest that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.allocate import ClusterJob, Node
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


def check_admission(job: ClusterJob, promised: Sequence[ClusterJob], node: Node, now_s: float) -> Admission:
    """Return whether a new job's deadline fits alongside all promised deadlines, and the earliest that fits.

    As in ElasticFlow's admission, promised deadlines stay feasible. The check plans all jobs by deadline, each on the
    fewest devices. It also plans the new job in the capacity that promised jobs leave free, and uses the better plan.

    Parameters
    ----------
    job:
        The new job.
    promised:
        Jobs with promised deadlines. If some are infeasible, all promised jobs may be slightly late, as in
        :class:`~paceline.allocate.OnTime`. The check ignores jobs that are infeasible even then.
    node:
        The pool.
    now_s:
        The time in seconds.

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
    earlier = [
        _PlannedJob.from_job(one, one.deadline_s, node, now_s)
        for one in promised
        if one.deadline_s and one.name != job.name
    ]
    feasible, capacity, _ = _plan_promised_jobs(earlier, node, now_s)
    ends_s = capacity.ends_s(curve, work, change_s)
    last_s = min(ends_s.values())  # within the capacity that promised jobs leave free, so this end is always feasible
    alone_s = min(Capacity(Node(node.name, node.all_devices), now_s, []).ends_s(curve, work, change_s).values())
    new = _PlannedJob.from_job(job, alone_s, node, now_s)

    def fits(deadline_s: float) -> bool:
        """Return whether all jobs fit if the new job has this deadline."""
        all_jobs = sorted([*feasible, replace(new, deadline_s=deadline_s)], key=lambda one: one.deadline_s)
        room = Capacity(node, now_s, (one.deadline_s for one in all_jobs))
        return len(_reserve_in_order(all_jobs, room)) == len(all_jobs)

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


def promises_fit_as_well(promised: Sequence[ClusterJob], node: Node, other: Node, now_s: float) -> bool:
    """Return whether promised deadlines fit into ``node`` as well as into ``other``, which has more free devices."""

    def lateness(pool: Node) -> tuple[int, float]:
        """Return the number of jobs that do not fit, and the deadline extension of the others."""
        planned = [_PlannedJob.from_job(job, job.deadline_s, pool, now_s) for job in promised if job.deadline_s]
        feasible, _, stretch = _plan_promised_jobs(planned, pool, now_s)
        return len(planned) - len(feasible), stretch

    return lateness(node) <= lateness(other)


@dataclass(frozen=True)
class _PlannedJob:
    curve: SpeedUpCurve
    work: float
    arrived_s: float
    deadline_s: float
    held: int
    change_s: float

    @classmethod
    def from_job(cls, job: ClusterJob, deadline_s: float, node: Node, now_s: float) -> _PlannedJob:
        curve, held = SpeedUpCurve(job.speeds[node.kind]), job.held.devices if job.held else 0
        return cls(curve, job.work_left(now_s), job.arrived_s, deadline_s, held, job.change_s or 0.0)

    def with_stretch(self, stretch: float) -> _PlannedJob:
        return replace(self, deadline_s=self.deadline_s + stretch * (self.deadline_s - self.arrived_s))


def _plan_promised_jobs(
    promised: Sequence[_PlannedJob], node: Node, now_s: float
) -> tuple[list[_PlannedJob], Capacity, float]:
    """Plan promised jobs by deadline, with the smallest deadline extension.

    Return the feasible jobs, the remaining capacity, and the extension as a fraction.
    """
    promised = sorted(promised, key=lambda one: one.deadline_s)
    for stretch in (0.0, STRETCH):
        stretched = [one.with_stretch(stretch) for one in promised]
        capacity = Capacity(node, now_s, (one.deadline_s for one in stretched))
        if len(_reserve_in_order(stretched, capacity)) == len(promised):
            return stretched, capacity, stretch
    capacity = Capacity(node, now_s, (one.deadline_s for one in promised))
    return _reserve_in_order(promised, capacity), capacity, 0.0


def _reserve_in_order(jobs: Sequence[_PlannedJob], capacity: Capacity) -> list[_PlannedJob]:
    """Reserve capacity for the jobs in the given order; return the jobs that fit."""
    fitted = []
    for one in jobs:
        planned = capacity.fit(one.curve, one.work, one.deadline_s, one.held, one.change_s)
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
