"""Checkpoints of training code that does not use torch, such as numpy or JAX."""

import os
import subprocess
import sys

import numpy
import pytest

from paceline.train import Kept
from paceline.train.saving import _plain, store

from .machines import HERE, INCLUDE

CODES = {"SIGTERM": 143, "SIGKILL": -9}


def run(folder, signal, lives):
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(INCLUDE)}
    environment |= {"PACELINE_OUTPUT": str(folder), "PACELINE_CHECKPOINT": str(folder / "checkpoint")}
    codes = [
        subprocess.run(
            [sys.executable, HERE / "without_torch.py", str(life), signal],
            env=environment,
            check=False,
        ).returncode
        for life in lives
    ]
    return codes, (folder / "result").read_text()


@pytest.mark.parametrize("signal", CODES)
def test_killed_training_without_torch_ends_like_an_undisturbed_one(tmp_path, signal):
    _, undisturbed = run(tmp_path / "once", signal, lives=[1])
    codes, result = run(tmp_path / "killed", signal, lives=[0, 1])
    assert codes == [CODES[signal], 0]
    assert result == undisturbed


def test_file_contains_no_code_and_no_other_types(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(ValueError, match="state: got a state with ndarray, expected"):
        store.check_loadable("state", {"a": numpy.zeros(2)})
    path = store.Store(tmp_path).save({"value": [1, (2.5, None)]})
    with path.open("rb") as file:
        assert _plain.read(file) == {"format": 1, "value": [1, (2.5, None)]}


def test_arrays_of_bfloat16_are_kept():
    values = numpy.array([1.5, 2.0], pytest.importorskip("ml_dtypes").bfloat16)
    restored = Kept(values=None)
    restored.load_state_dict(Kept(values=values).state_dict())
    assert restored.values.dtype == values.dtype
    assert restored.values.tolist() == [1.5, 2.0]
