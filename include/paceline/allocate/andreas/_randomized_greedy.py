"""Randomized Greedy, the allocator of ANDREAS as published: jobs closest to their due date choose first."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.allocate.andreas._construction import PendingJob
from paceline.allocate.andreas._search import ScheduleSearch, SortKey
from paceline.allocate.andreas.objective import PERIOD_S, RHO


class RandomizedGreedy(ScheduleSearch):
    """Policy that builds many random schedules at each decision, and applies the one with the lowest f_OBJ (ANDREAS).

    In each schedule, jobs choose in order of pressure: the job that would be latest on its fastest configuration comes
    first, equation (2). A job chooses the cheapest free configuration that meets its due date, else the fastest. The
    first schedule follows these rules exactly; in all other schedules, some jobs swap places in the order, and some try
    another configuration first. A job without a due date chooses last, and runs on any devices that remain.

    Running jobs move freely, and the paper's simulator does not charge for moves. If jobs resume from their last
    snapshot, moves repeat much work: :class:`LeastCost` is Paceline's policy for this case.

    Parameters
    ----------
    iterations:
        Number of schedules, MaxIt_RG.
    period_s:
        The scheduling interval H: the longest time until a postponed job starts, in seconds.
    rho:
        The weight of postponed jobs.
    seed:
        Seed of the search, which makes decisions deterministic.

    References
    ----------
    Filippini et al., ANDREAS: Artificial intelligence training scheduler for accelerated resource clusters, section IV
    and algorithm 1.

    Examples
    --------
    >>> from paceline.allocate import ClusterJob, Node, Speeds
    >>> speeds = {"V100": Speeds((1, 2), (1.0, 1.8))}
    >>> jobs = [ClusterJob("soon", 0.0, 90.0, speeds, 60.0), ClusterJob("later", 0.0, 90.0, speeds, 500.0)]
    >>> node = Node("n", 2, "V100", cost_per_s=(0.0, 2.0, 3.0))
    >>> RandomizedGreedy().allocate(jobs, [node], 0.0, rescale=True).placements
    {'soon': Placement(node='n', devices=2)}
    """

    name = "rg"

    def __init__(self, *, iterations: int = 1000, period_s: float = PERIOD_S, rho: float = RHO, seed: int = 0) -> None:
        super().__init__(iterations=iterations, period_s=period_s, rho=rho, seed=seed)

    def sort_key(self, pending_jobs: Sequence[PendingJob]) -> SortKey:
        """Return the sort key of line 6 of algorithm 1: jobs closest to their due date first, equation (2)."""
        return lambda pending: (-pending.pressure_s,)
