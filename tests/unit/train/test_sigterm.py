"""SIGTERM ends a training with exit code 143, wherever it arrives."""

import os
import subprocess
import sys

import pytest

from .machines import INCLUDE, LIMIT_S

SCRIPTS = {
    "in a loop in a thread": """
checkpoint(state=Kept(value=1))
def train():
    for batch in track(range(5)):
        if batch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
thread = threading.Thread(target=train)
thread.start()
thread.join()
""",
    "in a validation, before a break": """
checkpoint(state=Kept(value=1))
for epoch in track_epochs(3):
    for batch in track(range(5)):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    break
time.sleep(60)
""",
    "in a validation, before stop_early": """
checkpoint(state=Kept(value=1))
for epoch in track_epochs(3):
    for batch in track(range(5)):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    stop_early()
time.sleep(60)
""",
    "after a break out of enumerate()": """
checkpoint(state=Kept(value=1))
for number, batch in enumerate(track(range(5))):
    break
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""",
    "while XGBoost calls a function": """
import numpy, xgboost
from paceline.train.adapters.xgboost import PacelineCallback
table = numpy.arange(40.0).reshape(20, 2)
class Parts(xgboost.DataIter):
    part = 0
    def next(self, add):
        self.part += 1
        if self.part == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.part <= 3:
            add(data=table, label=table[:, 0])
        return self.part <= 3
    def reset(self):
        self.part = 0
xgboost.train({}, xgboost.DMatrix(table, table[:, 0]), 2, callbacks=[PacelineCallback()])
xgboost.QuantileDMatrix(Parts())
time.sleep(60)
""",
}
BEGIN = """
import os, signal, threading, time
from paceline.train import Kept, checkpoint, stop_early, track, track_epochs
"""


@pytest.mark.parametrize("place", SCRIPTS)
def test_sigterm_ends_a_training_with_143(tmp_path, place):
    if "XGBoost" in place:
        pytest.importorskip("xgboost")
    environment = os.environ | {"PYTHONPATH": str(INCLUDE), "PACELINE_OUTPUT": str(tmp_path)}
    environment["PACELINE_CHECKPOINT"] = str(tmp_path / "checkpoint")
    command = [sys.executable, "-c", BEGIN + SCRIPTS[place]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 143, done.stderr
