"""Rolling-horizon plans by Lagrangian relaxation, with a price per device in each step.

At given prices, every job chooses its plan independently; these choices yield an upper bound on the value of any plan.
At prices with a small bound, the chosen plans nearly fit the capacity; ``_marginal_gains`` repairs the excess.
"""

from __future__ import annotations

from math import inf

import numpy as np

from paceline.allocate.modelarts._marginal_gains import MarginalGains
from paceline.allocate.modelarts.horizon import Floats, HorizonProblem, Ints

_MAX_PLANS = 20_000  # maximum per job; enough for seven allowed counts in five steps
_BISECTION_STEPS, _SUBGRADIENT_STEPS = 14, 100


def plan_with_prices(problem: HorizonProblem, gap: float) -> tuple[Ints, float]:
    """Return a plan, and a proven upper bound on the value of every plan; the bound may be infinite.

    The search moves the prices along the subgradient (the free devices in each step) with Polyak's step length. The
    search ends when the bound is within ``gap`` of the plan, or stops decreasing.
    """
    jobs, capacity, weights = JobPlanner(problem), problem.capacity, problem.weights
    best: Ints = np.zeros((len(problem.sizes), problem.steps), dtype=np.int64)
    value = problem.value(best)
    if not best.size:
        return best, 0.0

    # Initial prices are proportional to the weights of the steps; bisection finds the factor.
    bound, prices = inf, np.zeros(problem.steps)
    low, high = 0.0, float((problem.progress[:, 0] / problem.counts[:, 0]).max())
    for _ in range(_BISECTION_STEPS):
        scale = (low + high) / 2
        worth, choice = jobs.choose(scale * weights)
        if worth < bound:
            bound, prices, nearest = worth, scale * weights, choice
        spare = float(weights @ (capacity - problem.devices(choice).sum(axis=0)))
        low, high = (low, scale) if spare > 0 else (scale, high)
    best, value = max((best, value), _repaired_plan(problem, nearest), key=lambda candidate: candidate[1])

    trial, length, idle = prices, 1.0, 0
    for number in range(_SUBGRADIENT_STEPS):
        if bound <= value * (1.0 + gap) or length < 1e-3:
            break
        worth, choice = jobs.choose(trial)
        free = capacity - problem.devices(choice).sum(axis=0)
        if worth < bound * (1.0 - 1e-9):
            bound, prices, idle = worth, trial, 0
        elif (idle := idle + 1) >= 5:
            trial, length, idle = prices, length / 2, 0
            continue
        if number % 10 == 5:
            best, value = max((best, value), _repaired_plan(problem, choice), key=lambda candidate: candidate[1])
        slope = weights * free
        if not slope.any():
            break
        trial = np.maximum(0.0, trial - length * max(0.0, worth - value) / float(slope @ slope) * weights * slope)
    return best, bound if jobs.exact else inf


def _repaired_plan(problem: HorizonProblem, choice: Ints) -> tuple[Ints, float]:
    fitted = MarginalGains(problem, choice).fit().fill().choice
    return fitted, problem.value(fitted)


class JobPlanner:
    """Planner that finds the best plan of each job at given prices.

    If a job cannot end within the horizon, its steps are independent. For all other jobs, the planner enumerates the
    plans that can be optimal: in the step in which it ends, a job uses the smallest number of devices that suffices;
    in later steps, it keeps its smallest allowed count.
    """

    def __init__(self, problem: HorizonProblem) -> None:
        self._problem = problem
        self._far, self._near = np.flatnonzero(~problem.near), np.flatnonzero(problem.near)
        self._gains = problem.weights[None, :, None] * problem.progress[self._far][:, None, :]
        self._needs = problem.counts[self._far][:, None, :].astype(np.float64)
        columns, self.exact = self._enumerated_columns()
        self._enumerate_plans(columns)

    def _enumerated_columns(self) -> tuple[Ints, bool]:
        """Return the allowed counts to enumerate, in ascending order, and whether these include all allowed counts."""
        problem = self._problem
        limit = max(2, int(_MAX_PLANS ** (1 / problem.steps) + 1e-9))
        sizes = problem.sizes[self._near]
        widest = int(min(limit, sizes.max(initial=1)))
        columns = np.minimum(np.arange(widest)[None, :], sizes[:, None] - 1)
        for row in np.flatnonzero(sizes > limit):
            selected = np.unique(np.geomspace(1, sizes[row], widest).round().astype(np.int64)) - 1
            columns[row] = selected[np.minimum(np.arange(widest), len(selected) - 1)]
        return columns, bool((sizes <= limit).all())

    def _enumerate_plans(self, columns: Ints) -> None:
        problem, steps, widest = self._problem, self._problem.steps, columns.shape[1]
        progress = np.take_along_axis(problem.progress[self._near], columns, axis=1)
        fresh = np.ones(columns.shape, dtype=np.bool_)
        fresh[:, 1:] = columns[:, 1:] > columns[:, :-1]
        job = np.arange(len(self._near))
        done, value, plan = np.zeros(len(job)), np.zeros(len(job)), np.zeros((len(job), 0), dtype=np.int64)
        ended: list[tuple[Ints, Floats, Ints]] = []
        for step in range(steps):
            before, size = np.repeat(np.arange(len(job)), widest), np.tile(np.arange(widest), len(job))
            owner = job[before]
            then = done[before] + progress[owner, size]
            smaller = done[before] + progress[owner, np.maximum(size - 1, 0)]
            kept = fresh[owner, size] & ((size == 0) | (smaller < 1.0))
            before, size, owner, then = before[kept], size[kept], owner[kept], then[kept]
            worth = value[before] + np.minimum(then, 1.0)
            path = np.concatenate([plan[before], columns[owner, size][:, None]], axis=1)
            over = then >= 1.0
            rest = np.zeros((int(over.sum()), steps - step - 1), dtype=np.int64)
            ended.append((owner[over], worth[over] + rest.shape[1], np.concatenate([path[over], rest], axis=1)))
            job, done, value, plan = owner[~over], then[~over], worth[~over], path[~over]
        ended.append((job, value, plan))
        owner = np.concatenate([each[0] for each in ended])
        order = np.argsort(owner, kind="stable")
        owner = owner[order]
        self._value = np.concatenate([each[1] for each in ended])[order]
        self._plan = np.concatenate([each[2] for each in ended])[order]
        self._cost = problem.counts[self._near][owner[:, None], self._plan].astype(np.float64)
        self._start = np.searchsorted(owner, np.arange(len(self._near)))
        self._number = np.diff(self._start, append=len(owner))

    def choose(self, prices: Floats) -> tuple[float, Ints]:
        """Return the upper bound at these prices, and the choices of the jobs that attain the bound."""
        problem = self._problem
        choice = np.zeros((len(problem.sizes), problem.steps), dtype=np.int64)
        bound = problem.capacity * float(prices.sum())
        if len(self._far):
            net = self._gains - prices[None, :, None] * self._needs
            choice[self._far] = net.argmax(axis=2)
            bound += float(net.max(axis=2).sum())
        if len(self._near):
            net = self._value - self._cost @ prices
            best = np.maximum.reduceat(net, self._start)
            bound += float(best.sum())
            reached = np.flatnonzero(net >= np.repeat(best, self._number))
            choice[self._near] = self._plan[reached[np.searchsorted(reached, self._start)]]
        return bound, choice
