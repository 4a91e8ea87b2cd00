"""The best plan of the rolling horizon: by prices where these settle it, by HiGHS where they do not."""

from __future__ import annotations

from math import inf
from typing import Literal, TypeAlias

from paceline.allocate.modelarts.highs import by_highs
from paceline.allocate.modelarts.horizon import HorizonPlan, HorizonProblem, Ints
from paceline.allocate.modelarts.prices import by_prices

Solver: TypeAlias = Literal["auto", "prices", "highs"]


def solve(problem: HorizonProblem, solver: Solver = "auto", gap: float = 0.0, time_limit_s: float = inf) -> HorizonPlan:
    """The best plan, or one that is proven to be within ``gap`` of it.

    ``"auto"`` asks for prices first and HiGHS only when these leave a wider gap; then the better plan counts, and the
    lower bound on top. Either may end with a wider gap: prices because there is none smaller, HiGHS at its time limit.
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
    if choice is None:  # HiGHS had too little time for any plan
        choice, other_bound = by_prices(problem, gap)
        value, bound = problem.value(choice), min(bound, other_bound)
    return HorizonPlan(problem.devices(choice), problem.done(choice), value, max(bound, value), found)
