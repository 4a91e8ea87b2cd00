"""Runs the independent simulations of a table in parallel, one process for each core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import mean, stdev
from typing import NamedTuple, TypeVar

from threadpoolctl import threadpool_limits

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_all(
    simulate: Callable[[Task], Result], tasks: Sequence[Task], progress: Callable[[str], None] | None = None
) -> dict[Task, Result]:
    """Return the result of each task; ``simulate`` must be a function of a module, and the tasks hashable."""
    with ProcessPoolExecutor(initializer=threadpool_limits, initargs=(1,)) as pool:
        results: dict[Task, Result] = {}
        for task, result in zip(tasks, pool.map(simulate, tasks), strict=True):
            results[task] = result
            if progress is not None:
                progress(f"simulation {len(results)} of {len(tasks)}")
        return results


class Spread(NamedTuple):
    """Mean and standard deviation of a figure over the seeds."""

    mean: float
    sd: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise one value per seed."""
        return cls(mean(values), stdev(values) if len(values) > 1 else 0.0)

    def __str__(self) -> str:
        digits = 0 if abs(self.mean) >= 100 else 1
        return f"{self.mean:.{digits}f} ± {self.sd:.{digits}f}"
