"""Fixtures: training runs of a boosting library, ended by signals, and a session without a job's environment."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.train.progress import parse_line

from .killed import ROUNDS

HERE = Path(__file__).parent
INCLUDE = HERE.parents[3] / "include"
CODES = {"SIGTERM": 143, "SIGKILL": -9}


def random_kills(seed, count=10, rounds=ROUNDS):
    """Return pairs of a signal and a round, in any order: a process may also be killed before it trains a new round."""
    generator = random.Random(seed)
    return [(generator.choice(list(CODES)), generator.randint(1, rounds)) for _ in range(count)]


def expected_codes(scenario):
    return [CODES[signal] for signal, _ in scenario.get("kills", ())] + [0]


@pytest.fixture(scope="package")
def train_killed(tmp_path_factory):
    """Return a function that runs scenarios of ``killed.py`` and returns their results by name."""

    def run(library, scenarios):
        top = tmp_path_factory.mktemp(library)
        command = [sys.executable, HERE / "killed.py", library, top, json.dumps(scenarios)]
        # Use one thread per library, because thread pools do not survive a fork.
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(INCLUDE), "OMP_NUM_THREADS": "1"}, check=True)
        return {name: read_result(top / name) for name in scenarios}

    return run


def read_result(folder):
    """Return the exit codes, the logs and progress of each start, and the trained model's result."""
    codes = json.loads((folder / "codes").read_text())
    logs = [(folder / f"log-{restarts}").read_text() for restarts in range(len(codes))]
    result = folder / "result"
    return SimpleNamespace(
        codes=codes,
        logs=logs,
        progress=[[p for line in log.splitlines() if (p := parse_line(line))] for log in logs],
        model=json.loads(result.read_text()) if result.exists() else None,
    )


def random_ends(seed, steps):
    """Return ten pairs of a signal and one of the steps of three epochs, in increasing order.

    The last step of an epoch and the step after it are among them.
    """
    generator = random.Random(seed)
    chosen = {steps // 3, steps // 3 + 1}
    chosen |= set(generator.sample([one for one in range(1, steps) if one not in chosen], 8))
    return [[generator.choice(list(CODES)), step] for step in sorted(chosen)]


@pytest.fixture(scope="package")
def train_all(tmp_path_factory):
    """Return a function that runs scenarios of ``with_LIBRARY.py`` and returns their results by name."""

    def run(library, scenarios, **environment):
        top = tmp_path_factory.mktemp(library)
        command = [sys.executable, HERE / "starts.py", f"with_{library}", top, json.dumps(scenarios)]
        variables = environment | {"PYTHONPATH": str(INCLUDE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run(command, env=os.environ | variables, check=True)
        return {name: read_training(top / name) for name in scenarios}

    return run


def read_training(folder):
    """Return the exit codes, the progress of each start, the steps that were trained, and the final weights."""
    codes = json.loads((folder / "codes").read_text())
    logs = [(folder / f"log-{restarts}").read_text() for restarts in range(len(codes))]
    assert codes[-1] == 0, logs[-1]
    return SimpleNamespace(
        folder=folder,
        codes=codes,
        progress=[[p for line in log.splitlines() if (p := parse_line(line))] for log in logs],
        seen=(folder / "seen").read_text().splitlines(),
        weights=read_weights(folder),
    )


def read_weights(folder):
    if (folder / "model.npz").exists():
        with np.load(folder / "model.npz", allow_pickle=False) as arrays:
            return dict(arrays)
    import torch

    return torch.load(folder / "model.pt", weights_only=True)
