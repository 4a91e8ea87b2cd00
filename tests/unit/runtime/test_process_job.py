"""What is taken of a local job's output folder; the contract of both runtimes shows the rest with real jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.errors import TrainingFailedError
from paceline.runtime.process_job import ProcessJob
from paceline.runtime.scratch import Scratch


def test_a_pipe_in_the_output_is_refused_and_nothing_taken(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "job")
    scratch.folder("output").mkdir(parents=True)
    (scratch.folder("output") / "a").write_text("fine")
    os.mkfifo(scratch.folder("output") / "x")
    with pytest.raises(TrainingFailedError, match="'output/x' is no regular file"):
        ProcessJob(scratch, max_output_bytes=1000, from_start=True).collect(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
