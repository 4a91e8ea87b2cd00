"""The best schedule of this moment, exactly: appendix A of ANDREAS as a mixed-integer linear program.

For a handful of jobs and nodes: the yardstick of the randomized greedy search. Needs SciPy (HiGHS).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.allocate.andreas.objective import (
    PERIOD_S,
    RHO,
    JobConfiguration,
    configurations,
    objective,
    postponement_cost,
    tardiness_cost,
)
from paceline.allocate.model import Allocation, ClusterJob, ImpossibleAllocationError, Node, Placement

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray


class Optimum(NamedTuple):
    """A schedule than which none is better, and its f_OBJ."""

    allocation: Allocation
    value: float


class _Option(NamedTuple):
    """x_jng: a job on so many devices of a node."""

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
    """Find the schedule with the smallest f_OBJ.

    One binary for each job, node and number of devices (x of the paper), and one for each of them that says whether it
    is the first to end there (alpha). With these, the product alpha · pi of the objective is linear: each alpha has
    the cost of its own configuration. The paper only asks for exactly one first-ending job on each node in use, (4l);
    alone, this would pick the cheapest job instead. Here no job can be the first if another one on the node ends
    before it. The paper's w, y, z, tau and tau_hat follow from x, and so are left out.

    The paper wants jobs to run as soon as there are devices for them, and demands that min(N, J) nodes be used, (4n).
    This makes jobs slow and late where some nodes are slow and few jobs are there, and has no solution where a job
    cannot use a node. By default the aim itself is demanded instead: nobody waits who could have run on devices that
    nobody has. It also makes jobs run that have no deadline, for which f_OBJ offers nothing.

    Parameters
    ----------
    jobs, nodes:
        Who wants to run, and where.
    now_s:
        The time; due dates are relative to it.
    rho:
        The weight of postponed jobs.
    period_s:
        The scheduling interval H.
    every_node:
        Demand (4n) as it is printed.

    Raises
    ------
    ImpossibleAllocationError
        If ``every_node`` is asked for and jobs cannot use as many nodes.

    References
    ----------
    Filippini et al., ANDREAS: Artificial intelligence training scheduler for accelerated resource clusters, appendix A.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> speeds = {"device": Speeds.linear(2)}
    >>> jobs = [ClusterJob(name, 0.0, work, speeds, 90.0) for name, work in (("a", 80.0), ("b", 120.0))]
    >>> found = optimum(jobs, [Node("n", 2, cost_per_s=(0.0, 3.0, 4.0))], 0.0)
    >>> sorted(found.allocation.placements.items()), found.value    # b is 30 s late, and a costs 80 s · 3
    ([('a', Placement(node='n', devices=1)), ('b', Placement(node='n', devices=1))], 270.0)
    """
    options = [
        _Option(j, n, one)
        for j, job in enumerate(jobs)
        for n, node in enumerate(nodes)
        for one in configurations(job, node, now_s)
    ]
    chosen = _solve(options, jobs, nodes, now_s, rho, period_s, every_node) if options else []
    placements = {jobs[one.job].name: Placement(nodes[one.node].name, one.configuration.devices) for one in chosen}
    return Optimum(Allocation(placements), objective(placements, jobs, nodes, now_s, rho, period_s))


def _solve(
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
    ]  # beside being postponed: a constant less in the objective
    first = [one.configuration.cost for one in options]
    rows = _Rows(2 * len(options))
    _capacity(rows, options, jobs, nodes)
    _first_ending(rows, options, len(nodes))
    if every_node:
        used = min(len(nodes), len(jobs))
        rows.add({len(options) + o: 1.0 for o in range(len(options))}, used, used)  # (4n)
    else:
        _nobody_waits_in_vain(rows, options, jobs, nodes)
    found = milp(
        np.array(runs + first),
        integrality=np.ones(2 * len(options), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(rows.matrix(), rows.lower, rows.upper),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise ImpossibleAllocationError(f"no schedule of {len(jobs)} jobs on {len(nodes)} nodes: {found.message}")
    return [one for one, chosen in zip(options, found.x, strict=False) if chosen > 0.5]


class _Rows:
    """Linear constraints, one by one."""

    def __init__(self, columns: int) -> None:
        self.lower: list[float] = []
        self.upper: list[float] = []
        self._columns = columns
        self._rows: list[dict[int, float]] = []

    def add(self, row: dict[int, float], lower: float, upper: float) -> None:
        self._rows.append(row)
        self.lower.append(lower)
        self.upper.append(upper)

    def matrix(self) -> NDArray[float64]:
        import numpy as np

        full = np.zeros((len(self._rows), self._columns))
        for number, row in enumerate(self._rows):
            full[number, list(row)] = list(row.values())
        return full


def _capacity(rows: _Rows, options: Sequence[_Option], jobs: Sequence[ClusterJob], nodes: Sequence[Node]) -> None:
    """A job has one configuration at most (4a)-(4e), a node gives out what it has (4f)-(4h)."""
    for j in range(len(jobs)):
        rows.add({o: 1.0 for o, one in enumerate(options) if one.job == j}, 0, 1)
    for n, node in enumerate(nodes):
        rows.add(
            {o: float(one.configuration.devices) for o, one in enumerate(options) if one.node == n}, 0, node.devices
        )


def _first_ending(rows: _Rows, options: Sequence[_Option], nodes: int) -> None:
    """One job is the first on a node in use, (4l) and (4m), and none that runs there ends before it."""
    inf, alpha = float("inf"), len(options)
    for n in range(nodes):
        here = [o for o, one in enumerate(options) if one.node == n]
        rows.add({alpha + o: 1.0 for o in here}, 0, 1)
        for o in here:
            rows.add({o: 1.0, alpha + o: -1.0}, 0, inf)
            rows.add({o: -1.0, **{alpha + other: 1.0 for other in here}}, 0, inf)
            for job in {options[other].job for other in here} - {options[o].job}:
                before = {
                    other: 1.0
                    for other in here
                    if options[other].job == job
                    and options[other].configuration.seconds < options[o].configuration.seconds
                }
                if before:
                    rows.add({alpha + o: 1.0, **before}, 0, 1)


def _nobody_waits_in_vain(
    rows: _Rows, options: Sequence[_Option], jobs: Sequence[ClusterJob], nodes: Sequence[Node]
) -> None:
    """Where a job that is postponed could run, too few devices are left."""
    inf = float("inf")
    for n, node in enumerate(nodes):
        given = {o: float(one.configuration.devices) for o, one in enumerate(options) if one.node == n}
        for j in range(len(jobs)):
            least = min((options[o].configuration.devices for o in given if options[o].job == j), default=0)
            if least:
                needed = node.devices - least + 1
                row = dict(given)
                for o, one in enumerate(options):
                    if one.job == j:  # it runs, here or elsewhere: nothing is demanded
                        row[o] = row.get(o, 0.0) + needed
                rows.add(row, needed, inf)
