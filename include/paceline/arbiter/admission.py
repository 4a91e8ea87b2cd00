"""Admission: whether the deadline of a new job fits beside those already promised, and the earliest that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.allocate import ClusterJob, Node
from paceline.allocate.on_time.capacity import Capacity, SpeedUpCurve
from paceline.allocate.on_time.policy import STRETCHES
from paceline.errors import InvalidInputError

_BISECTIONS = 12  # of the interval that contains the earliest deadline


@dataclass(frozen=True)
class Admission:
    """The result of an admission check.

    Parameters
    ----------
    fits:
        Whether the deadline of the job is feasible beside all promised ones; always true without a deadline.
    earliest_s:
        The earliest deadline that can be promised now, on the clock of ``now_s``.
    alone_s:
        End of the job with the whole pool to itself.
    devices:
        If the deadline fits, the fewest devices that meet it on the capacity that promised jobs leave. If it fits only
        because promised jobs start later, the number with the earliest end.
    """

    fits: bool
    earliest_s: float
    alone_s: float
    devices: int | None


def check_admission(
    job: ClusterJob, promised: Sequence[ClusterJob], node: Node, now_s: float, change_s: float = 0.0
) -> Admission:
    """Return whether a job fits beside those with promised deadlines, and the earliest deadline that fits.

    As in ElasticFlow's admission, promised deadlines stay feasible. The check plans all jobs by deadline, each on the
    fewest devices; or it plans the new job on the capacity that promised jobs leave, if that is better.

    Parameters
    ----------
    job:
        The new job.
    promised:
        Jobs with promised deadlines. If not all of them are feasible, all may be slightly late, as in
        :class:`~paceline.allocate.OnTime`; jobs that are infeasible even then take no devices here.
    node:
        The pool.
    now_s:
        The time in seconds.
    change_s:
        Seconds without progress when a job starts.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> curve = {"device": Speeds.linear(4)}
    >>> promised = [ClusterJob("a", 0.0, 30.0, curve, deadline_s=10.0)]
    >>> new = ClusterJob("b", 0.0, 30.0, curve, deadline_s=12.0)
    >>> answer = check_admission(new, promised, Node("pool", 4), now_s=0.0)
    >>> answer.fits, answer.earliest_s, answer.alone_s
    (False, 15.0, 7.5)
    """
    speeds = job.speeds.get(node.kind)
    if speeds is None or speeds.counts[0] > node.devices:
        raise InvalidInputError(
            f"{job.name}.speeds", sorted(job.speeds), f"speeds for {node.kind}, from at most {node.devices} devices"
        )
    curve, work = SpeedUpCurve(speeds), job.work_left(now_s)
    held = [
        _Promised.of(one, one.deadline_s, node, now_s) for one in promised if one.deadline_s and one.name != job.name
    ]
    held.sort(key=lambda one: one.deadline_s)
    feasible, capacity = _feasible(held, node, now_s, change_s)
    ends_s = capacity.ends_s(curve, work, change_s)
    last_s = min(ends_s.values())  # on the capacity that promised jobs leave, so it can always be promised
    alone_s = min(Capacity(node.devices, now_s, []).ends_s(curve, work, change_s).values())
    new = _Promised.of(job, alone_s, node, now_s)

    def fits(deadline_s: float) -> bool:
        """Return whether planning all jobs by deadline succeeds."""
        every = sorted([*feasible, replace(new, deadline_s=deadline_s)], key=lambda one: one.deadline_s)
        room = Capacity(node.devices, now_s, (one.deadline_s for one in every))
        return len(_fit(every, room, change_s)) == len(every)

    earliest_s = _earliest(fits, alone_s, last_s)
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


@dataclass(frozen=True)
class _Promised:
    curve: SpeedUpCurve
    work: float
    arrived_s: float
    deadline_s: float
    held: int

    @classmethod
    def of(cls, job: ClusterJob, deadline_s: float, node: Node, now_s: float) -> _Promised:
        curve, held = SpeedUpCurve(job.speeds[node.kind]), job.held.devices if job.held else 0
        return cls(curve, job.work_left(now_s), job.arrived_s, deadline_s, held)

    def stretched(self, stretch: float) -> _Promised:
        return replace(self, deadline_s=self.deadline_s + stretch * (self.deadline_s - self.arrived_s))


def _feasible(held: Sequence[_Promised], node: Node, now_s: float, change_s: float) -> tuple[list[_Promised], Capacity]:
    """Plan the promised jobs at the smallest stretch; return the feasible ones and the capacity that they leave."""
    for stretch in (0.0, *STRETCHES):
        stretched = [one.stretched(stretch) for one in held]
        capacity = Capacity(node.devices, now_s, (one.deadline_s for one in stretched))
        if len(_fit(stretched, capacity, change_s)) == len(held):
            return stretched, capacity
    capacity = Capacity(node.devices, now_s, (one.deadline_s for one in held))
    return _fit(held, capacity, change_s), capacity


def _fit(jobs: Sequence[_Promised], capacity: Capacity, change_s: float) -> list[_Promised]:
    """Reserve capacity for the jobs, in order; return those that fit."""
    fitted = []
    for one in jobs:
        planned = capacity.fit(one.curve, one.work, one.deadline_s, one.held, change_s)
        if planned is not None:
            capacity.reserve(planned)
            fitted.append(one)
    return fitted


def _earliest(fits: Callable[[float], bool], from_s: float, to_s: float) -> float:
    """Return the earliest deadline that fits, by bisection; ``to_s`` if no earlier one does."""
    if fits(from_s):
        return from_s
    found_s = to_s
    for _ in range(_BISECTIONS):
        middle_s = (from_s + found_s) / 2
        if fits(middle_s):
            found_s = middle_s
        else:
            from_s = middle_s
    return found_s
