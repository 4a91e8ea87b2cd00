"""What receives a job's files in its pod."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from paceline.runtime.kubernetes._files import _RECEIVE
from paceline.runtime.kubernetes._pod import HOME

# Fault: another process creates a folder between the moment when its absence is seen and the one when it is created.
FOLDERS_APPEAR = """
import os
def appear(path, exists=os.path.exists):
    found = exists(path)
    if not found:
        os.mkdir(path)
    return found
os.path.exists = appear
"""


def test_folder_that_the_supervisor_creates_meanwhile_is_used(tmp_path: Path) -> None:
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w|") as archive:
        member = tarfile.TarInfo("state/job.json")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"{}"))
    program = FOLDERS_APPEAR + _RECEIVE.replace(repr(HOME), repr(str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", program], input=sent.getvalue(), capture_output=True, check=True)
    assert done.stdout == b"received\n"
    assert (tmp_path / "state" / "job.json").read_bytes() == b"{}"
