"""Compares controllers in real training jobs: ``python -m benchmarks.deadline [--quick] [--json FILE]``. Resumable."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from demo.signals import end_on_sigterm
from tqdm import tqdm

from benchmarks.deadline.cells import CONTROLLERS, REPEATS, STATIC, Cell, Record, cells
from benchmarks.deadline.report import draw, result_rows, summary, table
from benchmarks.deadline.run import Trainer, was_out_of_cores
from benchmarks.engine import runtimes
from benchmarks.options import between, writable
from paceline.control import PastRun

MODEL_NAMES = ("resnet50", "vgg19", "inception_v3")
EPOCHS = 5
ATTEMPTS = 2


class Benchmark:
    """All runs of the benchmark. Each run takes place once; later calls read its result from the record."""

    def __init__(self, trainer: Trainer, record: Record, bar: tqdm[Any], *, shortest_s: float, repeats: int) -> None:
        self._trainer = trainer
        self._record = record
        self._bar = bar
        self._shortest_s = shortest_s
        self._repeats = repeats

    def batch_count(self, model: str) -> int:
        """Return the number of batches that take about ``shortest_s`` on all cores, extrapolated from a short run."""
        probe = self._run_or_read(
            f"{model}/probe", 20.0, lambda: self._trainer.train_constant(model, 60, self._trainer.cores, 1e4)
        )
        learned = PastRun.read(probe["learned"])
        assert learned is not None
        speed = 60 / (probe["finished_s"] - learned.startup_s - learned.tail_s)
        left_s = self._shortest_s - learned.startup_s - learned.tail_s
        return max(int(left_s * speed) // EPOCHS, 4) * EPOCHS

    def run_on_all_cores(self, model: str, suffix: int | str) -> dict[str, Any]:
        """Run the whole job on all cores. Repeat this before each round of runs, because the machine's speed drifts."""
        return self._run_constant(model, self._trainer.cores, self._constant_name(model, suffix))

    def shortest_s(self, model: str) -> list[float]:
        """Return the durations of the whole job on all cores; their spread shows the machine's own variation."""
        return [self.run_on_all_cores(model, repeat)["finished_s"] for repeat in range(self._repeats)]

    def run_best_constant(self, cell: Cell, repeat: int, first_guess: float) -> dict[str, Any]:
        """Search for the smallest constant allocation that meets the deadline, and return the run on it.

        The search starts at ``first_guess``. It decreases the allocation while the deadline is met, or increases it
        until the deadline is met. It uses the deadline of the controllers' runs and must follow them directly, because
        the speed of a shared machine changes within minutes.
        """
        deadline_s = cell.final_coefficient * self.run_on_all_cores(cell.model, repeat)["finished_s"]
        cores, step = self._trainer.cores, self._trainer.quantum
        guess, met = self._round_to_quantum(max(first_guess, step)), None
        while True:
            name = f"{cell}/static/{guess:g}/{repeat}"
            run = self._run_constant(cell.model, guess, name)
            if run["finished_s"] <= deadline_s:
                met = run
                if guess < 1.5 * step:
                    return met
                guess = self._round_to_quantum(guess - step)
            elif met is not None or guess >= cores:
                return met or run
            else:
                guess = self._round_to_quantum(guess + step)

    def run_controlled(self, cell: Cell, controller: str, repeat: int) -> dict[str, Any]:
        """Run under a controller; repeat once, with a new shortest time, if the machine was too slow.

        A shared machine may become slower after the shortest time was measured. A run that is late on all cores does
        not show the quality of the controller. ``attempts`` in the result is the number of runs.
        """
        run: dict[str, Any] = {}
        for attempt in range(1, ATTEMPTS + 1):
            run = {**self._run_attempt(cell, controller, repeat, attempt), "attempts": attempt}
            if not was_out_of_cores(run, self._trainer.cores):
                break
        return run

    def _run_attempt(self, cell: Cell, controller: str, repeat: int, attempt: int) -> dict[str, Any]:
        name = f"{cell}/{controller}/{repeat}"
        suffix: int | str = repeat
        if attempt > 1:
            suffix = f"{cell.d_c:g}-{cell.final_coefficient:g}/{controller}/{repeat}/{attempt}"
            name = f"{name}/{attempt}"
            if name not in self._record:  # after an interruption, the machine's speed may have changed
                self._record.forget(self._constant_name(cell.model, suffix))
        shortest = self.run_on_all_cores(cell.model, suffix)
        shortest_s, past = shortest["finished_s"], PastRun.read(shortest["learned"])
        assert past is not None
        return self._run_or_read(
            name,
            cell.final_coefficient * shortest_s,
            lambda: self._trainer.train_controlled(
                cell.model,
                self.batch_count(cell.model),
                controller,
                cell.d_c * shortest_s,
                past=past,
                changed_s=cell.changed_to * shortest_s if cell.changed_to else None,
            ),
        )

    def _run_constant(self, model: str, cores: float, name: str) -> dict[str, Any]:
        run = self._run_or_read(
            name, self._shortest_s, lambda: self._trainer.train_constant(model, self.batch_count(model), cores, 1e4)
        )
        return {**run, "cores": cores}

    def _run_or_read(self, name: str, estimate_s: float, run: Any) -> dict[str, Any]:
        if name not in self._record:
            self._bar.set_postfix_str(name)
            self._record.add(name, run().to_dict())
            self._bar.total = max(
                self._bar.total, self._bar.n + round(estimate_s)
            )  # tqdm does not draw a bar beyond its total
            self._bar.update(estimate_s)
        result: dict[str, Any] = self._record[name]
        return result

    def _constant_name(self, model: str, suffix: int | str) -> str:
        return f"{model}/constant/{self._trainer.cores:g}" + (f"/{suffix}" if suffix else "")

    def _round_to_quantum(self, cores: float) -> float:
        return round(min(round(cores / self._trainer.quantum) * self._trainer.quantum, self._trainer.cores), 9)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its tables and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deadline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one model, three cells, one run each (about ten minutes)")
    parser.add_argument("--models", nargs="+", choices=MODEL_NAMES, default=None, metavar="MODEL")
    parser.add_argument("--controllers", nargs="+", choices=CONTROLLERS, default=list(CONTROLLERS), metavar="NAME")
    parser.add_argument(
        "--repeats", type=between(1, 1000), default=None, help=f"runs of each cell ({REPEATS}; 1 with --quick)"
    )
    parser.add_argument(
        "--shortest-s", type=between(1.0, 86_400.0), default=60.0, help="seconds of a job on all cores (60)"
    )
    parser.add_argument("--image", default="paceline-trainer:latest", help="image with Python and torch")
    parser.add_argument("--cluster", action="store_true", help="pods of the cluster at KUBECONFIG, not containers")
    parser.add_argument("--whole", action="store_true", help="allocate whole devices; processes stand in for GPUs")
    parser.add_argument("--no-static", action="store_true", help="omit the search for the best constant allocation")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/deadline"), help="folder of the record and the figures"
    )
    parser.add_argument("--json", type=writable, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    end_on_sigterm()
    models = chosen.models or (["resnet50"] if chosen.quick else list(MODEL_NAMES))
    repeats = chosen.repeats or (1 if chosen.quick else REPEATS)
    planned = cells(models, quick=chosen.quick)
    total_s = chosen.shortest_s * (
        len(models) * (repeats + 0.4)
        + sum(cell.final_coefficient for cell in planned) * repeats * len(chosen.controllers)
    )
    with tqdm(total=round(total_s), unit="s", bar_format="{l_bar}{bar}| {n:.0f}/{total:.0f} s {postfix}") as bar:

        def show_pace(pace: dict[str, Any]) -> None:
            bar.set_description_str(f"{pace['progress_pct']:5.1f} % on {pace['devices']:.2f} cores")

        runtime = runtimes(cluster=chosen.cluster)[-1]
        trainer = Trainer(runtime, chosen.image, on_pace=show_pace, whole_devices=chosen.whole)
        benchmark = Benchmark(
            trainer, Record(chosen.folder / "runs.jsonl"), bar, shortest_s=chosen.shortest_s, repeats=repeats
        )
        runs: dict[tuple[Cell, str, int], dict[str, Any]] = {}
        # A deadline at the shortest time needs all cores, so no search is needed.
        searched = [] if chosen.no_static else [cell for cell in planned if cell.final_coefficient > 1.0]
        bar.total += round(2.5 * chosen.shortest_s * repeats * sum(cell.final_coefficient for cell in searched))
        for repeat in range(repeats):
            for cell in planned:  # interleave the cells, so that drift of the machine affects all cells alike
                for controller in chosen.controllers:
                    runs[cell, controller, repeat] = benchmark.run_controlled(cell, controller, repeat)
                if cell in searched:
                    before = runs.get((cell, STATIC, repeat - 1), {}).get("cores")
                    first_guess = before or runs[cell, chosen.controllers[0], repeat]["mean_devices"]
                    runs[cell, STATIC, repeat] = benchmark.run_best_constant(cell, repeat, first_guess)
    rows = result_rows(runs)
    print(table(rows))
    on_all_cores = {model: benchmark.shortest_s(model) for model in models}
    for model, times_s in on_all_cores.items():
        spread_pct = 100 * (max(times_s) - min(times_s)) / mean(times_s)
        print(
            f"{model} on all cores: {mean(times_s):.2f} s, {spread_pct:.1f} % between the fastest and the slowest run"
        )
    result = {"cells": rows, "summary": summary(rows), "repeats": repeats, "on_all_cores_s": on_all_cores}
    print(json.dumps(result["summary"], indent=1))
    for model in models:
        print(f"figure: {draw(model, runs, chosen.folder)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
