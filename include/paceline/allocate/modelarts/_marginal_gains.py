"""Repair of plans that exceed the capacity of the pool, and improvement of plans by marginal gains per device."""

from __future__ import annotations

import numpy as np

from paceline.allocate.modelarts.horizon import Floats, HorizonProblem, Ints

_MIN_GAIN = 1e-12  # smaller gains are rounding errors


class MarginalGains:
    """A plan, and the change in its value for every possible change of one job's devices in one step.

    Parameters
    ----------
    problem:
        The planning problem.
    choice:
        The initial plan; it may exceed the capacity.
    """

    def __init__(self, problem: HorizonProblem, choice: Ints) -> None:
        self._problem = problem
        self.choice = choice.copy()
        self.free: Ints = problem.capacity - problem.devices(choice).sum(axis=0)
        jobs, steps, widest = len(problem.sizes), problem.steps, problem.counts.shape[1]
        self.gain: Floats = np.empty((jobs, steps, widest))
        self.need: Ints = np.empty((jobs, steps, widest), dtype=np.int64)
        self._later = np.triu(np.ones((steps, steps)))  # a change in one step affects this and all later steps
        self._update_gains(np.arange(jobs))

    def _update_gains(self, rows: Ints) -> None:
        problem, choice = self._problem, self.choice[rows]
        progress, counts = problem.progress[rows], problem.counts[rows]
        now = np.take_along_axis(progress, choice, axis=1)
        done = np.cumsum(now, axis=1)
        change = progress[:, None, :] - now[:, :, None]
        then = np.minimum(done[:, None, None, :] + change[..., None], 1.0) - np.minimum(done, 1.0)[:, None, None, :]
        self.gain[rows] = np.einsum("jtku,tu->jtk", then, self._later)
        self.need[rows] = counts[:, None, :] - np.take_along_axis(counts, choice, axis=1)[:, :, None]

    def _change_count(self, job: int, step: int, size: int) -> None:
        self.free[step] -= self.need[job, step, size]
        self.choice[job, step] = size
        self._update_gains(np.array([job]))

    def fit(self) -> MarginalGains:
        """Remove devices from steps that exceed the capacity, at the smallest loss per device; return ``self``."""
        while (self.free < 0).any():
            over = -self.free[None, :, None]
            possible = (self.need < 0) & (over > 0)
            useful = np.where(possible, np.minimum(-self.need, over), 1)  # count only the devices above capacity
            loss = np.where(possible, -self.gain / useful, np.inf)
            self._change_count(*_unravel_index(int(loss.argmin()), loss.shape))
        return self

    def fill(self) -> MarginalGains:
        """Add free devices where the gain per device is largest; return ``self``."""
        while True:
            possible = (self.need > 0) & (self.need <= self.free[None, :, None]) & (self.gain > _MIN_GAIN)
            rate = np.where(possible, self.gain / np.where(possible, self.need, 1), 0.0)
            best = int(rate.argmax()) if rate.size else 0
            if not rate.size or rate.flat[best] <= 0.0:
                return self
            self._change_count(*_unravel_index(best, rate.shape))


def _unravel_index(flat: int, shape: tuple[int, ...]) -> tuple[int, int, int]:
    job, rest = divmod(flat, shape[1] * shape[2])
    return job, *divmod(rest, shape[2])
