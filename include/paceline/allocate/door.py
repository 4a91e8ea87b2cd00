"""Before a job begins: does its deadline fit beside those already promised, and if not, which would?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.allocate.capacity import Capacity, Curve
from paceline.allocate.model import Job, Node
from paceline.errors import InvalidInputError


@dataclass(frozen=True)
class Answer:
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
        The fewest with which it keeps its deadline, if it fits; at times it would have fewer, where fewer are free.
    """

    fits: bool
    earliest_s: float
    alone_s: float
    devices: int | None


def ask(job: Job, promised: Sequence[Job], node: Node, now_s: float, change_s: float = 0.0) -> Answer:
    """Say whether a job fits beside those that were promised their deadlines, and the earliest deadline that would.

    As in ElasticFlow's admission: nobody who was let in loses what they were promised. The promised are planned by
    deadline on as few devices as they need, and the new job has what they leave.

    Parameters
    ----------
    job:
        Who asks.
    promised:
        Jobs that hold a promise; those that cannot keep theirs any more take no devices here.
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
    >>> promised = [Job("a", 0.0, 30.0, curve, deadline_s=10.0)]
    >>> answer = ask(Job("b", 0.0, 30.0, curve, deadline_s=12.0), promised, Node("pool", 4), now_s=0.0)
    >>> answer.fits, answer.earliest_s, answer.alone_s
    (False, 15.0, 7.5)
    """
    speeds = job.speeds.get(node.kind)
    if speeds is None or speeds.counts[0] > node.devices:
        raise InvalidInputError(
            f"{job.name}.speeds", sorted(job.speeds), f"speeds on {node.kind}, of which there are some"
        )
    curve = Curve(speeds)
    due = sorted(
        (one for one in promised if one.deadline_s is not None and one.name != job.name),
        key=lambda one: (one.deadline_s, one.arrived_s),
    )
    capacity = Capacity(node.devices, now_s, (one.deadline_s for one in due if one.deadline_s is not None))
    for one in due:
        assert one.deadline_s is not None
        held = one.held.devices if one.held else 0
        planned = capacity.fit(Curve(one.speeds[node.kind]), one.left(now_s), one.deadline_s, held, change_s)
        if planned is not None:
            capacity.take(planned)
    work = job.left(now_s)
    ends_s = capacity.ends_s(curve, work, change_s)
    earliest_s = min(ends_s.values())
    deadline_s = earliest_s if job.deadline_s is None else job.deadline_s
    return Answer(
        fits=earliest_s <= deadline_s,
        earliest_s=earliest_s,
        alone_s=min(Capacity(node.devices, now_s, []).ends_s(curve, work, change_s).values()),
        devices=next((count for count, end_s in ends_s.items() if end_s <= deadline_s), None),
    )
