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
    "in a loop over a loader, before a break": """
from torch.utils.data import DataLoader
checkpoint(state=Kept(value=1))
for batch in track(DataLoader(range(8), batch_size=2)):
    os.kill(os.getpid(), signal.SIGTERM)
    break
time.sleep(60)
""",
    "in a loop over a loader with worker processes, before a return": """
from torch.utils.data import DataLoader
def train():
    for batch in track(DataLoader(range(8), batch_size=2, num_workers=2)):
        os.kill(os.getpid(), signal.SIGTERM)
        return
checkpoint(state=Kept(value=1))
train()
time.sleep(60)
""",
    "in a finalizer in a loop without a checkpoint": """
class File:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        print("closed")
for batch in track(range(5)):
    File()
    time.sleep(60)
""",
    "in a finalizer after the loop": """
class File:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        print("closed")
class Folder(File):
    def __init__(self):
        self.file = File()
    def __del__(self):
        del self.file
        print("closed")
for batch in track(range(5)):
    pass
Folder()
time.sleep(60)
""",
    "while a C library calls a function after the loop": """
import ctypes
def call():
    os.kill(os.getpid(), signal.SIGTERM)
    print("called")
for batch in track(range(5)):
    pass
ctypes.CFUNCTYPE(None)(call)()
time.sleep(60)
""",
    "after an error in XGBoost": """
import numpy, xgboost
from paceline.train.adapters.xgboost import PacelineCallback
table = numpy.arange(40.0).reshape(20, 2)
def fail(predictions, data):
    raise ArithmeticError
try:
    xgboost.train({}, xgboost.DMatrix(table, table[:, 0]), 2, obj=fail, callbacks=[PacelineCallback()])
except ArithmeticError:
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


def run_job(folder, script):
    environment = os.environ | {"PYTHONPATH": str(INCLUDE), "PACELINE_OUTPUT": str(folder)}
    environment["PACELINE_CHECKPOINT"] = str(folder / "checkpoint")
    command = [sys.executable, "-c", BEGIN + script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("place", SCRIPTS)
def test_sigterm_ends_a_training_with_143(tmp_path, place):
    if "XGBoost" in place:
        pytest.importorskip("xgboost")
    done = run_job(tmp_path, SCRIPTS[place])
    assert done.returncode == 143, done.stderr


AT_EXIT = """
import atexit
def end(name):
    print(name, "begins")
    if name == "first":
        os.kill(os.getpid(), signal.SIGTERM)
    print(name, "ends")
for name in ("third", "second", "first"):
    atexit.register(end, name)
for batch in track("a"):
    pass
"""


def test_sigterm_while_the_process_exits_does_not_interrupt_the_other_exit_functions(tmp_path):
    done = run_job(tmp_path, AT_EXIT)
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.endswith(("begins", "ends"))]
    assert printed[-4:] == ["second begins", "second ends", "third begins", "third ends"]


def test_other_dropped_errors_are_still_shown_after_sigterm(tmp_path):
    script = """
class File:
    def __del__(self):
        raise OSError("cannot close the file")
for batch in track("a"):
    pass
try:
    os.kill(os.getpid(), signal.SIGTERM)
    print("not reached")
finally:
    File()
"""
    done = run_job(tmp_path, script)
    assert done.returncode == 143
    assert "OSError: cannot close the file" in done.stderr
    assert "not reached" not in done.stdout
