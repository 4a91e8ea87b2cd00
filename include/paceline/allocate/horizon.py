"""The planning problem of the rolling horizon: who has how many devices in each of the next steps.

:mod:`paceline.allocate.rolling_horizon` builds it; :mod:`paceline.allocate.prices` and HiGHS solve it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.allocate.model import Job, Speeds

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Solver: TypeAlias = Literal["auto", "prices", "highs"]


@dataclass(frozen=True)
class Problem:
    """Formulation 4.4 of Hu et al. 2021, with demands scaled to 1.

    A plan gives job i in step t the count ``counts[i, choice[i, t]]``. Its value is the sum over jobs and steps of the
    share that is done of what a job has left, at the end of the step: s_i^t / d_i.

    Parameters
    ----------
    counts:
        Legal numbers of devices, a row for each job, ascending; shorter rows repeat their last.
    progress:
        The share of what the job has left that one step on so many does, at most 1.
    sizes:
        How many legal numbers each job has.
    capacity:
        Devices in the pool, at least the sum of the smallest numbers.
    steps:
        How many steps are planned.
    """

    counts: Ints
    progress: Floats
    sizes: Ints
    capacity: int
    steps: int

    @classmethod
    def of(cls, jobs: Sequence[Job], kind: str, capacity: int, now_s: float, steps: int, period_s: float) -> Problem:
        """The problem of these jobs, each of which can use at least its smallest number."""
        legal: dict[int, tuple[int, ...]] = {}
        for job in jobs:
            speeds = job.speeds[kind]
            if id(speeds) not in legal:
                legal[id(speeds)] = tuple(count for count in speeds.useful if count <= capacity)
        widest = max((len(counts) for counts in legal.values()), default=1)

        def padded(speeds: Speeds) -> tuple[list[int], list[float]]:
            known = legal[id(speeds)]
            row = [*known, *[known[-1]] * (widest - len(known))]
            return row, [period_s * speeds.at(count) for count in row]

        rows = {id(job.speeds[kind]): padded(job.speeds[kind]) for job in jobs}
        counts = np.array([rows[id(job.speeds[kind])][0] for job in jobs], dtype=np.int64).reshape(len(jobs), widest)
        work = np.array([rows[id(job.speeds[kind])][1] for job in jobs], dtype=np.float64).reshape(len(jobs), widest)
        left = np.array([job.left(now_s) for job in jobs], dtype=np.float64)[:, None]
        # A job of which nothing is left, as estimated, but which has not ended, is done with the next step.
        progress = np.minimum(1.0, np.divide(work, left, out=np.ones_like(work), where=left > 0))
        sizes = np.array([len(legal[id(job.speeds[kind])]) for job in jobs], dtype=np.int64)
        return cls(counts, progress, sizes, capacity, steps)

    @cached_property
    def near(self) -> NDArray[np.bool_]:
        """Which jobs can end within the horizon. For all others the steps are independent of each other."""
        return np.asarray(self.progress[:, -1] * self.steps > 1.0) if len(self.sizes) else np.zeros(0, dtype=np.bool_)

    @cached_property
    def weights(self) -> Floats:
        """How often progress in a step is counted: in this step and in all after it."""
        return np.arange(self.steps, 0, -1, dtype=np.float64)

    def devices(self, choice: Ints) -> Ints:
        """The numbers of devices that a plan gives out, job by step."""
        return np.take_along_axis(self.counts, choice, axis=1)

    def done(self, choice: Ints) -> Floats:
        """The share of each job that is done after each step."""
        return np.minimum(np.cumsum(np.take_along_axis(self.progress, choice, axis=1), axis=1), 1.0)

    def value(self, choice: Ints) -> float:
        """The objective (1)."""
        return float(self.done(choice).sum())


@dataclass(frozen=True)
class Plan:
    """A plan, what it is worth, and what no plan can be worth more than.

    Parameters
    ----------
    devices:
        So many for each job (row) in each step (column).
    done:
        The share of each job that is done after each step.
    value, bound:
        The objective of this plan, and a proven upper bound on that of every plan.
    solver:
        Who found it.
    """

    devices: Ints
    done: Floats
    value: float
    bound: float
    solver: str

    @property
    def gap(self) -> float:
        """By how much the best plan may be better, as a share of the value of this one."""
        return 0.0 if self.bound <= self.value else (self.bound - self.value) / self.value


def solve(problem: Problem, solver: Solver = "auto", gap: float = 0.0, time_limit_s: float = inf) -> Plan:
    """The best plan, or one that is proven to be within ``gap`` of it.

    ``"auto"`` asks for prices first and HiGHS only when these leave a wider gap; then the better plan counts, and the
    lower bound on top. Either may end with a wider gap: prices because there is none smaller, HiGHS at its time limit.
    """
    from paceline.allocate.prices import by_prices

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
    return Plan(problem.devices(choice), problem.done(choice), value, max(bound, value), found)


def by_highs(problem: Problem, gap: float, time_limit_s: float) -> tuple[Ints | None, float]:
    """The plan of HiGHS, if it found one in time, and its bound.

    One binary for each (job, step, legal number): the delta- + delta+ - 1 of the paper, of which for each (job, step)
    exactly one is 1. That says the same as constraints (16) to (18) without their big M. The progress of jobs that
    cannot end within the horizon is linear in them; the others have a variable for what is done after each step.
    """
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    jobs, steps, widest = len(problem.sizes), problem.steps, problem.counts.shape[1]
    if jobs == 0:
        return np.zeros((0, steps), dtype=np.int64), 0.0
    near = np.flatnonzero(problem.near)
    chosen, shares = jobs * steps * widest, len(near) * steps
    gains = problem.weights[None, :, None] * problem.progress[:, None, :]
    gains[near] = 0.0
    objective = np.concatenate([-gains.ravel(), -np.ones(shares)])
    legal = np.arange(widest)[None, None, :] < problem.sizes[:, None, None]
    upper = np.concatenate([np.broadcast_to(legal, (jobs, steps, widest)).ravel().astype(np.float64), np.ones(shares)])

    variable = np.arange(chosen).reshape(jobs, steps, widest)
    one = sparse.csr_matrix(
        (np.ones(chosen), (np.repeat(np.arange(jobs * steps), widest), variable.ravel())),
        shape=(jobs * steps, chosen + shares),
    )
    pool = sparse.csr_matrix(
        (
            np.broadcast_to(problem.counts[:, None, :], variable.shape).ravel().astype(np.float64),
            (np.broadcast_to(np.arange(steps)[None, :, None], variable.shape).ravel(), variable.ravel()),
        ),
        shape=(steps, chosen + shares),
    )
    constraints = [LinearConstraint(one, 1.0, 1.0), LinearConstraint(pool, -np.inf, float(problem.capacity))]
    if len(near):
        # (19) and (20): done after this step - done after the last one - progress in this step <= 0
        row = np.arange(shares).reshape(len(near), steps)
        share = chosen + row
        by_count = np.broadcast_to(row[:, :, None], (len(near), steps, widest))
        progress = np.broadcast_to(problem.progress[near][:, None, :], by_count.shape)
        grow = sparse.csr_matrix(
            (
                np.concatenate([np.ones(shares), -np.ones(len(near) * (steps - 1)), -progress.ravel()]),
                (
                    np.concatenate([row.ravel(), row[:, 1:].ravel(), by_count.ravel()]),
                    np.concatenate([share.ravel(), share[:, :-1].ravel(), variable[near].ravel()]),
                ),
            ),
            shape=(shares, chosen + shares),
        )
        constraints.append(LinearConstraint(grow, -np.inf, 0.0))
    result = milp(
        objective,
        constraints=constraints,
        integrality=np.concatenate([np.ones(chosen), np.zeros(shares)]),
        bounds=Bounds(np.zeros(chosen + shares), upper),
        options={"mip_rel_gap": gap, "time_limit": time_limit_s},
    )
    bound = inf if result.mip_dual_bound is None else -float(result.mip_dual_bound)
    if result.x is None:
        return None, bound
    return np.asarray(result.x[:chosen].reshape(variable.shape).argmax(axis=2), dtype=np.int64), bound
