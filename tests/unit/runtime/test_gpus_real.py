"""Test of local jobs on the GPUs of this machine. On a machine without Airflow, run it with ``--noconftest``."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from paceline.errors import RuntimeUnavailableError
from paceline.runtime import JobSpec, ProcessRuntime, gpus
from paceline.runtime.process_job import ProcessJob

pytestmark = [
    pytest.mark.skipif(not gpus.of_process(), reason="this machine has no NVIDIA GPU"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]

COMPUTES = """
import os, signal, torch
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
ones = torch.ones(64, 64, device="cuda") if torch.cuda.is_available() else torch.ones(64, 64)
print(os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count(), ones.device.type, int((ones @ ones).sum()))
signal.sigwait([signal.SIGUSR1])
"""


@pytest.fixture
def jobs() -> Iterator[list[ProcessJob]]:
    started: list[ProcessJob] = []
    yield started
    for job in started:
        job.remove()


def test_jobs_compute_on_their_own_gpus_until_none_is_free(tmp_path: Path, jobs: list[ProcessJob]) -> None:
    ids = gpus.of_process()
    runtime = ProcessRuntime(tmp_path / "root")
    script = tmp_path / "job.py"
    script.write_text(COMPUTES)

    def start(name: str, count: int) -> ProcessJob:
        spec = JobSpec(name, ["python", "-u", "job.py"], 1.0, files={"job.py": script}, gpus=count, memory_bytes=None)
        jobs.append(runtime.start(spec))
        return jobs[-1]

    def first_line(job: ProcessJob) -> str:
        lines: list[str] = []
        until(lambda: lines.extend(job.read_lines()) or lines or job.status().state != "running", lines)
        return (lines + job.read_lines())[0]

    assert [first_line(start(f"one-{gpu}", 1)) for gpu in ids] == [f"{gpu} 1 cuda {64**3}" for gpu in ids]
    with pytest.raises(RuntimeUnavailableError, match="free: none"):
        start("surplus", 1)
    for job in list(jobs):
        job.remove()
    assert first_line(start("all", len(ids))) == f"{','.join(ids)} {len(ids)} cuda {64**3}"
