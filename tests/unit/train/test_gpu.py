"""Training on a GPU resumes bit for bit, also in half precision. ``on_gpu.py`` is the training code."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from paceline.train.progress import parse_line

from .machines import HERE, INCLUDE, LIMIT_S

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def train(folder, killed_at=0, devices=1):
    """Run the script once; return the exit code and the progress lines."""
    (folder / "control.json").write_text(f'{{"devices": {devices}}}')
    environment = {
        **os.environ,
        "PYTHONPATH": str(INCLUDE),
        "PACELINE_OUTPUT": str(folder),
        "PACELINE_CHECKPOINT": str(folder / "checkpoint"),
        "PACELINE_CONTROL": str(folder / "control.json"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    command = [sys.executable, str(HERE / "on_gpu.py"), str(killed_at)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    return done.returncode, [line for text in done.stdout.splitlines() if (line := parse_line(text))]


def flatten(state):
    """Return the numbers of a nested state in a fixed order."""
    if isinstance(state, torch.Tensor):
        return state.double().flatten().tolist()
    if isinstance(state, dict):
        return [number for key in sorted(state, key=str) for number in flatten(state[key])]
    if isinstance(state, (list, tuple)):
        return [number for item in state for number in flatten(item)]
    return [state]


def end_of(folder):
    return flatten(torch.load(folder / "end.pt", weights_only=True))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert train(folder)[0] == 0
    return end_of(folder)


def test_killed_training_on_a_gpu_ends_with_the_same_states_bit_for_bit(tmp_path, uninterrupted):
    for killed_at in (1, 6, 11, 24):  # an epoch has 6 batches
        assert train(tmp_path, killed_at)[0] == -signal.SIGKILL
    code, lines = train(tmp_path)
    assert (code, lines[0].done, lines[0].device) == (0, 23, "cuda")
    assert end_of(tmp_path) == uninterrupted


def test_number_of_processes_is_at_most_the_number_of_gpus(tmp_path, uninterrupted):
    code, lines = train(tmp_path, devices=torch.cuda.device_count() + 2)
    assert code == 0
    assert {line.devices_in_force for line in lines} <= set(range(1, torch.cuda.device_count() + 1))
    if torch.cuda.device_count() == 1:
        assert end_of(tmp_path) == uninterrupted
