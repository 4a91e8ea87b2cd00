"""The best plan of the rolling horizon: by prices if their gap is small enough, else by HiGHS."""

from __future__ import annotations

from math import inf
from typing import Literal, TypeAlias

from paceline.allocate.modelarts.highs import by_highs
from paceline.allocate.modelarts.horizon import HorizonPlan, HorizonProblem, Ints
from paceline.allocate.modelarts.prices import by_prices

Solver: TypeAlias = Literal["auto", "prices", "highs"]


def solve(problem: HorizonProblem, solver: Solver = "auto", gap: float = 0.0, time_limit_s: float = inf) -> HorizonPlan:
    """Return a plan that is proven to be within ``gap`` of the best.

    ``"auto"`` runs HiGHS only if prices leave a wider gap, and returns the better plan with the lower bound. Both may
    leave a wider gap: prices because the relaxation has one, HiGHS at its time limit.
    """
    choice: Ints | None = None
    value, bound, found = -inf, inf, "prices"
    if solver != "highs":
        choice, bound = by_prices(problem, gap)
        value = problem.value(choice)
    if solver == "highs" or (solver == "auto" and bound > value * (1.0 + gap)):
        other, other_bound = by_highs(problem, gap, time_limit_s)
        bound = min(bound, other_bound)
        if other is not None and (choice is None or problem.value(other) > value):
            choice, value, found = other, problem.value(other), "highs"
    if choice is None:  # HiGHS found no plan in time
        choice, other_bound = by_prices(problem, gap)
        value, bound = problem.value(choice), min(bound, other_bound)
    return HorizonPlan(problem.devices(choice), problem.done(choice), value, max(bound, value), found)
