"""Trains with shares of one GPU, alone and together: ``python -m benchmarks.gpu.shares``. It needs torch and a GPU."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.__main__ import FILES, STEPS
from benchmarks.options import between, writable
from paceline.runtime import Job, JobSpec, ProcessRuntime
from paceline.train.progress import parse_line

MIXES = ((0.05,), (0.25,), (0.5,), (0.75,), (0.95,), (0.5, 0.5), (0.2, 0.7), (0.3, 0.3, 0.3))
WARM_UP_S = 5.0
_STEPS, _POLL_S, _START_S = 10**7, 0.2, 300.0

Points = list[tuple[float, int]]  # times on the machine's monotonic clock, and batches done


def train_together(
    runtime: ProcessRuntime, model: str, shares: Sequence[float], seconds: float, files: Mapping[str, Path] = FILES
) -> list[float]:
    """Train with constant shares at the same time; return the batches per second of each job while all train."""
    jobs: list[Job] = []
    try:
        for share in shares:
            spec = JobSpec(
                name=f"benchmark-{uuid.uuid4().hex[:8]}",
                command=["python", "train.py", model, "--steps", str(_STEPS), "--epochs", "1"],
                devices=share,
                files=files,
                gpus=share if share < 1 else 1,
                shares_gpus=True,
                cores_per_device=math.inf,
                memory_bytes=None,
            )
            jobs.append(runtime.start(spec))
        return _measure(jobs, seconds)
    finally:
        for job in jobs:
            job.remove()


def _measure(jobs: Sequence[Job], seconds: float) -> list[float]:
    points: list[Points] = [[] for _ in jobs]
    until_s = time.monotonic() + _START_S
    began_s = math.inf
    while time.monotonic() < until_s:
        for job, seen in zip(jobs, points, strict=True):
            reports = [report for line in job.read_lines() if (report := parse_line(line))]
            seen += [(report.monotonic_s, report.done) for report in reports]
            if job.status().state != "running":
                raise SystemExit(f"a job has ended: {job.status()}")
        if math.isinf(began_s) and all(seen and seen[-1][1] for seen in points):
            began_s = time.monotonic() + WARM_UP_S
            until_s = began_s + seconds
        time.sleep(_POLL_S)
    if math.isinf(began_s):
        raise SystemExit(f"a job has trained no batch in {_START_S:.0f} s")
    return [speed(seen, began_s, until_s) for seen in points]


def speed(points: Points, from_s: float, until_s: float) -> float:
    """Return the batches per second between the first and the last of the points in this time.

    >>> speed([(0.0, 0), (10.0, 5), (20.0, 25), (30.0, 30)], 10.0, 25.0)
    2.0
    """
    inside = [point for point in points if from_s <= point[0] <= until_s]
    if len(inside) < 2:
        return 0.0
    (first_s, first), (last_s, last) = inside[0], inside[-1]
    return (last - first) / (last_s - first_s)


def row(model: str, shares: Sequence[float], full: float, speeds: Sequence[float]) -> str:
    """Format the shares of the full speed of one job, ``full``, in the order of the allocated shares.

    >>> row("resnet50", (0.5, 0.5), 20.0, [9.8, 9.6])
    '| resnet50 | 0.5, 0.5 | 0.490, 0.480 | 97.0 % |'
    """
    reached = [one / full for one in speeds]
    allocated, measured = ", ".join(f"{share:g}" for share in shares), ", ".join(f"{one:.3f}" for one in reached)
    return f"| {model} | {allocated} | {measured} | {100 * sum(reached) / sum(shares):.1f} % |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark, print each row when it is known, and write all as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.shares", description=__doc__)
    parser.add_argument("--seconds", type=between(1.0, 600.0), default=20.0, help="duration of each measurement (20)")
    parser.add_argument("--json", type=writable, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        runtime = ProcessRuntime(Path(folder))
        print("| model | allocated | share of the full speed | of the allocation |\n|---|---|---|---|", flush=True)
        for model in STEPS:
            (full,) = train_together(runtime, model, (1.0,), chosen.seconds)
            for shares in MIXES:
                speeds = train_together(runtime, model, shares, chosen.seconds)
                figures.append({"model": model, "full": full, "shares": shares, "speeds": speeds})
                print(row(model, shares, full, speeds), flush=True)
                if chosen.json:
                    Path(chosen.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
