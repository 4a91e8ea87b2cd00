"""The optimal allocator for elastic jobs: it plans the next steps, executes the first step, and plans again."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from paceline.allocate._model import Allocation, ClusterJob, Node, Placement, Policy
from paceline.allocate.modelarts.greedy import single_pool, start_waiting_jobs
from paceline.contract import Reason, ReasonKind
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from paceline.allocate.modelarts.horizon import HorizonPlan
    from paceline.allocate.modelarts.solver import Solver


class RollingHorizon(Policy):
    """Policy that maximises the progress of all jobs over the next steps (Hu et al. 2021, sections 4.3 and 4.4).

    The objective is the sum, over jobs and steps, of s_i^t / d_i: the fraction of the job's current remaining work that
    is done by the end of the step. Every job has at least its smallest allowed device count in every step. If the
    pool is too small for all these allocations, the jobs that arrived first run, and all other jobs wait. A job that
    ends within the horizon then keeps its smallest number until the horizon ends, as in the paper.

    The paper selects a number of nodes with two binary variables and a big M for each (job, step, number). This model
    has one binary variable instead, delta- + delta+ - 1, which is 1 for the selected number and 0 for all other
    numbers: the same problem with half the variables and a tighter relaxation.

    Between the periodic decisions (``rescale=False``) running jobs keep their allocations, and queued jobs start in
    order, each on as many idle nodes as possible (section 5.1). The policy accepts one pool of identical nodes.

    Parameters
    ----------
    period_s:
        Seconds between two periodic decisions, and the length of a step.
    steps:
        Number of planned steps; only the first is executed.
    gap:
        Accepted relative distance to the best plan.
    solver:
        ``"prices"``: Lagrangian relaxation with a price per device in each step, then marginal gains; fast, and proves
        a bound. ``"highs"``: the mixed-integer solver HiGHS. ``"auto"``: prices, then HiGHS if the relative distance
        is above ``gap``. HiGHS is rarely needed unless jobs close to their end have more than seven allowed counts.
    max_relaxations:
        Number of linear relaxations (nodes of its search tree) after which HiGHS returns its best plan so far. The
        first relaxation usually suffices. ``"auto"`` does not run HiGHS if jobs x steps x allowed counts exceed 25,000.
        Neither limit is a duration, so a plan does not depend on the speed of the machine.
    spare_nodes:
        Devices that plans leave idle for jobs that arrive before the next periodic decision; the smallest allocations
        of running jobs take precedence. The plans of the paper use every useful node, so new jobs mostly wait.

    Attributes
    ----------
    last:
        The plan of the last periodic decision, with its value, bound and gap.

    Examples
    --------
    Ten nodes, and two jobs that take 10 hours and 25 minutes on one node. In the first step, 4 + 4 nodes have the
    highest total speed, but the plan finishes the short job first and then uses 8 nodes for the long job.

    >>> from paceline.allocate import ClusterJob, Node, Speeds
    >>> speeds = {"device": Speeds.doubling_efficiency(8)}
    >>> jobs = [ClusterJob("long", 0.0, 36_000.0, speeds), ClusterJob("short", 0.0, 1_500.0, speeds)]
    >>> policy = RollingHorizon(period_s=300.0)
    >>> allocation = policy.allocate(jobs, [Node("pool", 10)], 0.0, rescale=True)
    >>> {name: placement.devices for name, placement in allocation.placements.items()}
    {'long': 2, 'short': 8}
    >>> policy.last.devices.tolist()
    [[2, 8, 8, 8, 8], [8, 1, 1, 1, 1]]
    >>> policy.last.gap <= 0.005
    True
    """

    name = "milp"

    def __init__(
        self,
        *,
        period_s: float = 300.0,
        steps: int = 5,
        gap: float = 0.005,
        solver: Solver = "auto",
        max_relaxations: int = 100,
        spare_nodes: int = 0,
    ) -> None:
        if not 0 < period_s < inf:
            raise InvalidInputError("period_s", period_s, "more than 0 seconds")
        if not isinstance(steps, int) or steps < 1:
            raise InvalidInputError("steps", steps, "an integer, 1 or more")
        if not 0 <= gap < 1:
            raise InvalidInputError("gap", gap, "a fraction in [0, 1)")
        if solver not in ("auto", "prices", "highs"):
            raise InvalidInputError("solver", solver, "'auto', 'prices' or 'highs'")
        if not isinstance(max_relaxations, int) or max_relaxations < 1:
            raise InvalidInputError("max_relaxations", max_relaxations, "an integer, 1 or more")
        if not isinstance(spare_nodes, int) or spare_nodes < 0:
            raise InvalidInputError("spare_nodes", spare_nodes, "an integer, 0 or more")
        self._period_s, self._steps, self._spare_nodes = period_s, steps, spare_nodes
        self._gap, self._solver, self._max_relaxations = gap, solver, max_relaxations
        self.last: HorizonPlan | None = None

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``."""
        pool = single_pool(nodes)
        held: dict[str, int] = {}
        reasons: dict[str, Reason] = {}
        if rescale:
            self._plan(jobs, pool, now_s, held, reasons)
        else:
            held.update({job.name: job.held.devices for job in jobs if job.held is not None})
            start_waiting_jobs(jobs, pool, held, reasons)
        return Allocation({name: Placement(pool.name, count) for name, count in held.items()}, reasons)

    def _plan(
        self, jobs: Sequence[ClusterJob], pool: Node, now_s: float, held: dict[str, int], reasons: dict[str, Reason]
    ) -> None:
        from paceline.allocate.modelarts.horizon import HorizonProblem
        from paceline.allocate.modelarts.solver import solve

        running = self._running_jobs(jobs, pool, reasons)
        smallest = sum(job.speeds[pool.kind].counts[0] for job in running)
        capacity = max(smallest, pool.devices - self._spare_nodes)
        problem = HorizonProblem.for_jobs(running, pool.kind, capacity, now_s, self._steps, self._period_s)
        self.last = solve(problem, self._solver, self._gap, self._max_relaxations)
        minutes = self._steps * self._period_s / 60
        for job, counts, done in zip(running, self.last.devices.tolist(), self.last.done.tolist(), strict=True):
            held[job.name] = counts[0]
            progress = "the job ends" if done[-1] >= 1 else f"{done[-1]:.0%} of the remaining work is done"
            reasons[job.name] = Reason.of(ReasonKind.PLANNED, devices=counts[0], progress=progress, minutes=minutes)

    @staticmethod
    def _running_jobs(jobs: Sequence[ClusterJob], pool: Node, reasons: dict[str, Reason]) -> list[ClusterJob]:
        """Return the first jobs whose smallest numbers of devices fit into the pool; no job overtakes another."""
        running: list[ClusterJob] = []
        free, full = pool.devices, False
        for job in jobs:
            speeds = job.speeds.get(pool.kind)
            if speeds is None or speeds.counts[0] > pool.devices:
                reasons[job.name] = Reason.of(ReasonKind.CANNOT_RUN)
            elif full or speeds.counts[0] > free:
                full = True
                reasons[job.name] = Reason.of(ReasonKind.NO_ROOM)
            else:
                free -= speeds.counts[0]
                running.append(job)
        return running
