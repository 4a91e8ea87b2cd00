"""Solver of the rolling-horizon problem: tries prices first, then HiGHS if the remaining gap is too large."""

from __future__ import annotations

from math import inf
from typing import Literal, TypeAlias

from paceline.allocate.modelarts._highs import plan_with_highs
from paceline.allocate.modelarts._prices import plan_with_prices
from paceline.allocate.modelarts.horizon import HorizonPlan, HorizonProblem, Ints

Solver: TypeAlias = Literal["auto", "prices", "highs"]


# Variables (jobs x steps x allowed counts) up to which "auto" runs HiGHS: the first relaxation of 25,000 of them takes
# about a second. The rule counts variables, not seconds, so that equal problems have equal plans on every machine.
_MAX_VARIABLES = 25_000


def solve(
    problem: HorizonProblem, solver: Solver = "auto", gap: float = 0.0, max_relaxations: int = 100
) -> HorizonPlan:
    """Return a plan that is, if possible, proven to be within ``gap`` of the best plan.

    ``"auto"`` runs HiGHS only if prices leave a wider gap and the problem has at most 25,000 variables. It returns the
    better plan, and the smaller of the two upper bounds. The gap may remain wider: Lagrangian relaxation has a duality
    gap, and HiGHS may reach its limit of ``max_relaxations``. No limit is a duration, so equal problems have equal
    plans.
    """
    choice: Ints | None = None
    value, bound, used_solver = -inf, inf, "prices"
    if solver != "highs":
        choice, bound = plan_with_prices(problem, gap)
        value = problem.value(choice)
    small = problem.progress.size * problem.steps <= _MAX_VARIABLES
    if solver == "highs" or (solver == "auto" and small and bound > value * (1.0 + gap)):
        other, other_bound = plan_with_highs(problem, gap, max_relaxations)
        bound = min(bound, other_bound)
        if other is not None and (choice is None or problem.value(other) > value):
            choice, value, used_solver = other, problem.value(other), "highs"
    if choice is None:  # HiGHS found no plan within its limit
        choice, other_bound = plan_with_prices(problem, gap)
        value, bound = problem.value(choice), min(bound, other_bound)
    return HorizonPlan(problem.devices(choice), problem.done(choice), value, max(bound, value), used_solver)
