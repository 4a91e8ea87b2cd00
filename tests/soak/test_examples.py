"""Run the property tests with new Hypothesis examples, because `make test` uses the same examples every time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.mark.timeout(3600)
def test_properties_hold_for_new_examples() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", "-p", "no:cacheprovider", "tests/unit"]
    environment = {**os.environ, "PACELINE_EXAMPLES": "new"}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:]  # the output contains the failing example and how to repeat it
