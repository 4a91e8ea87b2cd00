"""The first example of the guide runs as it stands, by hand and as a job."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.train.progress import parse_line

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("in_a_job", [False, True], ids=["by hand", "job"])
def test_the_example_of_the_guide_trains_and_leaves_its_model(tmp_path, in_a_job):
    guide = (ROOT / "docs" / "training-code.md").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1])
    torch.save((torch.randn(640, 8), torch.randn(640, 1)), tmp_path / "data.pt")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "include")}
    if in_a_job:
        for name in ("INPUT", "OUTPUT", "CHECKPOINT"):
            environment[f"PACELINE_{name}"] = str(tmp_path)
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert set(torch.load(tmp_path / "model.pt", weights_only=True)) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    progress = [parsed for line in done.stdout.splitlines() if (parsed := parse_line(line))]
    assert [(one.event, one.done) for one in progress][-1:] == ([("finish", 200)] if in_a_job else [])
