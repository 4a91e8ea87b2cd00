"""The contract of a running job: its start, allocation, limits and end."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidInputError
from paceline.runtime import JobSpec

from .harness import GATE, MIB, WAITS, RuntimeHarness, pass_gate, read_to_end, until, wait_for_line, wait_for_quota

SHARE = """
from paceline.train.pacing.share import CpuShare
share = CpuShare()
gate()
print(share.read(), share.read_devices())
"""

TOO_LARGE = """
import errno
with open("file", "wb", buffering=0) as file:
    try:
        for _ in range(64): file.write(bytes(2**20))
    except OSError as error:
        print(errno.errorcode[error.errno], file.tell() // 2**20)
"""

STOPPABLE = """
import signal
def save(*_):
    print("saving", flush=True)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save if DEAF == 0 else signal.SIG_IGN)
print("up", flush=True)
while True: sum(range(1000))
"""


class RunningJobs:
    """A job starts, is resized, and ends."""

    def test_sets_have_the_same_order_in_every_process_of_a_job(self, harness: RuntimeHarness) -> None:
        code = "print(list({f'class {number}' for number in range(30)}))"
        orders: list[str] = []
        for environment in ({}, {}, {"PYTHONHASHSEED": "7"}):
            job = harness.runtime.start(harness.spec(code, environment=environment))
            (order,) = read_to_end(job)
            if not orders:
                job.restart()
                assert read_to_end(job) == [order]
            orders.append(order)
            job.remove()
        assert orders[0] == orders[1]
        assert orders[2] != orders[0], "the user's seed applies"

    def test_wait_returns_whether_the_job_has_ended(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(harness.spec(GATE + "gate()"))
        wait_for_line(job, "at the gate")
        assert not job.wait(0)
        assert not job.wait(0.2)
        assert job.status().state == "running"
        harness.signal(job, signal.SIGUSR1)
        assert job.wait(60)
        assert job.wait(0)
        assert job.status().exit_code == 0
        job.remove()

    def test_each_device_comes_with_its_cores(self, harness: RuntimeHarness) -> None:
        spec = harness.spec(GATE + SHARE, devices=2, cores_per_device=0.25)
        job = harness.runtime.start(spec)
        wait_for_quota(harness, job, 0.5)
        job.resize(1)
        wait_for_quota(harness, job, 0.25)
        reattached = harness.runtime.reattach(job.id)
        reattached.resize(3)
        wait_for_quota(harness, job, 0.75)
        pass_gate(harness, job)
        assert read_to_end(job) == ["0.75 3.0"]
        reattached.close()
        job.remove()
        too_many = dataclasses.replace(spec, devices=1000, cores_per_device=0.5)
        capacity = harness.runtime.capacity()
        with pytest.raises(
            InvalidInputError, match=rf"devices: got 1000, expected at most {2 * capacity:g}, .*divided by"
        ):
            harness.runtime.check(too_many)

    def test_resize_changes_the_quota_of_a_running_job(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(harness.spec("while True: pass", devices=0.5))
        assert harness.quota_of(job) == pytest.approx(0.5)
        first = job.usage()
        for devices in (0.2, 0.9, 0.2):
            job.resize(devices)
            wait_for_quota(harness, job, devices)
        with pytest.raises(InvalidInputError, match="devices: got 0"):
            job.resize(0)
        assert harness.quota_of(job) == pytest.approx(0.2)
        until(lambda: job.usage().cpu_s > first.cpu_s and job.usage().memory_bytes > 0)
        assert job.usage().memory_bytes < 256 * MIB
        job.resize(0.0001)  # below the kernel's minimum quota
        job.remove()

    def test_job_killed_for_using_too_much_memory_reports_its_limit(self, harness: RuntimeHarness) -> None:
        # The job allocates only twice its limit, so that a late kill does not exhaust this machine's memory.
        greedy = "import signal\nkept = [bytearray(b'x') * 2_000_000 for _ in range(100)]\nsignal.pause()"
        job = harness.runtime.start(harness.spec(greedy, memory_bytes=100 * MIB))
        read_to_end(job)
        status = job.status()
        assert (status.out_of_memory, status.exit_code) == (True, 137)
        assert status.reason == "ran out of memory, limit 100 MiB: increase runtime.memory"
        job.remove()

    def test_job_with_a_process_killed_for_using_too_much_memory_reports_its_limit(
        self, harness: RuntimeHarness
    ) -> None:
        # The job itself ends with another code, as after an error of its own.
        greedy = "import signal\nkept = [bytearray(b'x') * 2_000_000 for _ in range(100)]\nsignal.pause()"
        code = f"import subprocess, sys\nsys.exit(3 if subprocess.call([sys.executable, '-c', {greedy!r}]) else 0)"
        job = harness.runtime.start(harness.spec(code, memory_bytes=100 * MIB))
        read_to_end(job)
        status = job.status()
        assert (status.out_of_memory, status.state) == (True, "exited")
        assert status.reason == "ran out of memory, limit 100 MiB: increase runtime.memory"
        job.remove()

    def test_no_file_of_a_job_exceeds_its_disk_limit(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(harness.spec(TOO_LARGE, disk_bytes=16 * MIB))
        assert read_to_end(job) == ["EFBIG 16"]
        job.remove()

    def test_stopped_job_can_save_its_checkpoint_with_a_tiny_allocation(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(harness.spec(STOPPABLE.replace("DEAF", "0")))
        lines = wait_for_line(job, "up")
        job.resize(0.05)
        wait_for_quota(harness, job, 0.05)
        job.stop(60.0)
        assert lines + read_to_end(job) == ["up", "saving"]
        assert job.status().exit_code == 0
        job.stop()
        job.remove()

    def test_stop_kills_a_job_that_ignores_sigterm(self, harness: RuntimeHarness) -> None:
        job = harness.runtime.start(harness.spec(STOPPABLE.replace("DEAF", "1")))
        wait_for_line(job, "up")
        job.stop(0.5)
        assert (job.status().state, job.status().exit_code) == ("exited", 137)
        job.remove()

    def test_every_method_works_for_a_job_killed_at_its_start(self, harness: RuntimeHarness, tmp_path: Path) -> None:
        job = harness.runtime.start(harness.spec(WAITS))
        harness.signal(job, signal.SIGKILL)
        assert job.wait(60)
        assert set(job.read_lines()) <= {"up"}
        assert job.read_lines() == []
        job.resize(0.5)
        assert job.usage().memory_bytes == 0
        job.stop(0)
        job.collect(tmp_path / "out")
        assert list((tmp_path / "out").iterdir()) == []
        assert (job.status().state, job.status().exit_code) == ("exited", 137)
        assert harness.runtime.reattach(job.id).wait(60)
        job.close()
        job.remove()

    def test_invalid_spec_is_rejected_before_the_start(self, harness: RuntimeHarness, tmp_path: Path) -> None:
        good: JobSpec = harness.spec("print()")
        cases: dict[str, Mapping[str, Any]] = {
            "files: got .*nowhere.py', expected an existing file": {"files": {"a.py": tmp_path / "nowhere.py"}},
            "inputs: got .*nowhere', expected an existing file or folder": {"inputs": {"a": tmp_path / "nowhere"}},
            "devices: got 0,": {"devices": 0},
            "devices: got 1000": {"devices": 1000},
            "user: got '0', expected an unprivileged user": {"user": "0"},
            "user: got 'root'": {"user": "root"},
            "user: got '1:x', expected 'uid' or 'uid:gid'": {"user": "1:x", "allow_root": True},
            **harness.rejected,
        }
        for message, change in cases.items():
            with pytest.raises(InvalidInputError, match=message):
                harness.runtime.start(dataclasses.replace(good, **change))
        assert harness.leftovers() == []
