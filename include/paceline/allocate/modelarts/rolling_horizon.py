"""The optimal allocator of elastic jobs: plans the next steps for all of them, does the first, and plans again."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from paceline.allocate.model import Allocation, ClusterJob, Node, Placement
from paceline.allocate.modelarts.greedy import let_in, the_pool
from paceline.errors import InvalidInputError

if TYPE_CHECKING:
    from paceline.allocate.modelarts.horizon import HorizonPlan
    from paceline.allocate.modelarts.solver import Solver


class RollingHorizon:
    """Maximises the training progress of all jobs over the next steps (Hu et al. 2021, sections 4.3 and 4.4).

    The objective is the sum, over jobs and steps, of the share s_i^t / d_i that is done at the end of a step of what
    the job has left now. Every job has at least its smallest legal number in every step, so nobody waits while the pool
    has room for that; if even this is too much, those that came first run and the others wait. A job that ends within
    the horizon keeps its smallest number until the horizon ends, as in the paper.

    Where the paper selects a number of nodes with two binaries and a big M for each (job, step, number), here is one:
    delta- + delta+ - 1, which is 1 for the number that is selected and 0 for all others. It is the same problem, with
    half of the variables and a tighter relaxation.

    Between the regular moments (``rescale=False``) running jobs keep what they have, and idle nodes go to the queue, as
    many as possible to its head (section 5.1). It knows one pool of nodes that are as good as each other.

    Parameters
    ----------
    period_s:
        Seconds between two regular moments, and the length of a step.
    steps:
        How many steps are planned; the first is carried out.
    gap:
        How far below the best plan one may be, as a share.
    solver:
        ``"prices"``: one price for a device in each step (Lagrangian relaxation), then gains of single devices: fast,
        with a bound. ``"highs"``: the mixed-integer solver HiGHS. ``"auto"``: prices, and HiGHS when they leave more
        than ``gap``; seldom, unless some jobs that are about to end have more than seven legal numbers.
    time_limit_s:
        For HiGHS; the best plan found by then counts.
    spare:
        Devices that plans leave idle, as far as running jobs can do without, for jobs that come before the next regular
        moment. The paper has none: a plan uses every node that does any good, so that who comes then mostly waits.

    Attributes
    ----------
    last:
        The plan of the last regular moment: its value, the bound on what any plan is worth, and its gap.

    Examples
    --------
    Ten nodes, a job of 10 hours and one of 25 minutes (on one node each): for the first step 4 and 4 would be the
    fastest together, but the plan gets the short one out of the way and has 8 for the long one from then on.

    >>> from paceline.allocate import ClusterJob, Node, Speeds
    >>> speeds = {"device": Speeds.halving_efficiency(8)}
    >>> jobs = [ClusterJob("long", 0.0, 36_000.0, speeds), ClusterJob("short", 0.0, 1_500.0, speeds)]
    >>> policy = RollingHorizon(period_s=300.0)
    >>> allocation = policy.allocate(jobs, [Node("pool", 10)], 0.0, rescale=True)
    >>> {name: given.devices for name, given in allocation.placements.items()}
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
        time_limit_s: float = 2.0,
        spare: int = 0,
    ) -> None:
        if not 0 < period_s < inf:
            raise InvalidInputError("period_s", period_s, "more than 0 seconds")
        if not isinstance(steps, int) or steps < 1:
            raise InvalidInputError("steps", steps, "a whole number from 1")
        if not 0 <= gap < 1:
            raise InvalidInputError("gap", gap, "a share in [0, 1)")
        if solver not in ("auto", "prices", "highs"):
            raise InvalidInputError("solver", solver, "'auto', 'prices' or 'highs'")
        if not time_limit_s > 0:
            raise InvalidInputError("time_limit_s", time_limit_s, "more than 0 seconds")
        if not isinstance(spare, int) or spare < 0:
            raise InvalidInputError("spare", spare, "a whole number from 0")
        self._period_s, self._steps, self._spare = period_s, steps, spare
        self._gap, self._solver, self._time_limit_s = gap, solver, time_limit_s
        self.last: HorizonPlan | None = None

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``."""
        pool = the_pool(nodes)
        held: dict[str, int] = {}
        reasons: dict[str, str] = {}
        if rescale:
            self._plan(jobs, pool, now_s, held, reasons)
        else:
            held.update({job.name: job.held.devices for job in jobs if job.held is not None})
            let_in(jobs, pool, held, reasons)
        return Allocation({name: Placement(pool.name, count) for name, count in held.items()}, reasons)

    def _plan(
        self, jobs: Sequence[ClusterJob], pool: Node, now_s: float, held: dict[str, int], reasons: dict[str, str]
    ) -> None:
        from paceline.allocate.modelarts.horizon import HorizonProblem
        from paceline.allocate.modelarts.solver import solve

        running = self._who_runs(jobs, pool, reasons)
        least = sum(job.speeds[pool.kind].counts[0] for job in running)
        capacity = max(least, pool.devices - self._spare)
        problem = HorizonProblem.of(running, pool.kind, capacity, now_s, self._steps, self._period_s)
        self.last = solve(problem, self._solver, self._gap, self._time_limit_s)
        minutes = self._steps * self._period_s / 60
        for job, counts, done in zip(running, self.last.devices.tolist(), self.last.done.tolist(), strict=True):
            held[job.name] = counts[0]
            then = "it is done by then" if done[-1] >= 1 else f"{done[-1]:.0%} of what it has left is done by then"
            reasons[job.name] = f"the plan for the next {minutes:g} minutes gives it {counts[0]} now: {then}"

    @staticmethod
    def _who_runs(jobs: Sequence[ClusterJob], pool: Node, reasons: dict[str, str]) -> list[ClusterJob]:
        """Those that came first, as long as the pool has their smallest numbers; nobody overtakes."""
        running: list[ClusterJob] = []
        free, full = pool.devices, False
        for job in jobs:
            speeds = job.speeds.get(pool.kind)
            if speeds is None or speeds.counts[0] > pool.devices:
                reasons[job.name] = f"it cannot run on {pool.name}"
            elif full or speeds.counts[0] > free:
                full = True
                reasons[job.name] = "it waits: those that came before it need the whole pool, on their smallest numbers"
            else:
                free -= speeds.counts[0]
                running.append(job)
        return running
