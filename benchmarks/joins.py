"""Measures what joins and comparisons of states cost data-parallel training: ``python -m benchmarks.joins``.

Trains a network with one process, lets a second one join, and ends it again, several times. With GPUs, each process has
one. The second process runs this module as well, like any training script.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.options import between, writable
from paceline.train import checkpoint, data_parallel, device, stop_early, track
from paceline.train.job import ENV_CONTROL, is_follower

BATCH_SIZE, WIDTH = 64, 512
_BATCHES = 20  # with each number of processes, at least
_MAX_BATCHES = 100_000


class Timed:
    """Calls a function and keeps the seconds of each call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds: list[float] = []

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        began_s = time.perf_counter()
        result = self._function(*arguments)
        self.seconds.append(time.perf_counter() - began_s)
        return result


def make_network(parameters: int) -> torch.nn.Module:
    """Return a network of equal layers with about so many parameters."""
    layers = max(1, parameters // WIDTH**2)
    return torch.nn.Sequential(
        *(layer for _ in range(layers) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()))
    )


def measure(parameters: int, joins: int) -> dict[str, float]:
    """Train with processes that join ``joins`` times; return the medians of the durations."""
    torch.manual_seed(0)
    model = data_parallel(make_network(parameters).to(device()))
    compare = model.compare = Timed(model.compare)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    checkpoint(model=model, optimizer=optimizer)
    inputs = torch.utils.data.TensorDataset(torch.zeros(BATCH_SIZE * _MAX_BATCHES, 1))
    batches: dict[bool, list[float]] = {False: [], True: []}
    changes: list[float] = []
    group, in_group, ended_s = None, 0, time.perf_counter()
    for _ in track(torch.utils.data.DataLoader(inputs, BATCH_SIZE)):
        began_s = time.perf_counter()
        if model.arrivals is not group:
            group, in_group = model.arrivals, 0
            changes.append(began_s - ended_s)
        if not is_follower() and in_group == _BATCHES:
            if group is None and len(changes) >= 2 * joins:
                stop_early()
            _allocate(1 if group is not None else 2)
        features = torch.randn(BATCH_SIZE, WIDTH, device=device())
        optimizer.zero_grad()
        (model(features) - features).square().mean().backward()
        optimizer.step()
        if features.is_cuda:
            torch.cuda.synchronize()
        ended_s, in_group = time.perf_counter(), in_group + 1
        batches[group is not None].append(ended_s - began_s)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch_alone_s": median(batches[False]),
        "batch_in_two_s": median(batches[True]),
        "comparison_s": median(compare.seconds),
        "join_or_leave_s": median(changes),
    }


def _allocate(devices: int) -> None:
    Path(os.environ[ENV_CONTROL]).write_text(json.dumps({"devices": devices}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line of figures and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joins", description=__doc__)
    parser.add_argument("--parameters", type=between(1e5, 1e9), default=1e7, help="of the network (10 million)")
    parser.add_argument("--joins", type=between(1, 100), default=3, help="how often a process joins (3)")
    parser.add_argument("--json", type=writable, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if not is_follower():
            os.environ[ENV_CONTROL] = str(Path(folder, "control.json"))
            _allocate(1)
        found = measure(round(chosen.parameters), round(chosen.joins))
    durations = (f"{name[:-2].replace('_', ' ')} {1000 * s:.1f} ms" for name, s in found.items() if name.endswith("_s"))
    print(f"{found['parameters']:,} parameters on {device()}: {', '.join(durations)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
