"""Simulates the trainings of the benchmark under the same controller, which takes seconds."""

from __future__ import annotations

from statistics import mean
from typing import Any

from benchmarks.frameworks.cases import CASES, plant
from paceline.control import CPU_QUANTUM, Limits, make_controller
from paceline.testing.simulated_run import simulate_run

SEEDS = 10
_CORES, _MIN_CORES = 2.0, 0.1


def simulate(library: str, deadline_s: float, factor: float) -> dict[str, Any]:
    """Return the deviations of ten simulated trainings on two cores, in percent of a deadline of about ``deadline_s``.

    The deadline is ``factor`` times the shortest time.

    >>> result = simulate("torch", 60.0, 1.5)
    >>> result["seeds"], result["mean_abs_error_pct"] <= abs(result["largest_error_pct"])
    (10, True)
    """
    made = plant(CASES[library], _CORES, deadline_s / factor)
    limits = Limits(_MIN_CORES, _CORES, CPU_QUANTUM)
    runs = [
        simulate_run(
            made,
            make_controller("default", limits, factor * made.shortest_s(_CORES)),
            seed=seed,
        )
        for seed in range(SEEDS)
    ]
    errors = [run.error_pct for run in runs]
    return {
        "steps": made.batches,
        "seeds": SEEDS,
        "mean_abs_error_pct": mean(map(abs, errors)),
        "largest_error_pct": max(errors, key=abs),
    }
