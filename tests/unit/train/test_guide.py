"""The first example of the guide runs unchanged, both when started by hand and as a job."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

from paceline.train.progress import parse_line

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("in_a_job", [False, True], ids=["by hand", "job"])
def test_guide_example_trains_and_writes_its_model(tmp_path, fork, in_a_job):
    guide = (ROOT / "docs" / "training-code.md").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1])
    environment, inputs, outputs = {"PYTHONPATH": str(ROOT / "include")}, tmp_path, tmp_path
    if in_a_job:
        inputs, outputs = tmp_path / "input", tmp_path / "output"
        folders = {"INPUT": inputs, "OUTPUT": outputs, "CHECKPOINT": tmp_path / "checkpoint"}
        for name, folder in folders.items():
            folder.mkdir()
            environment[f"PACELINE_{name}"] = str(folder)
    torch.save((torch.randn(640, 8), torch.randn(640, 1)), inputs / "data.pt")
    process = fork(["train.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    log = process.stdout.read()
    assert process.wait() == 0, log
    assert set(torch.load(outputs / "model.pt", weights_only=True)) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    progress = [parsed for line in log.splitlines() if (parsed := parse_line(line))]
    assert [(one.event, one.done) for one in progress][-1:] == ([("finish", 160)] if in_a_job else [])
