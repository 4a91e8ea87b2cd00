"""Upper bound on the number of jobs that any policy can finish on time, and a selection of the jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from paceline.allocate._model import ClusterJob, Node
from paceline.allocate.on_time.curve import ROUNDING, SpeedUpCurve


class DeadlineDemand(NamedTuple):
    """Lower bound on the device seconds that a job needs before its deadline."""

    within_s: float  # seconds from now to the deadline
    device_s: float
    number: int  # index of the job in the caller's list


def moore_hodgson(needs: Iterable[DeadlineDemand], devices: float) -> list[int]:
    """Return the largest set of jobs that can be on time if the devices form one divisible machine.

    The method adds jobs in deadline order, and drops the largest job if a job is late; it is exact (J. M. Moore, 1968).

    Returns
    -------
    list of int
        The indices of the chosen jobs.

    Examples
    --------
    >>> demands = [DeadlineDemand(10.0, 8.0, 0), DeadlineDemand(10.0, 4.0, 1), DeadlineDemand(20.0, 15.0, 2)]
    >>> sorted(moore_hodgson(demands, devices=1))
    [1, 2]
    """
    chosen: list[tuple[float, int]] = []  # heap with the largest job first
    total = 0.0
    for within_s, device_s, number in sorted(needs):
        if device_s == inf:
            continue
        heappush(chosen, (-device_s, number))
        total += device_s
        if total > devices * within_s * (1 + ROUNDING):
            total += heappop(chosen)[0]
    return [number for _, number in chosen]


def most_on_time(jobs: Sequence[ClusterJob], node: Node, now_s: float) -> int:
    """Return an upper bound on the number of jobs that can meet their deadlines in a pool.

    Every job needs a minimum of device seconds before its deadline, on the most economical mix of device counts that is
    fast enough. The bound treats the pool as one divisible machine. In reality, devices are indivisible, and a job
    cannot use all of them at the same time; both restrictions can only lower the number.

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
    for index, job in enumerate(jobs):
        speeds = job.speeds.get(node.kind)
        if job.deadline_s is not None and job.deadline_s < inf and speeds is not None:
            curve = curves.setdefault(id(speeds), SpeedUpCurve(speeds))
            within_s = job.deadline_s - now_s
            needs.append(DeadlineDemand(within_s, curve.min_device_s(job.work_left(now_s), within_s), index))
    return len(moore_hodgson(needs, node.devices))
