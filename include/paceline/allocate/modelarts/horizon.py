"""The planning problem of the rolling horizon: the allocation of each job in each of the next steps.

The module ``_rolling_horizon`` builds the problem, and ``solver`` solves it with prices or HiGHS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.allocate._model import ClusterJob
from paceline.allocate._speeds import Speeds

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class HorizonProblem:
    """Formulation 4.4 of Hu et al. 2021, with demands scaled to 1.

    A plan allocates ``counts[i, choice[i, t]]`` devices to job i in step t. Its value is the sum, over jobs and steps,
    of the fraction of the job's remaining work that is done by the end of the step: s_i^t / d_i.

    Parameters
    ----------
    counts:
        Allowed device counts in ascending order, one row per job; shorter rows repeat their last number.
    progress:
        Fraction of the job's remaining work that one step completes on each of ``counts``, at most 1.
    sizes:
        Number of allowed device counts of each job.
    capacity:
        Number of devices in the pool, at least the sum of the jobs' smallest allowed counts.
    steps:
        Number of planned steps.
    """

    counts: Ints
    progress: Floats
    sizes: Ints
    capacity: int
    steps: int

    @classmethod
    def for_jobs(
        cls, jobs: Sequence[ClusterJob], kind: str, capacity: int, now_s: float, steps: int, period_s: float
    ) -> HorizonProblem:
        """Return the problem for jobs whose smallest allowed counts fit into ``capacity``."""
        legal: dict[int, tuple[int, ...]] = {}
        for job in jobs:
            speeds = job.speeds[kind]
            if id(speeds) not in legal:
                legal[id(speeds)] = tuple(count for count in speeds.useful if count <= capacity)
        widest = max((len(counts) for counts in legal.values()), default=1)

        def padded_row(speeds: Speeds) -> tuple[list[int], list[float]]:
            known = legal[id(speeds)]
            row = [*known, *[known[-1]] * (widest - len(known))]
            return row, [period_s * speeds.at(count) for count in row]

        rows = {id(job.speeds[kind]): padded_row(job.speeds[kind]) for job in jobs}
        counts = np.array([rows[id(job.speeds[kind])][0] for job in jobs], dtype=np.int64).reshape(len(jobs), widest)
        work = np.array([rows[id(job.speeds[kind])][1] for job in jobs], dtype=np.float64).reshape(len(jobs), widest)
        left = np.array([job.work_left(now_s) for job in jobs], dtype=np.float64)[:, None]
        # A running job without estimated remaining work ends in the next step.
        progress = np.divide(work, left, out=np.ones_like(work), where=left > work)
        sizes = np.array([len(legal[id(job.speeds[kind])]) for job in jobs], dtype=np.int64)
        return cls(counts, progress, sizes, capacity, steps)

    @cached_property
    def near(self) -> NDArray[np.bool_]:
        """Mask of the jobs that can end within the horizon; for all other jobs, the steps are independent."""
        return np.asarray(self.progress[:, -1] * self.steps > 1.0) if len(self.sizes) else np.zeros(0, dtype=np.bool_)

    @cached_property
    def weights(self) -> Floats:
        """Weight of the progress in each step: the number of steps from this step to the last."""
        return np.arange(self.steps, 0, -1, dtype=np.float64)

    def devices(self, choice: Ints) -> Ints:
        """Return the devices of each job (row) in each step (column) of a plan."""
        return np.take_along_axis(self.counts, choice, axis=1)

    def done(self, choice: Ints) -> Floats:
        """Return the fraction of each job's remaining work that is done after each step."""
        return np.minimum(np.cumsum(np.take_along_axis(self.progress, choice, axis=1), axis=1), 1.0)

    def value(self, choice: Ints) -> float:
        """Return the value of a plan: objective (1)."""
        return float(self.done(choice).sum())


@dataclass(frozen=True)
class HorizonPlan:
    """A plan, its value, and an upper bound on the value of every plan.

    Parameters
    ----------
    devices:
        Devices of each job (row) in each step (column).
    done:
        Fraction of each job's remaining work that is done after each step.
    value, bound:
        The objective of this plan, and a proven upper bound on the objective of every plan.
    solver:
        ``"prices"`` or ``"highs"``, the solver that found the plan.
    """

    devices: Ints
    done: Floats
    value: float
    bound: float
    solver: str

    @property
    def gap(self) -> float:
        """Largest possible improvement by another plan, as a fraction of ``value``."""
        return 0.0 if self.bound <= self.value else (self.bound - self.value) / self.value
