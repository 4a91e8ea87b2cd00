"""Searches for the best fixed gains of the paper's controller, on simulated jobs.

Run this benchmark as ``python -m benchmarks.gains``. The best pair is ``paceline.control.PAPER_GAINS``.
"""

from __future__ import annotations

import sys
from statistics import mean

from paceline.control import Gains, Limits, PaperController
from paceline.testing.plant import Plant, amdahl
from paceline.testing.simulated_run import simulate_run

GAINS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
WEIGHTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
# The feasible cells of the paper's tables I and III, on jobs as long as those of `benchmarks.deadline`.
DEADLINES = [(1.2, None), (1.5, None), (1.8, None), (1.5, 1.2), (1.8, 1.44)]
LIMITS = Limits(0.1, 2.0)


def simulated_jobs() -> list[Plant]:
    """Return jobs of 45 to 120 s on two cores: nearly parallel ones, less parallel ones, and ones with slow batches."""
    kinds = [(length_s, *kind) for length_s in (45, 60, 90, 120) for kind in [(0.25, 0.1), (0.25, 0.5), (1.0, 0.1)]]
    return [
        Plant(int((length_s - 4) * amdahl(serial)(2.0) / batch_s), batch_s, amdahl(serial), 3.0, 1.0, noise=0.05)
        for length_s, batch_s, serial in kinds
    ]


def mean_error_pct(gains: Gains) -> float:
    """Return the mean absolute deviation from the deadline over all jobs and deadlines."""
    errors = []
    for seed, plant in enumerate(simulated_jobs()):
        shortest_s = plant.shortest_s(2.0)
        for d_c, changed_to in DEADLINES:
            deadline_s = d_c * shortest_s
            new_deadlines = {0.3 * deadline_s: changed_to * shortest_s} if changed_to else None
            run = simulate_run(
                plant, PaperController(LIMITS, deadline_s, gains=gains), seed=seed, new_deadlines=new_deadlines
            )
            errors.append(abs(run.error_pct))
    return mean(errors)


def main() -> int:
    """Print the mean deviation for all pairs of gains, and the best pair."""
    table = {(gain, weight): mean_error_pct(Gains(gain, weight)) for gain in GAINS for weight in WEIGHTS}
    print("mean |e| in percent; rows: K, columns: eta")
    print(f"{'':>6}" + "".join(f"{weight:>8g}" for weight in WEIGHTS))
    for gain in GAINS:
        print(f"{gain:>6g}" + "".join(f"{table[gain, weight]:8.2f}" for weight in WEIGHTS))
    gain, weight = min(table, key=lambda pair: table[pair])
    print(f"best: K = {gain:g}, eta = {weight:g}: {table[gain, weight]:.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
