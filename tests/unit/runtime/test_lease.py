"""The watcher of a container's lease, as a script of this machine's shell."""

from __future__ import annotations

import signal
import subprocess
import sys
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


@pytest.mark.parametrize("has_python", [True, False])
@pytest.mark.parametrize(("handler", "end"), [("-", signal.SIGTERM), ("''", signal.SIGKILL)])
def test_job_ends_with_its_lease_even_if_the_watcher_cannot_start_processes(
    tmp_path: Path, has_python: bool, handler: str, end: signal.Signals
) -> None:
    """With Python, no process is started at all; without, the watcher tries until one is."""
    programs = tmp_path / "bin"
    programs.mkdir()
    fails_once = f"[ -e {tmp_path}/tried ] && exec /bin/sleep $1; > {tmp_path}/tried; exit 1"
    (programs / "sleep").write_text(f"#!/bin/sh\n{'exit 1' if has_python else fails_once}\n")
    (programs / "sleep").chmod(0o755)
    if has_python:
        (programs / "python3").symlink_to(sys.executable)
    prepare = f"trap {handler} TERM; cd {tmp_path} && /bin/mkdir own && echo 1 0 > new && /bin/mv new lease"
    command = ["/bin/sh", "-c", f"{prepare} && exec /bin/sleep 1000"]
    job = subprocess.Popen(["/bin/sh", str(SCRIPT), str(tmp_path), "0", "1", *command], env={"PATH": str(programs)})
    try:
        assert job.wait(LONG_S) == -end
    finally:
        job.kill()
    assert (tmp_path / "own" / "ended").is_file()
