"""The adapter in docs/extending.md, as its readers copy it, keeps the contract of adapters; a wrong one does not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[4] / "docs" / "extending.md"
ADAPTER = GUIDE.read_text().partition("## An adapter")[2]


def run_contract(folder, old="", new=""):
    """Run the guide's tests of its adapter with ``old`` replaced by ``new``; return the names of failed tests."""
    adapter, test = re.findall(r"```python\n(.*?)```", ADAPTER, re.DOTALL)
    assert old in adapter
    (folder / "paceline_boosting.py").write_text(adapter.replace(old, new))
    (folder / "test_boosting.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_boosting.py"]
    path = os.pathsep.join(filter(None, sys.path))
    run = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    assert re.search(r"\d+ (passed|failed|error)", run.stdout), run.stdout
    return set(re.findall(r"^(?:FAILED|ERROR) test_boosting.py::TestFit::(\w+)", run.stdout, re.MULTILINE))


def test_adapter_of_the_guide_keeps_the_contract(tmp_path):
    assert run_contract(tmp_path) == set()


@pytest.mark.parametrize(
    ("old", "new", "failed"),
    [
        ("if steps.restored:", "if False:", "test_killed_training_ends_as_an_uninterrupted_one"),
        ("estimator.get_params(), X=X", "{}, X=X", "test_checkpoint_of_another_training_is_not_restored"),
        ("ended or not steps.advance()", "ended", "test_progress_counts_all_steps"),
    ],
)
def test_wrong_adapter_fails(tmp_path, old, new, failed):
    assert failed in run_contract(tmp_path, old, new)
