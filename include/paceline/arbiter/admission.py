"""Before a job begins: does its deadline fit beside those already promised, and if not, which would?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.allocate.model import ClusterJob, Node
from paceline.allocate.on_time.capacity import Capacity, SpeedUpCurve
from paceline.allocate.on_time.policy import STRETCHES
from paceline.errors import InvalidInputError

_HALVINGS = 12  # of the time in which the earliest deadline may be


@dataclass(frozen=True)
class Admission:
    """Whether a job can be promised its deadline.

    Parameters
    ----------
    fits:
        Whether its deadline is met beside all that were promised theirs. Without a deadline there is nothing to miss.
    earliest_s:
        The earliest deadline that could be promised now, on the clock of ``now_s``.
    alone_s:
        When it would be done with the whole pool for itself.
    devices:
        The fewest with which it keeps its deadline on what the others leave, if it fits; where it fits only because
        others wait for it, those with which it would be done soonest.
    """

    fits: bool
    earliest_s: float
    alone_s: float
    devices: int | None


def check_admission(
    job: ClusterJob, promised: Sequence[ClusterJob], node: Node, now_s: float, change_s: float = 0.0
) -> Admission:
    """Say whether a job fits beside those that were promised their deadlines, and the earliest deadline that would.

    As in ElasticFlow's admission: nobody who was let in loses what they were promised. All are planned by deadline,
    each on as few devices as it needs; or the new job has what the promised ones leave, where that is better.

    Parameters
    ----------
    job:
        Who asks.
    promised:
        Jobs that hold a promise. Where they cannot all be on time, all may be a little late, as in
        :class:`~paceline.allocate.OnTime`; beyond that, those that cannot keep theirs take no devices here.
    node:
        The pool.
    now_s:
        The time.
    change_s:
        Seconds for which a job stands still when it starts.

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
            f"{job.name}.speeds", sorted(job.speeds), f"speeds on {node.kind}, of which there are some"
        )
    curve, work = SpeedUpCurve(speeds), job.left(now_s)
    held = [
        _Promised.of(one, one.deadline_s, node, now_s) for one in promised if one.deadline_s and one.name != job.name
    ]
    held.sort(key=lambda one: one.deadline_s)
    keeps, capacity = _keep(held, node, now_s, change_s)
    ends_s = capacity.ends_s(curve, work, change_s)
    last_s = min(ends_s.values())  # on what the others leave: it can be promised in any case
    alone_s = min(Capacity(node.devices, now_s, []).ends_s(curve, work, change_s).values())
    asks = _Promised.of(job, alone_s, node, now_s)

    def fits(deadline_s: float) -> bool:
        """Whether there is a plan for all of them, one after the other by their deadlines."""
        every = sorted([*keeps, replace(asks, deadline_s=deadline_s)], key=lambda one: one.deadline_s)
        room = Capacity(node.devices, now_s, (one.deadline_s for one in every))
        return len(_fit(every, room, change_s)) == len(every)

    earliest_s = _earliest(fits, alone_s, last_s)
    deadline_s = earliest_s if job.deadline_s is None else job.deadline_s
    if last_s <= deadline_s or fits(deadline_s):
        earliest_s = min(earliest_s, deadline_s)
    elif earliest_s <= deadline_s:  # later deadlines need not be easier to plan for
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
        return cls(curve, job.left(now_s), job.arrived_s, deadline_s, held)

    def stretched(self, stretch: float) -> _Promised:
        return replace(self, deadline_s=self.deadline_s + stretch * (self.deadline_s - self.arrived_s))


def _keep(held: Sequence[_Promised], node: Node, now_s: float, change_s: float) -> tuple[list[_Promised], Capacity]:
    """Plan those that hold a promise, as little later as keeps all of them; who is kept, and what they leave."""
    for stretch in (0.0, *STRETCHES):
        later = [one.stretched(stretch) for one in held]
        capacity = Capacity(node.devices, now_s, (one.deadline_s for one in later))
        if len(_fit(later, capacity, change_s)) == len(held):
            return later, capacity
    capacity = Capacity(node.devices, now_s, (one.deadline_s for one in held))
    return _fit(held, capacity, change_s), capacity


def _fit(jobs: Sequence[_Promised], capacity: Capacity, change_s: float) -> list[_Promised]:
    """Plan them in their order; those for which there is room."""
    fitted = []
    for one in jobs:
        planned = capacity.fit(one.curve, one.work, one.deadline_s, one.held, change_s)
        if planned is not None:
            capacity.take(planned)
            fitted.append(one)
    return fitted


def _earliest(fits: Callable[[float], bool], from_s: float, to_s: float) -> float:
    """A deadline that fits and is hardly later than one that does not; ``to_s`` if none between fits."""
    if fits(from_s):
        return from_s
    found_s = to_s
    for _ in range(_HALVINGS):
        middle_s = (from_s + found_s) / 2
        if fits(middle_s):
            found_s = middle_s
        else:
            from_s = middle_s
    return found_s
