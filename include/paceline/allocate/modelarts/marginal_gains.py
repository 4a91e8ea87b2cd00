"""Turns a plan that gives out too much into one that fits, and makes it better by the gain of each device."""

from __future__ import annotations

import numpy as np

from paceline.allocate.modelarts.horizon import Floats, HorizonProblem, Ints

_NOTHING = 1e-12  # a smaller gain is rounding


class MarginalGains:
    """A plan, and what it would gain or lose if one job had another number in one step.

    Parameters
    ----------
    problem:
        What is planned.
    choice:
        The plan to begin with; it may give out more than there is.
    """

    def __init__(self, problem: HorizonProblem, choice: Ints) -> None:
        self._problem = problem
        self.choice = choice.copy()
        self.free: Ints = problem.capacity - problem.devices(choice).sum(axis=0)
        jobs, steps, widest = len(problem.sizes), problem.steps, problem.counts.shape[1]
        self.gain: Floats = np.empty((jobs, steps, widest))
        self.need: Ints = np.empty((jobs, steps, widest), dtype=np.int64)
        self._later = np.triu(np.ones((steps, steps)))  # a change in a step shows in this one and in all after it
        self._look(np.arange(jobs))

    def _look(self, rows: Ints) -> None:
        problem, choice = self._problem, self.choice[rows]
        progress, counts = problem.progress[rows], problem.counts[rows]
        now = np.take_along_axis(progress, choice, axis=1)
        done = np.cumsum(now, axis=1)
        change = progress[:, None, :] - now[:, :, None]
        then = np.minimum(done[:, None, None, :] + change[..., None], 1.0) - np.minimum(done, 1.0)[:, None, None, :]
        self.gain[rows] = np.einsum("jtku,tu->jtk", then, self._later)
        self.need[rows] = counts[:, None, :] - np.take_along_axis(counts, choice, axis=1)[:, :, None]

    def _change(self, job: int, step: int, size: int) -> None:
        self.free[step] -= self.need[job, step, size]
        self.choice[job, step] = size
        self._look(np.array([job]))

    def fit(self) -> MarginalGains:
        """Take devices away where too many are given out: where each of them is missed least."""
        while (self.free < 0).any():
            over = -self.free[None, :, None]
            possible = (self.need < 0) & (over > 0)
            useful = np.where(possible, np.minimum(-self.need, over), 1)  # to free more than is missing is no merit
            loss = np.where(possible, -self.gain / useful, np.inf)
            self._change(*_place(int(loss.argmin()), loss.shape))
        return self

    def fill(self) -> MarginalGains:
        """Give out what is free, where each device gains most."""
        while True:
            possible = (self.need > 0) & (self.need <= self.free[None, :, None]) & (self.gain > _NOTHING)
            rate = np.where(possible, self.gain / np.where(possible, self.need, 1), 0.0)
            best = int(rate.argmax()) if rate.size else 0
            if not rate.size or rate.flat[best] <= 0.0:
                return self
            self._change(*_place(best, rate.shape))


def _place(flat: int, shape: tuple[int, ...]) -> tuple[int, int, int]:
    job, rest = divmod(flat, shape[1] * shape[2])
    return job, *divmod(rest, shape[2])
