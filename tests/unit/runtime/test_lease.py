"""The watcher of a container's lease, as a script of this machine's shell."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from tests.waiting import LONG_S

import paceline.runtime

SCRIPT = Path(paceline.runtime.__file__).with_name("_lease.sh")


@pytest.mark.parametrize(
    ("prepare", "is_marked"),
    [
        ("mkdir own", True),
        ("true", False),  # the job has removed the folder, or the disk is full
        ("mkdir -p own/ended", False),
        ("mkdir own && mkfifo own/ended", False),
    ],
)
def test_job_ends_with_its_lease_even_if_the_end_cannot_be_marked(
    tmp_path: Path, prepare: str, is_marked: bool
) -> None:
    command = f"cd {tmp_path} && {prepare} && echo 1 0 > new && mv new lease && exec sleep 1000"
    job = subprocess.Popen(["sh", str(SCRIPT), str(tmp_path), "0", "1", "sh", "-c", command])
    try:
        assert job.wait(LONG_S) == -signal.SIGTERM
    finally:
        job.kill()
    assert (tmp_path / "own" / "ended").is_file() == is_marked
