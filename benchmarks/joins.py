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
from paceline.train import _session, checkpoint, data_parallel, device, track
from paceline.train.job import ENV_CONTROL, is_follower
from paceline.train.parallel._lead import Lead

BATCH_SIZE, WIDTH = 64, 512
_BATCHES = 20  # with each number of processes


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
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    checkpoint(model=model, optimizer=optimizer)
    role = _session.current.role
    assert role is not None
    compare = Timed(model.compare)
    model.compare = compare
    form_group = Timed(getattr(role, "_form_group", print))
    role._form_group = form_group  # type: ignore[attr-defined]
    _session.current.clock = iter(range(10**9)).__next__  # the loop reads its share of the devices after every batch
    inputs = torch.utils.data.TensorDataset(torch.randn(BATCH_SIZE * 2 * _BATCHES * joins, WIDTH))
    loop = track(torch.utils.data.DataLoader(inputs, BATCH_SIZE))
    batches: dict[int | None, list[float]] = {None: [], 1: [], 2: []}  # `None` in the second process
    for (features,) in loop:
        if isinstance(role, Lead) and loop.done % _BATCHES == _BATCHES - 1:
            processes = 2 - loop.done // _BATCHES % 2
            Path(os.environ[ENV_CONTROL]).write_text(json.dumps({"devices": processes}))
            while not role.adjust_processes(processes):
                time.sleep(0.01)
        began_s = time.perf_counter()
        features = features.to(device())
        optimizer.zero_grad()
        (model(features) - features).square().mean().backward()
        optimizer.step()
        if features.is_cuda:
            torch.cuda.synchronize()
        batches[role.devices].append(time.perf_counter() - began_s)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch_alone_s": median(batches[1]),
        "batch_in_two_s": median(batches[2]),
        "comparison_s": median(compare.seconds),
        "join_or_leave_s": median(form_group.seconds),
    }


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
            Path(os.environ[ENV_CONTROL]).write_text('{"devices": 1}')
        found = measure(round(chosen.parameters), round(chosen.joins))
    durations = (f"{name[:-2].replace('_', ' ')} {1000 * s:.1f} ms" for name, s in found.items() if name.endswith("_s"))
    print(f"{found['parameters']:,} parameters on {device()}: {', '.join(durations)}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
