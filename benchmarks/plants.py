"""Simulates the deviation from the deadline of first and second runs of random jobs.

``python -m benchmarks.plants [--jobs 1000] [--first-seed 0] [--json FILE]`` simulates all jobs twice: once with tails
that the duration of a checkpoint foretells, and once with tails of which only those of 50 other jobs are known.
``--picture FILE`` instead draws the forecast of one first run.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from tqdm import tqdm

from benchmarks.options import between, writable
from paceline.control import (
    Controller,
    DeadlineController,
    Decision,
    Limits,
    Observation,
    PaperController,
    PastRun,
    TailModel,
)
from paceline.testing.plant import Plant
from paceline.testing.random_plants import Case, random_case, random_tail
from paceline.testing.simulated_run import PacedRun, simulate_run

_OTHER_JOBS = 50


@dataclass(frozen=True)
class Errors:
    """Deviations of one job from its deadline in percent; and its device-seconds relative to the best constant ones."""

    seed: int
    first: float
    second: float
    paper: float
    first_cost: float | None
    second_cost: float | None


def simulate(seed: int, *, foretold: bool) -> Errors:
    """Simulate the first and the second run of one job, and its run under the paper's controller."""
    case = random_case(seed, foretold=foretold)
    first_case = case.with_reports(validation=True)
    others = [] if foretold else [random_tail(random.Random(-number - 1)) for number in range(_OTHER_JOBS)]
    limits, period_s = Limits(min(0.1, case.max_devices), case.max_devices), max(1.0, case.deadline_s / 1000)
    make = partial(DeadlineController, limits, case.deadline_s, period_s=period_s)
    controller = make(tail=TailModel(others=others))
    first = _run(first_case, controller)
    plant, learned = case.plant, controller.learned()
    assert learned is not None  # the job has trained
    past = PastRun(
        plant.batches, plant.startup_s, plant.tail_s, pauses_s=plant.epochs * plant.pause_s, epochs=plant.epochs,
        **learned,
    )  # fmt: skip
    second = _run(case, make(past=past), pauses_known=True)
    paper = _run(case, PaperController(limits, case.deadline_s, period_s=period_s))
    best = None if case.new_deadlines else case.best_constant()
    costs = [run.device_seconds / best if best else None for run in (first, second)]
    return Errors(seed, first.error_pct, second.error_pct, paper.error_pct, *costs)


def _run(case: Case, controller: Controller, *, pauses_known: bool = False) -> PacedRun:
    return simulate_run(
        case.plant, controller, seed=case.seed, new_deadlines=case.new_deadlines, pauses_known=pauses_known
    )


class _Recording(DeadlineController):
    """Records the time, the forecast end and its range at each step while the job has batches left."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.forecasts: list[tuple[float, float, float, float]] = []

    def step(self, obs: Observation) -> Decision:
        decision = super().step(obs)
        if decision.finish_s is not None:
            low_s, high_s = (
                decision.finish_s + sign * one for sign, one in zip((-1, 1), decision.margins_s, strict=True)
            )
            self.forecasts.append((obs.now_s, decision.finish_s, low_s, high_s))
        return decision


def draw(path: Path) -> None:
    """Draw the forecast of a first run of five minutes with three epochs, of which the tails of 20 jobs are known."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    plant = Plant(
        600, 0.8, startup_s=6.0, tail_s=2.5, save_s=1.5, epochs=3, pause_s=11.0, forecast_pause_s=8.0, noise=0.05
    )
    others = [random_tail(random.Random(number)) for number in range(20)]
    controller = _Recording(Limits(0.1, 4.0), 300.0, tail=TailModel(others=others))
    run = simulate_run(plant, controller, seed=1)
    times, ends, lows, highs = zip(*controller.forecasts, strict=True)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.axhline(300.0, color="#cf222e", linewidth=1.2, label="deadline")
    axes.fill_between(times, lows, highs, color="#1f6feb", alpha=0.2, linewidth=0, label="range of nine in ten jobs")
    axes.plot(times, ends, color="#1f6feb", linewidth=1.5, label="forecast of the end")
    axes.plot([run.finished_s], [run.finished_s], "o", color="#24292f", label=f"end, {run.error_pct:+.2f} %")
    axes.set_ylim(285, 315)
    axes.set_xlabel("seconds")
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False, ncols=2)
    figure.savefig(path, dpi=130)


def rows(errors: Sequence[Errors]) -> Iterator[str]:
    """Yield a row of the table for the first runs, the second runs, and those under the paper's controller."""
    for name in ("first", "second", "paper"):
        values = [getattr(one, name) for one in errors]
        costs = [cost for one in errors if (cost := getattr(one, f"{name}_cost", None)) is not None]
        latest = max(errors, key=lambda one: getattr(one, name))
        earliest = min(errors, key=lambda one: getattr(one, name))
        yield (
            f"{name:8}{median(map(abs, values)):8.2f} %{mean(map(abs, values)):8.2f} %"
            f"{100 * mean(value > 1 for value in values):10.1f} %"
            f"{getattr(earliest, name):+9.1f} % ({earliest.seed}){getattr(latest, name):+9.1f} % ({latest.seed})"
            + (f"{mean(costs):9.3f}" if costs else "")
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plants", description=__doc__)
    parser.add_argument("--jobs", type=between(1, 100_000), default=1000, metavar="N", help="jobs (%(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="seed of the first job (%(default)s)")
    parser.add_argument("--processes", type=between(1, 64), default=2, help="processes (%(default)s)")
    parser.add_argument("--json", type=writable, metavar="FILE", help="also write the deviation of each job as JSON")
    parser.add_argument("--picture", type=writable, metavar="FILE", help="draw the forecast of one first run instead")
    chosen = parser.parse_args(arguments)
    if chosen.picture:
        draw(Path(chosen.picture))
        return
    seeds = range(chosen.first_seed, chosen.first_seed + int(chosen.jobs))
    everything = {}
    for name, foretold in (("foretold by a checkpoint", True), ("like those of other jobs", False)):
        one: Callable[[int], Errors] = partial(simulate, foretold=foretold)
        with ProcessPoolExecutor(int(chosen.processes)) as pool:
            errors = list(tqdm(pool.map(one, seeds, chunksize=4), total=len(seeds), desc=name, leave=False))
        print(f"tails {name}, seeds {seeds[0]} to {seeds[-1]}")
        titles = (
            ("MEDIAN", 10),
            ("MEAN", 10),
            ("1 % LATE", 12),
            ("EARLIEST (SEED)", 18),
            ("LATEST (SEED)", 18),
            ("COST", 9),
        )
        print(f"{'RUN':8}" + "".join(title.rjust(width) for title, width in titles))
        print(*rows(errors), sep="\n")
        everything[name] = [asdict(error) for error in errors]
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
