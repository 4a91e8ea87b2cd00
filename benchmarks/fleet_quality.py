"""Measures the accuracy of asynchronous training while workers are killed, paused and added, compared with one process.

``python -m benchmarks.fleet_quality [--quick] [--seeds FIRST LAST] [--json FILE]`` trains scikit-learn's digits: a
convolutional network with batch normalisation, AdamW, and a cosine schedule that is stepped after each batch. All runs
train the same number of epochs. The processes communicate over loopback. At 20 % of the samples, a worker is killed and
started again; at 40 %, the last worker is added; at 60 %, a worker is stopped by SIGTERM, and it is started again at 75
% (at once, if no other worker trains). An interrupted benchmark resumes from its record.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import runpy
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.deadline.cells import Record
from paceline.train import checkpoint, track
from paceline.train.job import ENV_CHECKPOINT, ENV_OUTPUT, ENV_SERVER, ENV_WORKER
from paceline.train.progress import Progress, parse_line

WORKERS, SEEDS, EPOCHS, BATCH_SIZE = (1, 2, 4, 8), 5, 20, 32
TARGET_POINTS = 1.0
_LIMIT_S = 300.0
_PROCESSES = multiprocessing.get_context("forkserver")
# Optimizers import torch._dynamo, which takes seconds.
_PROCESSES.set_forkserver_preload(["torch._dynamo", "sklearn.datasets", "sklearn.model_selection"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its table and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_quality", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, one and four workers (about two minutes)")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, SEEDS - 1), metavar=("FIRST", "LAST"))
    parser.add_argument("--folder", type=Path, default=Path("build/fleet_quality"), help="record of finished runs")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    first, last = (0, 1) if chosen.quick else chosen.seeds
    counts, seeds = (1, 4) if chosen.quick else WORKERS, range(first, last + 1)
    record = Record(chosen.folder / "runs.jsonl")
    for seed in tqdm(seeds, desc="seeds", file=sys.stderr):
        for workers in (0, *counts):  # 0: one process without a server
            name = f"{workers} workers, {EPOCHS} epochs, seed {seed}"
            if name not in record:
                record.add(name, _measure(workers, seed))
    runs = {
        workers: [record[f"{workers} workers, {EPOCHS} epochs, seed {seed}"] for seed in seeds]
        for workers in (0, *counts)
    }
    rows = [_summarize(workers, runs[workers], runs[0]) for workers in runs]
    print(f"{'workers':>12} {'accuracy, %':>12} {'sd':>6} {'difference, points':>20} {'sd':>6} {'failures':>9}")
    for row in rows:
        name = row["workers"] or "one process"
        print(
            f"{name:>12} {row['accuracy_pct']:12.2f} {row['accuracy_sd']:6.2f} {row['difference']:20.2f}"
            f" {row['difference_sd']:6.2f} {row['failures']:9.1f}"
        )
    worst = min(row["difference"] for row in rows)
    print(f"target: within {TARGET_POINTS:g} point of one process: {'met' if worst >= -TARGET_POINTS else 'missed'}")
    if chosen.json:
        chosen.json.write_text(json.dumps({"rows": rows, "runs": runs}, indent=1) + "\n")
    return 0


def _summarize(workers: int, runs: Sequence[dict[str, float]], alone: Sequence[dict[str, float]]) -> dict[str, Any]:
    accuracies = [100 * run["accuracy"] for run in runs]
    differences = [100 * (run["accuracy"] - other["accuracy"]) for run, other in zip(runs, alone, strict=True)]
    return {
        "workers": workers,
        "accuracy_pct": statistics.mean(accuracies),
        "accuracy_sd": statistics.stdev(accuracies),
        "difference": statistics.mean(differences),
        "difference_sd": statistics.stdev(differences),
        "failures": statistics.mean(run["failures"] for run in runs),
    }


# --- one run ----------------------------------------------------------------------------------------------------------


def _measure(workers: int, seed: int) -> dict[str, float]:
    """Train once; return the accuracy on the held-out digits, and the number of failures counted by the server."""
    with tempfile.TemporaryDirectory() as scratch, _Job(Path(scratch), seed) as job:
        if workers == 0:
            job.start("alone")
            job.begin("alone")
            job.finish(["alone"])
            return {"accuracy": job.accuracy("alone"), "failures": 0.0}
        names = [f"w{number}" for number in range(workers)]
        job.start_server(names)
        early = names[:-1] or names
        killed, paused = early[0], early[-1]
        # All processes start before training, because training is over in seconds.
        for process in (*names, f"{killed}, retried", f"{paused}, resumed"):
            job.start(process)
        job.begin(*early)
        job.wait_for_percent(20)
        job.stop(killed, signal.SIGKILL)
        job.begin(f"{killed}, retried")
        job.wait_for_percent(40)
        job.begin(*names)
        job.wait_for_percent(60)
        job.stop(paused if paused != killed else f"{killed}, retried", signal.SIGTERM)
        if workers > 2:
            job.wait_for_percent(75)
        job.begin(f"{paused}, resumed")
        ended = ["server", f"{paused}, resumed", *names[len(early) :]]
        job.finish(ended)
        accuracies = {job.accuracy(name) for name in ended[1:]}
        if len(accuracies) > 1:
            raise RuntimeError(f"the workers have different models: {accuracies}")
        return {"accuracy": accuracies.pop(), "failures": job.newest_progress().metrics["failures"]}


class _Job:
    """The processes of a run, and their folders."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self._scratch, self._seed, self._port = scratch, seed, 0
        self._ready = _PROCESSES.Semaphore(0)
        self._gates: dict[str, Any] = {}
        self._running: dict[str, Any] = {}

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._running.values():
            process.kill()
            process.join()

    def start_server(self, names: Sequence[str]) -> None:
        """Start the parameter server, and wait until it listens."""
        plan = self._scratch / "plan.json"
        plan.write_text(json.dumps({"workers": {name: {"samples": 1, "batch_size": BATCH_SIZE} for name in names}}))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._launch("server", _serve, [str(plan), "--port", str(self._port)])
        self._wait_until(lambda: "listens on" in self._log("server").read_text())

    def start(self, name: str) -> None:
        """Start a process that trains after ``begin``, as the worker named before the comma if there is a server."""
        self._gates[name] = _PROCESSES.Event()
        environment = {}
        if self._port:
            environment = {ENV_SERVER: f"127.0.0.1:{self._port}", ENV_WORKER: name.partition(",")[0]}
        self._launch(name, _train, environment, self._seed, self._ready, self._gates[name])
        if not self._ready.acquire(timeout=_LIMIT_S):
            raise TimeoutError(f"{name} does not start")

    def begin(self, *names: str) -> None:
        """Let processes begin to train."""
        for name in names:
            self._gates[name].set()

    def stop(self, name: str, number: signal.Signals) -> None:
        """End a process by a signal."""
        process = self._running[name]
        os.kill(process.pid, number)
        process.join(_LIMIT_S)
        if process.exitcode not in (-number, 128 + number):
            raise RuntimeError(
                f"{name} ended with {process.exitcode} after {number.name}:\n{self._log(name).read_text()}"
            )

    def wait_for_percent(self, percent: float) -> None:
        """Wait until the server reports this percentage of the samples."""
        self._wait_until(lambda: self.newest_progress().percent >= percent)

    def newest_progress(self) -> Progress:
        """Return the newest progress that the server has reported."""
        lines = self._log("server").read_text().splitlines(keepends=True)
        reports = [one for line in lines if line.endswith("\n") and (one := parse_line(line))]
        return reports[-1] if reports else Progress(done=0, total=1)

    def finish(self, names: Sequence[str]) -> None:
        """Wait until the processes have ended successfully."""
        for name in names:
            self._running[name].join(_LIMIT_S)
            if self._running[name].exitcode != 0:
                raise RuntimeError(f"{name} ended with {self._running[name].exitcode}:\n{self._log(name).read_text()}")

    def accuracy(self, name: str) -> float:
        """Return the accuracy of the model that a process has trained."""
        return float((self._scratch / name / "accuracy.json").read_text())

    def _log(self, name: str) -> Path:
        return self._scratch / name / "log.txt"

    def _launch(self, name: str, target: Callable[..., None], *arguments: Any) -> None:
        (self._scratch / name).mkdir(exist_ok=True)
        process = _PROCESSES.Process(target=target, args=(self._scratch / name, *arguments))
        process.start()
        self._running[name] = process

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + _LIMIT_S
        while not self._log("server").exists() or not condition():
            if self._running["server"].exitcode is not None or time.monotonic() > give_up_s:
                raise RuntimeError(f"the job does not proceed:\n{self._log('server').read_text()}")
            time.sleep(0.02)


