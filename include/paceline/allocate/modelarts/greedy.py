"""The greedy allocator for elastic jobs: four rules that leave no node idle and do not look ahead."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal

from paceline.allocate._model import Allocation, ClusterJob, Node, Placement, Policy
from paceline.allocate._speeds import Speeds
from paceline.contract import Reason, ReasonKind
from paceline.errors import InvalidInputError


class Greedy(Policy):
    """The rule-based allocator that ModelArts used before its optimal allocator (Hu et al. 2021, section 3).

    1. Idle nodes, waiting jobs: the head of the queue gets as many nodes as possible, then the next job.
    2. Idle nodes, no waiting jobs: the job with the shortest training time grows as far as possible, then the job with
       the next shortest time.
    3. No idle nodes, waiting jobs: the allocation of the job with the longest training time is halved, and the head of
       the queue gets the released nodes.
    4. No idle nodes, no waiting jobs: nothing changes.

    Between the periodic decisions (``rescale=False``) only rule 1 applies, as in section 5.1. The allocator accepts one
    pool of identical nodes.

    Parameters
    ----------
    training_time:
        The time that rules 2 and 3 compare. ``"so_far"``: time since the job started. The paper names only the states
        of the queue and the pool as inputs of this allocator, and introduces estimates of the remaining time with its
        optimal allocator. The paper also objects that the shortest job may have little work left; a rule that knew the
        remaining work would not have this problem. ``"left"``: estimated remaining time on the current allocation.
        This rule performs better.
    repeat:
        Whether rule 3 repeats until no job waits or no allocation can be halved; ``False`` serves only the head of the
        queue at each periodic decision. The paper states the repetition for rules 1 and 2 only, but mentions that
        allocations are halved repeatedly.

    Examples
    --------
    The second example of figure 4: job 5 has the longest training time, so job 8 gets half of its nodes.

    >>> from paceline.allocate import ClusterJob, Node, Placement, Speeds
    >>> speeds = {"device": Speeds.doubling_efficiency(16)}
    >>> jobs = [
    ...     ClusterJob("5", 0.0, 9e3, speeds, held=Placement("pool", 4), started_s=0.0),
    ...     ClusterJob("6", 60.0, 9e3, speeds, held=Placement("pool", 4), started_s=60.0),
    ...     ClusterJob("8", 900.0, 9e3, speeds),
    ... ]
    >>> allocation = Greedy().allocate(jobs, [Node("pool", 8)], 900.0, rescale=True)
    >>> {name: placement.devices for name, placement in allocation.placements.items()}
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
        pool = single_pool(nodes)
        held = {job.name: job.held.devices for job in jobs if job.held is not None}
        reasons: dict[str, Reason] = {}
        waiting = start_waiting_jobs(jobs, pool, held, reasons)
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
        reasons: dict[str, Reason],
    ) -> None:
        """Apply rule 3: halve the jobs with the longest training time, and start waiting jobs."""
        # Among jobs with equal training times, halve the latest arrival first.
        longest = [job for job in reversed(jobs) if job.name in training_s]
        longest.sort(key=lambda job: training_s[job.name], reverse=True)
        released = False
        for job in waiting:
            trial = dict(held)
            halved: set[str] = set()
            while (count := largest_useful(job.speeds[pool.kind], pool.devices - sum(trial.values()))) == 0:
                one = next((one for one in longest if _halved_count(one.speeds[pool.kind], trial[one.name])), None)
                if one is None or (released and not self._repeat):
                    return  # discard the trial
                trial[one.name] = _halved_count(one.speeds[pool.kind], trial[one.name])
                halved.add(one.name)
            released = True
            held.update(trial)
            held[job.name] = count
            reasons[job.name] = Reason.of(ReasonKind.TAKES_OVER, devices=count)
            for name in halved:
                reasons[name] = Reason.of(ReasonKind.HALVED, devices=held[name])

    def _scale_up(
        self,
        jobs: Sequence[ClusterJob],
        pool: Node,
        held: dict[str, int],
        training_s: Mapping[str, float],
        reasons: dict[str, Reason],
    ) -> None:
        """Apply rule 2: grow running jobs, shortest training time first. New jobs already have their largest size."""
        free = pool.devices - sum(held.values())
        shortest = sorted((job for job in jobs if job.name in training_s), key=lambda job: training_s[job.name])
        for job in shortest:
            if not free:
                break
            count = largest_useful(job.speeds[pool.kind], held[job.name] + free)
            if count > held[job.name]:
                free -= count - held[job.name]
                reasons[job.name] = Reason.of(ReasonKind.GROWS, before_devices=held[job.name], devices=count)
                held[job.name] = count


def _halved_count(speeds: Speeds, count: int) -> int:
    """Return the largest allowed count up to half of ``count``; 0 if there is none."""
    return speeds.largest_count(count // 2)


def largest_useful(speeds: Speeds, devices: int) -> int:
    """Return the largest useful number of devices up to ``devices``; 0 if there is none."""
    index = bisect_right(speeds.useful, devices)
    return speeds.useful[index - 1] if index else 0


def single_pool(nodes: Sequence[Node]) -> Node:
    """Return the only node; raise InvalidInputError if there are several."""
    if len(nodes) != 1:
        raise InvalidInputError("nodes", [node.name for node in nodes], "one node: a pool of identical devices")
    return nodes[0]


def start_waiting_jobs(
    jobs: Sequence[ClusterJob], pool: Node, held: dict[str, int], reasons: dict[str, Reason]
) -> list[ClusterJob]:
    """Start queued jobs in order, each on as many idle devices as possible; return the jobs that still wait.

    No job overtakes another. Jobs that cannot run on the pool are not in the queue.
    """
    free = pool.devices - sum(held.values())
    waiting: list[ClusterJob] = []
    for job in jobs:
        if job.name in held:
            continue
        speeds = job.speeds.get(pool.kind)
        if speeds is None or speeds.counts[0] > pool.devices:
            reasons[job.name] = Reason.of(ReasonKind.CANNOT_RUN)
        elif waiting or (count := largest_useful(speeds, free)) == 0:
            waiting.append(job)
            reasons[job.name] = Reason.of(ReasonKind.QUEUED)
        else:
            held[job.name] = count
            free -= count
            reasons[job.name] = Reason.of(ReasonKind.HEAD_OF_QUEUE, devices=count)
    return waiting
