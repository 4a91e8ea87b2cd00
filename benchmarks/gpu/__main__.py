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
FACTOR = 1.5  # of a deadline to the shortest time


def measure_epochs(model: str, *, bare: bool) -> tuple[list[float], float]:
    """Train alone on the machine; return the seconds of each epoch but the first, and of the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        for name, path in FILES.items():
            (Path(folder) / name).write_bytes(path.read_bytes())
        command = [sys.executable, "train.py", model, "--steps", str(STEPS[model]), "--epochs", str(EPOCHS)]
        environment = {**os.environ, "PACELINE_OUTPUT": folder, "PACELINE_CHECKPOINT": f"{folder}/checkpoint"}
        done = subprocess.run(
            command + ["--bare"] * bare, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    lines = done.stdout.splitlines()
    (epochs,) = (line.split()[1:] for line in lines if line.startswith("epoch_s "))
    progress = [one for line in lines if (one := parse_line(line))]
    return [float(seconds) for seconds in epochs], max((one.save_s or 0.0 for one in progress), default=0.0)


def cost(model: str, rounds: int) -> dict[str, Any]:
    """Train without Paceline and under it in turns; return the seconds of all epochs."""
    pairs = [(measure_epochs(model, bare=True), measure_epochs(model, bare=False)) for _ in range(rounds)]
    return {
        "model": model,
        "batches": STEPS[model] // EPOCHS,
        "bare_s": [seconds for (epochs, _), _ in pairs for seconds in epochs],
        "paced_s": [seconds for _, (epochs, _) in pairs for seconds in epochs],
        "save_s": [save_s for _, (_, save_s) in pairs],
    }


def cost_line(one: Mapping[str, Any]) -> str:
    """Format the cost of a model: the ratio of the median epochs, because whole runs differ by more than the cost.

    >>> cost_line({"model": "table", "batches": 400, "bare_s": [2.0, 2.1, 2.4], "paced_s": [2.2, 2.1, 1.9],
    ...     "save_s": [0.02]})
    'table: 190.5 batches/s without Paceline; epochs under Paceline take 1.000 times as long (3 of 1.90 to 2.20 s; \
without 3 of 2.00 to 2.40 s), checkpoint 0.02 s'
    """
    bare, paced = one["bare_s"], one["paced_s"]
    spreads = [f"{len(epochs)} of {min(epochs):.2f} to {max(epochs):.2f} s" for epochs in (paced, bare)]
    return (
        f"{one['model']}: {one['batches'] / median(bare):.1f} batches/s without Paceline; epochs under Paceline take "
        f"{median(paced) / median(bare):.3f} times as long ({spreads[0]}; without {spreads[1]}), "
        f"checkpoint {max(one['save_s']):.2f} s"
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
    parser.add_argument(
        "--deadline-s", type=between(20.0, 3600.0), default=45.0, help=f"about {FACTOR:g} times the shortest"
    )
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
                run = trainer.train_by(chosen.deadline_s, FACTOR, model)
                figures["deadline"].append({"model": model, **run})
                print(deadline_line(model, run), flush=True)
            if chosen.json:
                Path(chosen.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