# --- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def _as_process(folder: Path, **environment: str) -> Iterator[None]:
    """Set the environment of a job, and redirect the output to a file."""
    os.environ.update({ENV_OUTPUT: str(folder), **environment})
    with (folder / "log.txt").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = os.fdopen(os.dup(log.fileno()), "w", buffering=1)
        torch.set_num_threads(1)
        yield


def _serve(folder: Path, arguments: list[str]) -> None:
    with _as_process(folder, **{ENV_CHECKPOINT: str(folder / "checkpoint")}):
        sys.argv[1:] = arguments
        runpy.run_module("paceline.train.parameter_server", run_name="__main__")


def _train(folder: Path, environment: dict[str, str], seed: int, ready: Any, gate: Any) -> None:
    with _as_process(folder, **environment):
        accuracy = _train_digits(seed, ready, gate)
        (folder / "accuracy.json").write_text(json.dumps(accuracy))


def _train_digits(seed: int, ready: Any, gate: Any) -> float:
    """Train a network on a part of the digits; return its accuracy on the others."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.3, random_state=seed, stratify=labels)
    seen, unseen, seen_labels, unseen_labels = map(torch.tensor, split)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)),
    )
    loader = DataLoader(TensorDataset(seen.float(), seen_labels), BATCH_SIZE, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))
    checkpoint(model=model, optimizer=optimizer, scheduler=scheduler)
    ready.release()
    gate.wait()
    for features, wanted in track(loader, epochs=EPOCHS, threads=1):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), wanted).backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        return float((model(unseen.float()).argmax(1) == unseen_labels).float().mean())


if __name__ == "__main__":
    sys.exit(main())
