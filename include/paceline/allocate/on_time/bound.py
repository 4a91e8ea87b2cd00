"""Which jobs can be on time at best: a bound that no policy can beat, and a choice of jobs when not all can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from paceline.allocate.model import ClusterJob, Node
from paceline.allocate.on_time.capacity import SpeedUpCurve

_ROUNDING = 1e-9


class Need(NamedTuple):
    """What a job needs at least: so many device seconds, within so many seconds from now."""

    within_s: float
    device_s: float
    place: int  # of the job, in whatever list it is from


def moore_hodgson(needs: Iterable[Need], devices: float) -> list[int]:
    """Choose the most jobs of which each gets what it needs in time, if devices were one divisible machine.

    By deadline, dropping the largest whenever one is late: exact for one machine (J. M. Moore, 1968).

    Returns
    -------
    list of int
        The places of the chosen.

    Examples
    --------
    >>> sorted(moore_hodgson([Need(10.0, 8.0, 0), Need(10.0, 4.0, 1), Need(20.0, 15.0, 2)], devices=1))
    [1, 2]
    """
    kept: list[tuple[float, int]] = []  # the largest first
    total = 0.0
    for within_s, device_s, place in sorted(needs):
        if device_s == inf:
            continue
        heappush(kept, (-device_s, place))
        total += device_s
        if total > devices * within_s * (1 + _ROUNDING):
            total += heappop(kept)[0]
    return [place for _, place in kept]


def most_on_time(jobs: Sequence[ClusterJob], node: Node, now_s: float) -> int:
    """An upper bound on how many of the jobs that are there can meet their deadlines on a pool.

    Every job needs a certain number of device seconds before its deadline: those of the most economical mix of device
    counts that is fast enough. Were that all, the pool would be one machine and each job so much time on it. What is
    left out (whole devices, and that a job cannot use all of them at once) only makes it harder.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> curve = {"device": Speeds.linear(2)}
    >>> jobs = [ClusterJob(f"j{n}", 0.0, work, curve, deadline_s=10.0) for n, work in enumerate((4.0, 8.0, 15.0))]
    >>> most_on_time(jobs, Node("pool", 2), now_s=0.0)
    2
    """
    curves: dict[int, SpeedUpCurve] = {}
    needs = []
    for place, job in enumerate(jobs):
        speeds = job.speeds.get(node.kind)
        if job.deadline_s is not None and speeds is not None:
            curve = curves.setdefault(id(speeds), SpeedUpCurve(speeds))
            within_s = job.deadline_s - now_s
            needs.append(Need(within_s, curve.least_device_s(job.left(now_s), within_s), place))
    return len(moore_hodgson(needs, node.devices))
