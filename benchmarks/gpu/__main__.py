"""Trains on a GPU, bare and under Paceline: ``python -m benchmarks.gpu``. It needs torch and a GPU, but no Airflow."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.frameworks.run import Trainer
from benchmarks.options import between, writable
from paceline.train.progress import parse_line

HERE = Path(__file__).parent
FILES = {"train.py": HERE / "train.py", "models.py": HERE.parent / "deadline" / "models.py"}
STEPS = {"resnet50": 400, "table": 2000}  # steps of a run that measures the cost, for each model
EPOCHS = 5


def measure_speed(model: str, *, bare: bool) -> tuple[float, float]:
    """Train alone on the machine; return the batches per second and the duration of the last checkpoint in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        for name, path in FILES.items():
            (Path(folder) / name).write_bytes(path.read_bytes())
        command = [sys.executable, "train.py", model, "--steps", str(STEPS[model]), "--epochs", str(EPOCHS)]
        environment = {**os.environ, "PACELINE_OUTPUT": folder, "PACELINE_CHECKPOINT": f"{folder}/checkpoint"}
        done = subprocess.run(
            command + ["--bare"] * bare, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    if bare:
        return float(done.stdout.split()[-1]), 0.0
    progress = [one for line in done.stdout.splitlines() if (one := parse_line(line))]
    return progress[-1].metrics["steady_batches_per_s"], max(one.save_s or 0.0 for one in progress)


def cost(model: str, rounds: int) -> dict[str, Any]:
    """Measure the speed without Paceline and under it in turns; return all speeds and their ratios."""
    pairs = [(measure_speed(model, bare=True), measure_speed(model, bare=False)) for _ in range(rounds)]
    return {
        "model": model,
        "bare": [bare for (bare, _), _ in pairs],
        "paced": [paced for _, (paced, _) in pairs],
        "ratios": [paced / bare for (bare, _), (paced, _) in pairs],
        "save_s": [save_s for _, (_, save_s) in pairs],
    }


def cost_line(one: Mapping[str, Any]) -> str:
    """Format the cost of a model.

    >>> cost_line({"model": "table", "bare": [200.0], "paced": [198.0], "ratios": [0.99], "save_s": [0.02]})
    'table: 200.0 batches/s without Paceline; under Paceline 0.990 times as many (0.990 to 0.990), checkpoint 0.02 s'
    """
    ratios = one["ratios"]
    return (
        f"{one['model']}: {median(one['bare']):.1f} batches/s without Paceline; under Paceline {median(ratios):.3f} "
        f"times as many ({min(ratios):.3f} to {max(ratios):.3f}), checkpoint {max(one['save_s']):.2f} s"
    )


def deadline_line(model: str, run: Mapping[str, Any]) -> str:
    """Format a run with a deadline of 1.5 times the shortest time.

    >>> run = {"deadline_s": 60.0, "finished_s": 59.9, "errors_pct": [-0.17], "mean_devices": 0.4, "steps": 900,
    ...     "mechanism": "cgroup"}
    >>> deadline_line("resnet50", run)
    'resnet50: 900 steps, deadline 60.0 s, ended after 59.9 s (-0.17 %), 0.40 cores on average (cgroup)'
    """
    errors = ", ".join(f"{error:+.2f} %" for error in run["errors_pct"])
    return (
        f"{model}: {run['steps']} steps, deadline {run['deadline_s']:.1f} s, ended after {run['finished_s']:.1f} s "
        f"({errors}), {run['mean_devices']:.2f} cores on average ({run['mechanism']})"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, print each figure when it is known, and write all as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--rounds", type=between(0, 100), default=3, help="runs for the cost, and for each deadline")
    parser.add_argument("--deadline-s", type=between(20.0, 3600.0), default=45.0, help="about 1.5 times the shortest")
    parser.add_argument("--json", type=writable, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    figures: dict[str, Any] = {"cost": [], "deadline": []}
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Path(folder), FILES, gpus=1)
        for model in STEPS:
            if chosen.rounds:
                figures["cost"].append(cost(model, chosen.rounds))
                print(cost_line(figures["cost"][-1]), flush=True)
            for _ in range(chosen.rounds):
                run = trainer.train_by(chosen.deadline_s, model)
                figures["deadline"].append({"model": model, **run})
                print(deadline_line(model, run), flush=True)
            if chosen.json:
                Path(chosen.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
