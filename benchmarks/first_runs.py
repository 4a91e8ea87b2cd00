"""Simulates the deviation of first runs from their deadline, depending on prior knowledge of the job.

Run this benchmark as ``python -m benchmarks.first_runs [--jobs N] [--json FILE]`` (half a minute for 240 jobs).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

from tqdm import tqdm

from benchmarks.options import between, writable
from paceline.control import DeadlineController, Limits, PastRun
from paceline.testing.random_plants import Case, random_case
from paceline.testing.simulated_run import PacedRun, simulate_run

_NOTHING = "nothing"
PRIOR_KNOWLEDGE: dict[str, Callable[[Case], tuple[Case, PastRun | None]]] = {
    _NOTHING: lambda case: (_without_reports(case), None),
    "checkpoints": lambda case: (case.with_reports(validation=False), None),
    "checkpoints, validation": lambda case: (case.with_reports(validation=True), None),
    "a related run": lambda case: (case, case.past_run(speed_sd=0.3)),
    "the task's last run": lambda case: (case, case.past_run(speed_sd=0.0)),
}
"""For each kind of prior knowledge, a function that returns the job and the measurements of an earlier run."""


@dataclass(frozen=True)
class Figures:
    """Figures of all jobs with the same prior knowledge.

    ``cost`` is in device-seconds relative to the best constant allocation. Jobs whose deadline changes are excluded.
    """

    known: str
    jobs: int
    mean_error_pct: float
    late_by_a_percent: float
    latest_pct: float
    cost: float


def run(case: Case, past: PastRun | None) -> PacedRun:
    """Simulate one job under the default controller."""
    controller = DeadlineController(
        Limits(min(0.1, case.max_devices), case.max_devices),
        case.deadline_s,
        period_s=max(1.0, case.deadline_s / 1000),
        past=past,
    )
    return simulate_run(
        case.plant, controller, seed=case.seed, new_deadlines=case.new_deadlines, pauses_known=past is not None
    )


def simulate_jobs(known: str, cases: Sequence[Case], constant: Sequence[float | None]) -> Figures:
    """Simulate all jobs; ``constant`` has the device-seconds of each job on its best constant allocation."""
    jobs = [PRIOR_KNOWLEDGE[known](case) for case in cases]
    runs = [run(case, past) for case, past in tqdm(jobs, desc=known, unit="job", leave=False)]
    costs = [one.device_seconds / best for one, best in zip(runs, constant, strict=True) if best]
    return Figures(
        known=known,
        jobs=len(runs),
        mean_error_pct=mean(abs(one.error_pct) for one in runs),
        late_by_a_percent=mean(one.error_pct > 1 for one in runs),
        latest_pct=max(one.error_pct for one in runs),
        cost=mean(costs) if costs else float("nan"),
    )


def _without_reports(case: Case) -> Case:
    return replace(case, plant=replace(case.plant, save_s=None))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_runs", description=__doc__)
    parser.add_argument(
        "--jobs", type=between(1, 100_000), default=240, metavar="N", help="number of jobs (%(default)s)"
    )
    parser.add_argument("--json", type=writable, metavar="FILE", help="also write the figures as JSON")
    chosen = parser.parse_args(arguments)
    cases = [random_case(seed) for seed in range(int(chosen.jobs))]
    constant = [
        None if case.new_deadlines else case.best_constant() for case in tqdm(cases, desc="constant", leave=False)
    ]
    results = [simulate_jobs(known, cases, constant) for known in PRIOR_KNOWLEDGE]
    print(f"{'KNOWN':26}{'MEAN':>8}{'OVER 1 % LATE':>16}{'LATEST':>10}{'DEVICES':>10}")
    for one in results:
        print(
            f"{one.known:26}{one.mean_error_pct:6.2f} %{100 * one.late_by_a_percent:14.1f} %"
            f"{one.latest_pct:8.2f} %{one.cost:10.3f}"
        )
    if chosen.json:
        Path(chosen.json).write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
