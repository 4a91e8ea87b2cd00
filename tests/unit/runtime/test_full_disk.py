"""A local job ends, and can be stopped, on a full disk. In these tests, no new file can be written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import RuntimeUnavailableError
from paceline.runtime import process_job
from paceline.runtime import scratch as scratch_module
from paceline.runtime.process_job import ProcessJob
from paceline.runtime.processes import identify
from paceline.runtime.scratch import USAGE_BYTES, Scratch, write_end, write_json


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path)


@pytest.fixture
def launcher(scratch: Scratch) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that the scratch folder names as the launcher."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    write_json(scratch.state, {"launcher": asdict(identify(process.pid) or pytest.fail("the process has ended"))})
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def job(scratch: Scratch) -> ProcessJob:
    return ProcessJob(scratch, max_output_bytes=1000, from_start=True)


@pytest.fixture(autouse=True)
def full_disk(launcher: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, value: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for module in (scratch_module, process_job):
        monkeypatch.setattr(module, "write_json", refuse)


def test_end_of_a_job_is_recorded_in_the_space_of_its_usage_file(scratch: Scratch, job: ProcessJob) -> None:
    scratch.usage.write_text(json.dumps({"cpu_s": 1.0, "memory_bytes": 5, "measured_s": 2.0}).ljust(USAGE_BYTES))
    write_end(scratch, {"exit_code": 0, "cpu_s": 3.0, "finished_s": 9.0})
    assert (job.status().state, job.status().exit_code, job.usage().cpu_s) == ("exited", 0, 3.0)


def test_job_can_be_stopped(launcher: subprocess.Popen[bytes], job: ProcessJob) -> None:
    job.stop(0.0)
    assert launcher.wait(60) == -15


def test_new_allocation_is_tried_again_later(job: ProcessJob) -> None:
    with pytest.raises(RuntimeUnavailableError, match="No space left on device"):
        job.resize(0.5)
