"""Run it as ``python -m benchmarks.deadline [--quick] [--json FILE]``; interrupted, it goes on where it was."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.deadline.cells import CONTROLLERS, REPEATS, Cell, Record, cells
from benchmarks.deadline.report import draw, figures, summary, table
from benchmarks.deadline.run import Trainer
from paceline.control import CPU_QUANTUM, PastRun

MODEL_NAMES = ("resnet50", "vgg19", "inception_v3")
EPOCHS = 5


class Benchmark:
    """All runs of the benchmark, each done once and then read from the record."""

    def __init__(self, trainer: Trainer, record: Record, bar: tqdm[Any], *, shortest_s: float) -> None:
        self._trainer = trainer
        self._record = record
        self._bar = bar
        self._shortest_s = shortest_s

    def batches(self, model: str) -> int:
        """As many as take about the time asked for on all cores, by the speed of a short run."""
        probe = self._once(f"{model}/probe", 20.0, lambda: self._trainer.constant(model, 60, self._trainer.cores, 1e4))
        learned = PastRun.read(probe["learned"])
        assert learned is not None
        speed = 60 / (probe["finished_s"] - learned.startup_s - learned.tail_s)
        left_s = self._shortest_s - learned.startup_s - learned.tail_s
        return max(int(left_s * speed) // EPOCHS, 4) * EPOCHS

    def shortest(self, model: str) -> dict[str, Any]:
        """The whole job on all cores."""
        return self._constant(model, self._trainer.cores)

    def static(self, model: str, deadline_s: float) -> dict[str, Any]:
        """The whole job on the smallest constant allocation that meets the deadline, found by running it."""
        shortest = self.shortest(model)
        cores, run = self._trainer.cores, shortest
        # From the first guess downwards until one is late; upwards before that if the guess was late itself.
        guess = self._quantized(cores * shortest["finished_s"] / deadline_s)
        while guess >= CPU_QUANTUM:
            tried = self._constant(model, guess)
            if tried["finished_s"] > deadline_s:
                if run["cores"] - guess < 1.5 * CPU_QUANTUM:
                    break
                guess = self._quantized(max(guess * tried["finished_s"] / deadline_s, guess + CPU_QUANTUM))
                if guess >= run["cores"]:
                    guess = self._quantized(run["cores"] - CPU_QUANTUM)
                continue
            run = tried
            guess = self._quantized(min(guess * tried["finished_s"] / deadline_s, guess - CPU_QUANTUM))
        return run

    def controlled(self, cell: Cell, controller: str, repeat: int) -> dict[str, Any]:
        """One run under a controller."""
        shortest = self.shortest(cell.model)
        shortest_s = shortest["finished_s"]
        past = PastRun.read(shortest["learned"])
        assert past is not None
        return self._once(
            f"{cell}/{controller}/{repeat}",
            cell.last * shortest_s,
            lambda: self._trainer.controlled(
                cell.model,
                self.batches(cell.model),
                controller,
                cell.d_c * shortest_s,
                past=past,
                changed_s=cell.changed_to * shortest_s if cell.changed_to else None,
            ),
        )

    def _constant(self, model: str, cores: float) -> dict[str, Any]:
        name = f"{model}/constant/{cores:g}"
        run = self._once(name, self._shortest_s, lambda: self._trainer.constant(model, self.batches(model), cores, 1e4))
        return {**run, "cores": cores}

    def _once(self, name: str, about_s: float, run: Any) -> dict[str, Any]:
        if name not in self._record:
            self._bar.set_postfix_str(name)
            self._record.add(name, run().to_dict())
            self._bar.update(about_s)
        found: dict[str, Any] = self._record[name]
        return found

    def _quantized(self, cores: float) -> float:
        return round(min(round(cores / CPU_QUANTUM) * CPU_QUANTUM, self._trainer.cores), 9)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its tables and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deadline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one model, three cells, one run each: about ten minutes")
    parser.add_argument("--models", nargs="+", choices=MODEL_NAMES, default=None, metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=None, help=f"runs of each cell ({REPEATS}; 1 with --quick)")
    parser.add_argument("--shortest-s", type=float, default=60.0, help="length of a job on all cores (60)")
    parser.add_argument("--image", default="paceline-trainer:latest", help="image with Python and torch")
    parser.add_argument(
        "--no-static", action="store_true", help="leave out the search for the best constant allocation"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/deadline"), help="record and figures")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    models = chosen.models or (["resnet50"] if chosen.quick else list(MODEL_NAMES))
    repeats = chosen.repeats or (1 if chosen.quick else REPEATS)
    planned = cells(models, quick=chosen.quick)
    total_s = chosen.shortest_s * (len(models) * 1.4 + sum(cell.last for cell in planned) * repeats * len(CONTROLLERS))
    with tqdm(total=round(total_s), unit="s", bar_format="{l_bar}{bar}| {n:.0f}/{total:.0f} s {postfix}") as bar:

        def show(pace: dict[str, Any]) -> None:
            bar.set_description_str(f"{pace['progress_pct']:5.1f} % on {pace['devices']:.2f} cores")

        trainer = Trainer(_connect, chosen.image, on_pace=show)
        benchmark = Benchmark(trainer, Record(chosen.folder / "runs.jsonl"), bar, shortest_s=chosen.shortest_s)
        runs = {
            (cell, controller, repeat): benchmark.controlled(cell, controller, repeat)
            for repeat in range(repeats)
            for cell in planned
            for controller in CONTROLLERS  # interleaved: what the machine does to one, it does to the other
        }
        statics = {}
        if not chosen.no_static:
            bar.total += round(chosen.shortest_s * 4 * len({(cell.model, cell.last) for cell in planned}))
            for cell in planned:
                statics[cell] = benchmark.static(cell.model, cell.last * benchmark.shortest(cell.model)["finished_s"])
    rows = figures(runs, statics)
    print(table(rows))
    result = {"cells": rows, "summary": summary(rows), "repeats": repeats, "shortest_s": chosen.shortest_s}
    print(json.dumps(result["summary"], indent=1))
    for model in models:
        print(f"figure: {draw(model, runs, chosen.folder)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _connect() -> Any:
    import docker

    return docker.APIClient(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", version="auto", timeout=60)


if __name__ == "__main__":
    sys.exit(main())
