"""The end of a process whose loader has persistent workers."""

import os
import subprocess
import sys

import pytest

from .machines import INCLUDE, LIMIT_S

# A loader that pins memory registers such a handler; older versions of torch wait there for the workers.
CODE = """
import atexit, os, signal, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from paceline.train import checkpoint, track

loader = DataLoader(TensorDataset(torch.zeros(8)), batch_size=2, num_workers=2, persistent_workers=True)
workers = []
checkpoint(model=torch.nn.Linear(1, 1))
for _ in track(loader, epochs=2):
    if not workers:
        workers = loader._iterator._workers
        atexit.register(lambda: print([worker.is_alive() for worker in workers]))
        print([worker.is_alive() for worker in workers])
        if sys.argv[1] == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(("end", "code"), [("finished", 0), ("terminated", 143)])
def test_persistent_workers_end_before_the_loader_waits_for_them_at_exit(tmp_path, end, code):
    environment = {
        **os.environ,
        "PYTHONPATH": str(INCLUDE),
        "PACELINE_OUTPUT": str(tmp_path),
        "PACELINE_CHECKPOINT": str(tmp_path / "checkpoint"),
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE, end], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert lines == ["[True, True]", "[False, False]"]
