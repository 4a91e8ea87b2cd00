"""The planning problem of the rolling horizon: who has how many devices in each of the next steps.

``rolling_horizon`` builds it; ``solver`` solves it, by prices or with HiGHS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.allocate.model import ClusterJob, Speeds

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class HorizonProblem:
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
    def of(
        cls, jobs: Sequence[ClusterJob], kind: str, capacity: int, now_s: float, steps: int, period_s: float
    ) -> HorizonProblem:
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
class HorizonPlan:
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
