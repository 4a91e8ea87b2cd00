"""Plans by prices: the pool becomes a market with one price for a device in each step (Lagrangian relaxation).

At given prices every job chooses its plan by itself, and what all of them gain together bounds every plan from above.
Prices that make the bound small make the choices nearly fit; ``marginal_gains`` does the rest.
"""

from __future__ import annotations

from math import inf

import numpy as np

from paceline.allocate.modelarts.horizon import Floats, HorizonProblem, Ints
from paceline.allocate.modelarts.marginal_gains import MarginalGains

_PLANS = 20_000  # of one job, at most: all that seven legal numbers allow in five steps
_HALVINGS, _ROUNDS = 14, 100


def by_prices(problem: HorizonProblem, gap: float) -> tuple[Ints, float]:
    """A plan and a bound on the value of every plan, infinite if none was found.

    Prices are sought with steps of Polyak's length along the subgradient (what is free in each step). It ends when the
    bound is within ``gap`` of the plan, or when the bound does not get smaller any more.
    """
    jobs, capacity, weights = Jobs(problem), problem.capacity, problem.weights
    best: Ints = np.zeros((len(problem.sizes), problem.steps), dtype=np.int64)
    value = problem.value(best)
    if not best.size:
        return best, 0.0

    # To begin with, prices in proportion to how often progress counts: one number, found by halving.
    bound, prices = inf, np.zeros(problem.steps)
    low, high = 0.0, float((problem.progress[:, 0] / problem.counts[:, 0]).max())
    for _ in range(_HALVINGS):
        scale = (low + high) / 2
        worth, choice = jobs.choose(scale * weights)
        if worth < bound:
            bound, prices, nearest = worth, scale * weights, choice
        spare = float(weights @ (capacity - problem.devices(choice).sum(axis=0)))
        low, high = (low, scale) if spare > 0 else (scale, high)
    best, value = max((best, value), _improved(problem, nearest), key=lambda found: found[1])

    trial, length, idle = prices, 1.0, 0
    for number in range(_ROUNDS):
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
            best, value = max((best, value), _improved(problem, choice), key=lambda found: found[1])
        slope = weights * free
        if not slope.any():
            break
        trial = np.maximum(0.0, trial - length * max(0.0, worth - value) / float(slope @ slope) * weights * slope)
    return best, bound if jobs.exact else inf


def _improved(problem: HorizonProblem, choice: Ints) -> tuple[Ints, float]:
    fitted = MarginalGains(problem, choice).fit().fill().choice
    return fitted, problem.value(fitted)


class Jobs:
    """What each job chooses at given prices.

    Those that cannot end within the horizon choose in each step for itself. For those that can, all plans are listed
    that could ever be best: once a job has ended it keeps its smallest number, and the number with which it ends is
    the smallest that does it.
    """

    def __init__(self, problem: HorizonProblem) -> None:
        self._problem = problem
        self._far, self._near = np.flatnonzero(~problem.near), np.flatnonzero(problem.near)
        self._gains = problem.weights[None, :, None] * problem.progress[self._far][:, None, :]
        self._needs = problem.counts[self._far][:, None, :].astype(np.float64)
        columns, self.exact = self._columns()
        self._list(columns)

    def _columns(self) -> tuple[Ints, bool]:
        """Which of the legal numbers are planned with: all, or as many as can be listed, from small to large."""
        problem = self._problem
        most = max(2, int(_PLANS ** (1 / problem.steps) + 1e-9))
        sizes = problem.sizes[self._near]
        widest = int(min(most, sizes.max(initial=1)))
        columns = np.minimum(np.arange(widest)[None, :], sizes[:, None] - 1)
        for row in np.flatnonzero(sizes > most):
            some = np.unique(np.geomspace(1, sizes[row], widest).round().astype(np.int64)) - 1
            columns[row] = some[np.minimum(np.arange(widest), len(some) - 1)]
        return columns, bool((sizes <= most).all())

    def _list(self, columns: Ints) -> None:
        problem, steps, widest = self._problem, self._problem.steps, columns.shape[1]
        progress = np.take_along_axis(problem.progress[self._near], columns, axis=1)
        fresh = np.ones(columns.shape, dtype=np.bool_)
        fresh[:, 1:] = columns[:, 1:] > columns[:, :-1]
        job = np.arange(len(self._near))
        done, value, plan = np.zeros(len(job)), np.zeros(len(job)), np.zeros((len(job), 0), dtype=np.int64)
        ended: list[tuple[Ints, Floats, Ints]] = []
        for step in range(steps):
            before, size = np.repeat(np.arange(len(job)), widest), np.tile(np.arange(widest), len(job))
            who = job[before]
            then = done[before] + progress[who, size]
            less = done[before] + progress[who, np.maximum(size - 1, 0)]
            kept = fresh[who, size] & ((size == 0) | (less < 1.0))
            before, size, who, then = before[kept], size[kept], who[kept], then[kept]
            worth = value[before] + np.minimum(then, 1.0)
            path = np.concatenate([plan[before], columns[who, size][:, None]], axis=1)
            over = then >= 1.0
            rest = np.zeros((int(over.sum()), steps - step - 1), dtype=np.int64)
            ended.append((who[over], worth[over] + rest.shape[1], np.concatenate([path[over], rest], axis=1)))
            job, done, value, plan = who[~over], then[~over], worth[~over], path[~over]
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
        """The bound at these prices, and the plans with which the jobs reach it."""
        problem = self._problem
        choice = np.zeros((len(problem.sizes), problem.steps), dtype=np.int64)
        bound = problem.capacity * float(prices.sum())
        if len(self._far):
            left = self._gains - prices[None, :, None] * self._needs
            choice[self._far] = left.argmax(axis=2)
            bound += float(left.max(axis=2).sum())
        if len(self._near):
            left = self._value - self._cost @ prices
            most = np.maximum.reduceat(left, self._start)
            bound += float(most.sum())
            reached = np.flatnonzero(left >= np.repeat(most, self._number))
            choice[self._near] = self._plan[reached[np.searchsorted(reached, self._start)]]
        return bound, choice
