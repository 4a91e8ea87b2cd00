"""The proxy objective that ANDREAS minimises at each decision (equation 1).

The heuristic :mod:`paceline.allocate.andreas._search` searches for its minimum;
:mod:`paceline.allocate.andreas.optimum` finds the exact minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from paceline.allocate._model import ClusterJob, Node, Placement

RHO = 100.0  # weight of postponed jobs, section V-B
PERIOD_S = 300.0  # scheduling interval H, appendix B


class JobConfiguration(NamedTuple):
    """A number of devices for a job on one kind of node, with the resulting duration and cost."""

    devices: int
    seconds: float  # t_jng: time for the remaining work
    cost: float  # pi_jn: cost of the node during ``seconds``


def configurations(job: ClusterJob, node: Node, now_s: float) -> list[JobConfiguration]:
    """Return the configurations of a job on an empty node, except those that are no faster than a smaller one.

    Parameters
    ----------
    job, node:
        The job, and the empty node.
    now_s:
        The current time, at which the remaining work is estimated.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> job = ClusterJob("j", 0.0, 90.0, {"V100": Speeds((1, 2), (1.0, 1.8))})
    >>> configurations(job, Node("n", 2, "V100", (0.0, 3.0, 5.0)), 0.0)[1]
    JobConfiguration(devices=2, seconds=50.0, cost=250.0)
    """
    speeds = job.speeds.get(node.kind)
    if speeds is None:
        return []
    left = job.work_left(now_s)
    # Constraint (4k) uses the cost of the node as if only this job ran on it.
    return [
        JobConfiguration(count, left / speeds.at(count), left / speeds.at(count) * node.cost(count))
        for count in speeds.useful
        if count <= node.devices
    ]


def due_in_s(job: ClusterJob, now_s: float) -> float:
    """Return the seconds until the due date of a job: negative if overdue, infinite without a due date."""
    return inf if job.deadline_s is None else job.deadline_s - now_s


def tardiness_cost(job: ClusterJob, seconds: float, now_s: float) -> float:
    """Return omega · tau: the tardiness cost of a job that ends ``seconds`` from now, constraint (4i)."""
    late_s = seconds - due_in_s(job, now_s)
    return job.weight * late_s if late_s > 0 else 0.0


def postponement_cost(
    job: ClusterJob, nodes: Iterable[Node], now_s: float, rho: float = RHO, period_s: float = PERIOD_S
) -> float:
    """Return rho · omega · tau_hat: the cost of not running a job now, constraint (4j).

    The cost assumes that the job starts one scheduling interval from now, on its slowest configuration.

    Parameters
    ----------
    job, nodes:
        The postponed job, and all nodes.
    now_s:
        The time in seconds.
    rho:
        The weight of postponed jobs.
    period_s:
        The scheduling interval H.
    """
    if job.deadline_s is None:
        return 0.0
    slowest_s = max((one.seconds for node in nodes for one in configurations(job, node, now_s)), default=0.0)
    return rho * tardiness_cost(job, period_s + slowest_s, now_s)


def objective(
    placements: Mapping[str, Placement],
    jobs: Sequence[ClusterJob],
    nodes: Sequence[Node],
    now_s: float,
    rho: float = RHO,
    period_s: float = PERIOD_S,
) -> float:
    """Return f_OBJ of ANDREAS: tardiness, postponements, and the cost of each node until its first job ends.

    A job without a deadline adds a cost only if it is the first to end on its node. Among jobs that end at the same
    time, the cheapest job counts as the first.

    Parameters
    ----------
    placements:
        Placements of the running jobs, by job name; all other jobs are postponed.
    jobs, nodes:
        All jobs and all nodes.
    now_s:
        The time in seconds.
    rho:
        The weight of postponed jobs.
    period_s:
        The scheduling interval H: the longest time until a postponed job starts, in seconds.

    Returns
    -------
    float
        Total cost; ``Node.cost_per_s`` and ``ClusterJob.weight`` are costs per second in the same currency.

    References
    ----------
    Filippini et al., ANDREAS: Artificial intelligence training scheduler for accelerated resource clusters,
    equation (1) and appendix A.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> jobs = [ClusterJob(name, 0.0, 100.0, {"device": Speeds.linear(2)}, deadline_s=80.0) for name in "ab"]
    >>> node = Node("n", 2, cost_per_s=(0.0, 3.0, 4.0))
    >>> objective({"a": Placement("n", 1), "b": Placement("n", 1)}, jobs, [node], 0.0)  # each 20 s late, and 100 s · 3
    340.0
    >>> objective({"a": Placement("n", 2)}, jobs, [node], 0.0)  # 50 s · 4, and b: 100 · (300 + 100 - 80) s
    32200.0
    """
    where = {node.name: node for node in nodes}
    total = 0.0
    first: dict[str, tuple[float, float]] = {}
    for job in jobs:
        placement = placements.get(job.name)
        if placement is None:
            total += postponement_cost(job, nodes, now_s, rho, period_s)
            continue
        node = where[placement.node]
        seconds = job.seconds(node, placement.devices, now_s)
        total += tardiness_cost(job, seconds, now_s)
        first[placement.node] = min(
            first.get(placement.node, (inf, inf)), (seconds, seconds * node.cost(placement.devices))
        )
    return total + sum(cost for _, cost in first.values())
