"""The greedy allocator of elastic jobs: no node stays idle, by four rules and without a look ahead."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal

from paceline.allocate.model import Allocation, ClusterJob, Node, Placement, Speeds
from paceline.errors import InvalidInputError


class Greedy:
    """The rule-based allocator that ModelArts used before its optimal one (Hu et al. 2021, section 3).

    1. Nodes are idle and jobs wait: the first in the queue gets as many as possible, then the next.
    2. Nodes are idle and nobody waits: the job with the shortest training time gets as many more as possible, then the
       next shortest.
    3. No node is idle and jobs wait: the job with the longest training time is halved, and the head of the queue gets
       what it gives back.
    4. No node is idle and nobody waits: nothing changes.

    Between the regular moments (``rescale=False``) only the first happens, as in section 5.1. It knows one pool of
    nodes that are as good as each other.

    Parameters
    ----------
    training_time:
        What rules 2 and 3 compare. ``"so_far"``: how long a job has been training. The paper names no other input of
        this allocator than the state of queue and pool, presents estimates of what is left as the novelty of the
        other one, and objects that the shortest may have little work, which a rule that knew the work would not be
        surprised by. ``"left"``: how long the rest would take on what the job holds now: a stronger rule, given
        estimates.
    repeat:
        Whether rule 3 goes on until nobody waits or nobody can be halved. The paper says it of rules 1 and 2 only, but
        also that jobs are halved repeatedly; ``False`` halves for the head of the queue only, at each regular moment.

    Examples
    --------
    The second example of figure 4: job 5 has trained the longest and gives half of its nodes to job 8.

    >>> from paceline.allocate import ClusterJob, Node, Placement, Speeds
    >>> speeds = {"device": Speeds.halving_efficiency(16)}
    >>> jobs = [
    ...     ClusterJob("5", 0.0, 9e3, speeds, held=Placement("pool", 4), started_s=0.0),
    ...     ClusterJob("6", 60.0, 9e3, speeds, held=Placement("pool", 4), started_s=60.0),
    ...     ClusterJob("8", 900.0, 9e3, speeds),
    ... ]
    >>> allocation = Greedy().allocate(jobs, [Node("pool", 8)], 900.0, rescale=True)
    >>> {name: given.devices for name, given in allocation.placements.items()}
    {'5': 2, '6': 4, '8': 2}
    """

    name = "greedy"

    def __init__(self, *, training_time: Literal["so_far", "left"] = "so_far", repeat: bool = True) -> None:
        if training_time not in ("so_far", "left"):
            raise InvalidInputError("training_time", training_time, "'so_far' or 'left'")
        self._so_far = training_time == "so_far"
        self._repeat = repeat

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``."""
        pool = the_pool(nodes)
        held = {job.name: job.held.devices for job in jobs if job.held is not None}
        reasons: dict[str, str] = {}
        waiting = let_in(jobs, pool, held, reasons)
        if rescale:
            training_s = {job.name: self._training_s(job, pool, now_s) for job in jobs if job.held is not None}
            if waiting:
                self._halve(jobs, waiting, pool, held, training_s, reasons)
            else:
                self._scale_up(jobs, pool, held, training_s, reasons)
        return Allocation({name: Placement(pool.name, count) for name, count in held.items()}, reasons)

    def _training_s(self, job: ClusterJob, pool: Node, now_s: float) -> float:
        if self._so_far:
            return now_s - (now_s if job.started_s is None else job.started_s)
        assert job.held is not None
        return job.seconds(pool, job.held.devices, now_s)

    def _halve(
        self,
        jobs: Sequence[ClusterJob],
        waiting: Sequence[ClusterJob],
        pool: Node,
        held: dict[str, int],
        training_s: Mapping[str, float],
        reasons: dict[str, str],
    ) -> None:
        """Rule 3."""
        # Of those that have trained equally long, the one that came last gives first.
        longest = [job for job in reversed(jobs) if job.name in training_s]
        longest.sort(key=lambda job: training_s[job.name], reverse=True)
        given_back = False
        for job in waiting:
            then = dict(held)
            halved: set[str] = set()
            while (count := most(job.speeds[pool.kind], pool.devices - sum(then.values()))) == 0:
                one = next((one for one in longest if _half(one.speeds[pool.kind], then[one.name])), None)
                if one is None or (given_back and not self._repeat):
                    return  # what was tried in vain is not done
                then[one.name] = _half(one.speeds[pool.kind], then[one.name])
                halved.add(one.name)
            given_back = True
            held.update(then)
            held[job.name] = count
            reasons[job.name] = f"it was the first in the queue: it gets {count} that a longer training gave back"
            for name in halved:
                reasons[name] = f"its training is the longest, and others wait: it keeps {held[name]}"

    def _scale_up(
        self,
        jobs: Sequence[ClusterJob],
        pool: Node,
        held: dict[str, int],
        training_s: Mapping[str, float],
        reasons: dict[str, str],
    ) -> None:
        """Rule 2. Those that were let in just now have as many as there were."""
        free = pool.devices - sum(held.values())
        shortest = sorted((job for job in jobs if job.name in training_s), key=lambda job: training_s[job.name])
        for job in shortest:
            if not free:
                break
            count = most(job.speeds[pool.kind], held[job.name] + free)
            if count > held[job.name]:
                free -= count - held[job.name]
                held[job.name] = count
                reasons[job.name] = f"nobody waits, and its training is the shortest: it goes up to {count}"


def _half(speeds: Speeds, count: int) -> int:
    """The largest legal number that is at most half; 0 if there is none."""
    return speeds.most(count // 2)


def most(speeds: Speeds, devices: int) -> int:
    """The largest number that a job can use of so many, and that makes it faster than any smaller one."""
    place = bisect_right(speeds.useful, devices)
    return speeds.useful[place - 1] if place else 0


def the_pool(nodes: Sequence[Node]) -> Node:
    """The only node, for policies that know one pool of nodes that are as good as each other."""
    if len(nodes) != 1:
        raise InvalidInputError("nodes", [node.name for node in nodes], "one node: a pool of equal devices")
    return nodes[0]


def let_in(jobs: Sequence[ClusterJob], pool: Node, held: dict[str, int], reasons: dict[str, str]) -> list[ClusterJob]:
    """Give what is idle to the queue: to its head as many as possible, then to the next. Returns who still waits.

    Nobody overtakes. Those that can never run here are not in the queue.
    """
    free = pool.devices - sum(held.values())
    waiting: list[ClusterJob] = []
    for job in jobs:
        if job.name in held:
            continue
        speeds = job.speeds.get(pool.kind)
        if speeds is None or speeds.counts[0] > pool.devices:
            reasons[job.name] = f"it cannot run on {pool.name}"
        elif waiting or (count := most(speeds, free)) == 0:
            waiting.append(job)
        else:
            held[job.name] = count
            free -= count
            reasons[job.name] = f"it was the first in the queue: it gets {count} of the idle devices"
    return waiting
