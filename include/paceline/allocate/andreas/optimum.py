"""The optimal schedule at one time: appendix A of ANDREAS as a mixed-integer linear program.

The optimum is a reference for the randomized greedy search on a few jobs and nodes. This module needs SciPy (HiGHS).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.allocate._model import Allocation, ClusterJob, ImpossibleAllocationError, Node, Placement
from paceline.allocate.andreas.objective import (
    PERIOD_S,
    RHO,
    JobConfiguration,
    configurations,
    objective,
    postponement_cost,
    tardiness_cost,
)

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray


class Optimum(NamedTuple):
    """An optimal allocation, and its value of f_OBJ."""

    allocation: Allocation
    value: float


class _Option(NamedTuple):
    """A binary variable x_jng: a job on a node with a number of devices."""

    job: int
    node: int
    configuration: JobConfiguration


def optimum(
    jobs: Sequence[ClusterJob],
    nodes: Sequence[Node],
    now_s: float,
    rho: float = RHO,
    period_s: float = PERIOD_S,
    *,
    every_node: bool = False,
) -> Optimum:
    """Return the schedule with the smallest f_OBJ.

    The model has two binary variables for each job, node and number of devices: x of the paper, and alpha, which is 1
    if the job is the first to end on the node. Each alpha incurs the cost of its configuration, so the product
    alpha · pi of the objective is linear. The paper requires only that each node in use has exactly one first-ending
    job, (4l); (4l) alone would select the cheapest job. The model also requires that no other job on the node ends
    before the first-ending job. The paper's w, y, z, tau and tau_hat follow from x and are omitted.

    To run jobs as soon as devices are free, the paper requires that min(N, J) nodes are in use, (4n). With few jobs
    and some slow nodes, (4n) makes jobs slow and late; with a node that no job can use, the problem is infeasible. By
    default, the model requires instead that no job waits while free devices could run it. Jobs without a deadline
    then also run, although running them does not improve f_OBJ.

    Parameters
    ----------
    jobs, nodes:
        All jobs and all nodes.
    now_s:
        The time in seconds.
    rho:
        The weight of postponed jobs.
    period_s:
        The scheduling interval H.
    every_node:
        Whether to require (4n), as in the paper.

    Raises
    ------
    ImpossibleAllocationError
        If ``every_node`` is set and the jobs cannot use min(N, J) nodes.

    References
    ----------
    Filippini et al., ANDREAS: Artificial intelligence training scheduler for accelerated resource clusters, appendix A.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> speeds = {"device": Speeds.linear(2)}
    >>> jobs = [ClusterJob(name, 0.0, work, speeds, 90.0) for name, work in (("a", 80.0), ("b", 120.0))]
    >>> best = optimum(jobs, [Node("n", 2, cost_per_s=(0.0, 3.0, 4.0))], 0.0)
    >>> sorted(best.allocation.placements.items()), best.value    # b is 30 s late, and a costs 80 s · 3
    ([('a', Placement(node='n', devices=1)), ('b', Placement(node='n', devices=1))], 270.0)
    """
    options = [
        _Option(j, n, one)
        for j, job in enumerate(jobs)
        for n, node in enumerate(nodes)
        for one in configurations(job, node, now_s)
    ]
    chosen = _solve_program(options, jobs, nodes, now_s, rho, period_s, every_node) if options else []
    placements = {jobs[one.job].name: Placement(nodes[one.node].name, one.configuration.devices) for one in chosen}
    return Optimum(Allocation(placements), objective(placements, jobs, nodes, now_s, rho, period_s))


def _solve_program(
    options: Sequence[_Option],
    jobs: Sequence[ClusterJob],
    nodes: Sequence[Node],
    now_s: float,
    rho: float,
    period_s: float,
    every_node: bool,
) -> list[_Option]:
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    postponed = [postponement_cost(job, nodes, now_s, rho, period_s) for job in jobs]
    runs = [
        tardiness_cost(jobs[one.job], one.configuration.seconds, now_s) - postponed[one.job] for one in options
    ]  # relative to the cost of postponing the job, which changes the objective by a constant
    first = [one.configuration.cost for one in options]
    rows = _ConstraintBuilder(2 * len(options))
    _add_capacity_constraints(rows, options, jobs, nodes)
    _add_first_ending_constraints(rows, options, len(nodes))
    if every_node:
        used = min(len(nodes), len(jobs))
        rows.add_row({len(options) + o: 1.0 for o in range(len(options))}, used, used)  # constraint (4n)
    else:
        _forbid_needless_waiting(rows, options, jobs, nodes)
    result = milp(
        np.array(runs + first),
        integrality=np.ones(2 * len(options), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(rows.matrix(), rows.lower, rows.upper),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise ImpossibleAllocationError(f"no schedule of {len(jobs)} jobs on {len(nodes)} nodes: {result.message}")
    return [one for one, chosen in zip(options, result.x, strict=False) if chosen > 0.5]


class _ConstraintBuilder:
    """Builder of a matrix of linear constraints, row by row."""

    def __init__(self, columns: int) -> None:
        self.lower: list[float] = []
        self.upper: list[float] = []
        self._columns = columns
        self._rows: list[dict[int, float]] = []

    def add_row(self, row: dict[int, float], lower: float, upper: float) -> None:
        self._rows.append(row)
        self.lower.append(lower)
        self.upper.append(upper)

    def matrix(self) -> NDArray[float64]:
        import numpy as np

        full = np.zeros((len(self._rows), self._columns))
        for number, row in enumerate(self._rows):
            full[number, list(row)] = list(row.values())
        return full


def _add_capacity_constraints(
    rows: _ConstraintBuilder, options: Sequence[_Option], jobs: Sequence[ClusterJob], nodes: Sequence[Node]
) -> None:
    """Allow at most one configuration for each job, (4a)-(4e), and limit each node to its capacity, (4f)-(4h)."""
    for j in range(len(jobs)):
        rows.add_row({o: 1.0 for o, one in enumerate(options) if one.job == j}, 0, 1)
    for n, node in enumerate(nodes):
        rows.add_row(
            {o: float(one.configuration.devices) for o, one in enumerate(options) if one.node == n}, 0, node.devices
        )


def _add_first_ending_constraints(rows: _ConstraintBuilder, options: Sequence[_Option], nodes: int) -> None:
    """Require one first-ending job on each node in use, (4l) and (4m); no other job on the node may end earlier."""
    inf, alpha = float("inf"), len(options)
    for n in range(nodes):
        here = [o for o, one in enumerate(options) if one.node == n]
        rows.add_row({alpha + o: 1.0 for o in here}, 0, 1)
        for o in here:
            rows.add_row({o: 1.0, alpha + o: -1.0}, 0, inf)
            rows.add_row({o: -1.0, **{alpha + other: 1.0 for other in here}}, 0, inf)
            for job in {options[other].job for other in here} - {options[o].job}:
                before = {
                    other: 1.0
                    for other in here
                    if options[other].job == job
                    and options[other].configuration.seconds < options[o].configuration.seconds
                }
                if before:
                    rows.add_row({alpha + o: 1.0, **before}, 0, 1)


def _forbid_needless_waiting(
    rows: _ConstraintBuilder, options: Sequence[_Option], jobs: Sequence[ClusterJob], nodes: Sequence[Node]
) -> None:
    """Require that no node has enough free devices to run a postponed job."""
    inf = float("inf")
    for n, node in enumerate(nodes):
        devices_here = {o: float(one.configuration.devices) for o, one in enumerate(options) if one.node == n}
        for j in range(len(jobs)):
            smallest = min((options[o].configuration.devices for o in devices_here if options[o].job == j), default=0)
            if smallest:
                needed = node.devices - smallest + 1
                row = dict(devices_here)
                for o, one in enumerate(options):
                    if one.job == j:  # the constraint does not apply if the job runs on any node
                        row[o] = row.get(o, 0.0) + needed
                rows.add_row(row, needed, inf)
