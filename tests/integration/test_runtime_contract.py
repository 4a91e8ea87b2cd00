"""The contract of all runtimes, tested with a real engine and with local processes under both throttling mechanisms."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration.jobs import (
    GATE,
    MAX_OUTPUT_BYTES,
    MIB,
    RESUMES,
    ContainerHarness,
    Harness,
    pass_gate,
    read_to_end,
    wait_for_line,
)
from tests.waiting import until

from paceline.errors import InvalidInputError, JobLostError, RuntimeUnavailableError, TrainingFailedError
from paceline.runtime import JobSpec
from paceline.train.progress import parse_line

PAUSE = "import signal\nprint('up', flush=True)\nsignal.pause()\n"


INSPECT = """
import json, os, pathlib, paceline.train
print(json.dumps({"input": pathlib.Path(os.environ["PACELINE_INPUT"], "data/a.txt").read_text(),
    "environment": dict(os.environ), "beside": sorted(os.listdir())}))
for folder in ("PACELINE_OUTPUT", "PACELINE_CHECKPOINT"):
    pathlib.Path(os.environ[folder], "deep").mkdir()
    pathlib.Path(os.environ[folder], "deep", "model.bin").write_bytes(b"weights")
"""


RESAMPLED = """
from paceline.train import report, resampled
report(auc=resampled(lambda rows: 1 / (1 + rows[0]), rows=1000, resamples=10_000))
"""


def test_every_resample_of_a_report_arrives(harness: Harness) -> None:
    job = harness.runtime.start(harness.spec(RESAMPLED))
    *parts, without_blocks, last = filter(None, map(parse_line, read_to_end(job)))
    job.remove()
    without = without_blocks.resamples["auc"].without
    assert [value == 1.0 for value in without] == [False] + [True] * 30, "the first block contains row 0"
    values = [value for part in parts for value in part.resamples["auc"].values]
    assert [part.resamples["auc"].first for part in parts] == list(range(0, 10_000, 200))
    assert len(values) == 10_000
    assert min(value for value in values if value is not None) == pytest.approx(0.001, rel=0.01)
    assert last.metrics == {"auc": 1.0}


def test_sets_have_the_same_order_in_every_process_of_a_job(harness: Harness) -> None:
    code = "print(list({f'class {number}' for number in range(30)}))"
    orders = []
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


def test_job_has_its_inputs_and_leaves_only_its_output(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:s3cret@db")
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text("reference")
    began_s = time.time()
    job = harness.runtime.start(harness.spec(INSPECT, inputs={"data": data}, environment={"SEED": "7"}))
    (line,) = read_to_end(job)
    seen = json.loads(line)
    assert (seen["input"], seen["environment"]["SEED"], seen["beside"]) == ("reference", "7", ["job.py"])
    assert "s3cret" not in line
    status = job.status()
    assert (status.state, status.exit_code, status.reason, status.out_of_memory) == ("exited", 0, "", False)
    assert status.started_s is not None
    assert status.finished_s is not None
    # The engine may run on another machine with a different clock.
    assert began_s - 60 < status.started_s <= status.finished_s < time.time() + 60
    job.collect(tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "model.bin").read_bytes() == b"weights"
    assert [found.name for found in (tmp_path / "out").iterdir()] == ["deep"]
    job.remove()
    job.remove()
    assert job.status().state == "gone"
    with pytest.raises(JobLostError):
        harness.runtime.reattach(job.id)


CHATTY = r"""
import os, sys
os.write(1, b"\xff\xfe broken\n" + b"x" * 200_000 + b"\nafter\n10%\r50%\r100%\n\n")
sys.stdout.reconfigure(write_through=False)
for i in range(20_000): print("line", i)
print("last", end="")
"""


def test_fast_output_is_read_once_and_in_order(harness: Harness) -> None:
    job = harness.runtime.start(harness.spec(CHATTY, devices=harness.runtime.capacity()))
    broken, long, *rest = read_to_end(job)
    assert broken == "�� broken"
    assert long.startswith("x" * 65536)
    assert len(long) < 65600
    assert rest == ["after", "100%", "", *(f"line {i}" for i in range(20_000)), "last"]
    job.remove()


def test_wait_returns_whether_the_job_has_ended(harness: Harness) -> None:
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


SHARE = """
from paceline.train.pacing.share import CpuShare
share = CpuShare()
gate()
print(share.read(), share.read_devices())
"""


def test_each_device_comes_with_its_cores(harness: Harness) -> None:
    spec = harness.spec(GATE + SHARE, devices=2, cores_per_device=0.25)
    job = harness.runtime.start(spec)
    until(lambda: harness.quota_of(job) == pytest.approx(0.5))
    job.resize(1)
    until(lambda: harness.quota_of(job) == pytest.approx(0.25))
    reattached = harness.runtime.reattach(job.id)
    reattached.resize(3)
    until(lambda: harness.quota_of(job) == pytest.approx(0.75))
    pass_gate(harness, job)
    assert read_to_end(job) == ["0.75 3.0"]
    reattached.close()
    job.remove()
    too_many = dataclasses.replace(spec, devices=1000, cores_per_device=0.5)
    capacity = harness.runtime.capacity()
    with pytest.raises(InvalidInputError, match=rf"devices: got 1000, expected at most {2 * capacity:g}, .*divided by"):
        harness.runtime.check(too_many)


def test_resize_changes_the_quota_of_a_running_job(harness: Harness) -> None:
    job = harness.runtime.start(harness.spec("while True: pass", devices=0.5))
    assert harness.quota_of(job) == pytest.approx(0.5)
    first = job.usage()
    for devices in (0.2, 0.9, 0.2):
        job.resize(devices)
        until(lambda devices=devices: harness.quota_of(job) == pytest.approx(devices))
    with pytest.raises(InvalidInputError, match="devices: got 0"):
        job.resize(0)
    assert harness.quota_of(job) == pytest.approx(0.2)
    until(lambda: job.usage().cpu_s > first.cpu_s and job.usage().memory_bytes > 0)
    assert job.usage().memory_bytes < 256 * MIB
    job.resize(0.0001)  # below the kernel's minimum quota
    job.remove()


def test_job_killed_for_using_too_much_memory_reports_its_limit(harness: Harness) -> None:
    # The job allocates only twice its limit, so that a late kill does not exhaust this machine's memory.
    greedy = "import signal\nkept = [bytearray(b'x') * 2_000_000 for _ in range(100)]\nsignal.pause()"
    job = harness.runtime.start(harness.spec(greedy, memory_bytes=100 * MIB))
    read_to_end(job)
    status = job.status()
    assert (status.out_of_memory, status.exit_code) == (True, 137)
    assert status.reason == "killed for memory, limit 100 MiB"
    job.remove()


TOO_LARGE = """
import errno
with open("file", "wb", buffering=0) as file:
    try:
        for _ in range(64): file.write(bytes(2**20))
    except OSError as error:
        print(errno.errorcode[error.errno], file.tell() // 2**20)
"""


def test_no_file_of_a_job_exceeds_its_disk_limit(harness: Harness) -> None:
    job = harness.runtime.start(harness.spec(TOO_LARGE, disk_bytes=16 * MIB))
    assert read_to_end(job) == ["EFBIG 16"]
    job.remove()


def test_restarted_job_has_its_checkpoint_and_continues_its_output(harness: Harness) -> None:
    job = harness.runtime.start(harness.spec(RESUMES))
    lines = wait_for_line(job, "saved")
    harness.signal(job, signal.SIGKILL)
    lines += read_to_end(job)
    assert (job.status().exit_code, job.status().reason) == (137, "killed (SIGKILL)")
    job.restart()
    lines += read_to_end(job)
    assert lines == ["resumed at 0", "saved", "resumed at 41"]
    assert job.status().exit_code == 0
    job.remove()


STOPPABLE = """
import signal
def save(*_):
    print("saving", flush=True)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save if DEAF == 0 else signal.SIG_IGN)
print("up", flush=True)
while True: sum(range(1000))
"""


def test_stopped_job_can_save_its_checkpoint_with_a_tiny_allocation(harness: Harness) -> None:
    job = harness.runtime.start(harness.spec(STOPPABLE.replace("DEAF", "0")))
    lines = wait_for_line(job, "up")
    job.resize(0.05)
    until(lambda: harness.quota_of(job) == pytest.approx(0.05))
    job.stop(60.0)
    assert lines + read_to_end(job) == ["up", "saving"]
    assert job.status().exit_code == 0
    job.stop()
    job.remove()


def test_stop_kills_a_job_that_ignores_sigterm(harness: Harness) -> None:
    job = harness.runtime.start(harness.spec(STOPPABLE.replace("DEAF", "1")))
    wait_for_line(job, "up")
    job.stop(0.5)
    assert (job.status().state, job.status().exit_code) == ("exited", 137)
    job.remove()


def test_every_method_works_for_a_job_killed_at_its_start(harness: Harness, tmp_path: Path) -> None:
    job = harness.runtime.start(harness.spec(PAUSE))
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


def test_start_reattaches_to_a_job_with_the_same_spec_and_rejects_a_different_spec(harness: Harness) -> None:
    first = harness.runtime.start(harness.spec(PAUSE))
    wait_for_line(first, "up")
    again = harness.runtime.start(harness.spec(PAUSE, devices=0.5))
    assert again.id == first.id
    wait_for_line(again, "up")
    again.close()
    with pytest.raises(RuntimeUnavailableError, match="is running another job named"):
        harness.runtime.start(harness.spec("print('other')"))
    first.stop(0.0)
    other = harness.runtime.start(harness.spec("print('other')"))
    assert read_to_end(other) == ["other"]
    first.close()
    other.remove()


OWNER = """
import signal
from pathlib import PosixPath
import docker
from paceline.runtime import DockerRuntime, JobSpec, ProcessRuntime
job = {constructor}.start({spec!r})
print(job.id, flush=True)
signal.pause()
"""


def test_job_survives_its_owner_and_another_process_reattaches(harness: Harness) -> None:
    wanted = harness.spec(GATE + "print('before', flush=True); gate(); print('after')")
    code = OWNER.format(constructor=harness.constructor, spec=wanted)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as owner:
        assert owner.stdout is not None
        job_id = owner.stdout.readline().strip()
        os.killpg(owner.pid, signal.SIGKILL)  # as when a worker process is killed
    job = harness.runtime.reattach(job_id)
    assert job.status().state == "running"
    with pytest.raises(JobLostError, match=r"belongs to another task: paceline.task is None, not 'evaluate'"):
        harness.runtime.reattach(job_id, {"paceline.task": "evaluate"})
    again = harness.runtime.start(wanted)
    assert again.id == job_id
    again.close()
    job.resize(0.9)
    assert pass_gate(harness, job) + read_to_end(job) == ["before", "after"]
    assert job.status().exit_code == 0
    job.remove()


def test_reattach_to_an_ended_job_reads_its_last_report_first(harness: Harness) -> None:
    job = harness.runtime.start(
        harness.spec("print('the last report')\nfor number in range(2000):\n    print('#' * 100)")
    )
    assert job.wait(60)
    job.close()
    again = harness.runtime.reattach(job.id)
    assert read_to_end(again)[0] == "the last report"
    again.remove()


def test_output_above_the_limit_is_rejected_as_a_whole(harness: Harness, tmp_path: Path) -> None:
    code = f"open(out + '/a', 'w')\nopen(out + '/x', 'wb').write(bytes({2 * MAX_OUTPUT_BYTES}))"
    job = harness.runtime.start(harness.spec(f"import os\nout = os.environ['PACELINE_OUTPUT']\n{code}"))
    read_to_end(job)
    assert job.status().exit_code == 0
    with pytest.raises(TrainingFailedError, match=f"limit of {MAX_OUTPUT_BYTES} bytes"):
        job.collect(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    job.remove()


LINKS = """
import os, pathlib
os.chdir(os.environ["PACELINE_OUTPUT"])
pathlib.Path("runs/7").mkdir(parents=True)
pathlib.Path("epoch=3.ckpt").write_text("weights")
pathlib.Path("runs/7/model").write_text("seven")
os.symlink("epoch=3.ckpt", "last.ckpt")
os.symlink("7", "runs/best")
os.symlink("../../last.ckpt", "runs/7/last")
os.link("epoch=3.ckpt", "hard.ckpt")
os.link("last.ckpt", "hard-link-to-a-link.ckpt", follow_symlinks=False)
os.symlink("/etc/passwd", "absolute")
os.symlink("../work/job.py", "out")
os.symlink("runs/8", "dangling")
os.symlink("round", "about")
os.symlink("about", "round")
os.symlink("..", "runs/7/up")
os.mkfifo("pipe")
"""


def test_links_inside_the_output_are_copied_and_other_links_are_skipped(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = harness.runtime.start(harness.spec(LINKS))
    assert read_to_end(job) == []
    job.collect(tmp_path / "out")
    taken = {found.relative_to(tmp_path / "out").as_posix(): found for found in (tmp_path / "out").rglob("*")}
    assert not any(found.is_symlink() for found in taken.values())
    assert {name: found.read_text() for name, found in taken.items() if found.is_file()} == {
        "epoch=3.ckpt": "weights",
        "last.ckpt": "weights",
        "hard.ckpt": "weights",
        "hard-link-to-a-link.ckpt": "weights",
        **{f"runs/{run}/{name}": text for run in ("7", "best") for name, text in SEVEN.items()},
    }
    (warning,) = [record.message for record in caplog.records if "Skipped" in record.message]
    assert "Skipped 8 entries of the job's output" in warning  # "up" is both in runs/7 and in runs/best
    assert warning.endswith("and 3 more")
    job.remove()


SEVEN = {"model": "seven", "last": "weights"}


# The larger the number, the newer the file.
SAVES_BESIDE_ITS_OUTPUT = """
import os, pathlib
names = ["data/a.bin", "data/b.bin", "data/c.bin", "runs/7/events", "it's best.pt", "model.pt"]
for number, name in enumerate([*names, ".cache/fonts", "lib/__pycache__/lib.pyc"]):
    pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(name).write_bytes(bytes(1_000_000))
    os.utime(name, (1_900_000_000 + 60 * number,) * 2)
os.symlink("/etc/passwd", "link.pt")
"""
SAVED = ["model.pt", "it's best.pt", "runs/7/events", "data/c.bin", "data/b.bin"]


@pytest.mark.parametrize("read_only", [False, True])
def test_newest_files_of_the_working_folder_are_named(harness: Harness, read_only: bool) -> None:
    job = harness.runtime.start(harness.spec(SAVES_BESIDE_ITS_OUTPUT, read_only=read_only))
    assert read_to_end(job) == []
    assert job.work_files({"job.py"}) == SAVED
    job.remove()
    assert job.work_files({"job.py"}) == []


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("pass", id="nothing was written"),
        pytest.param("import os; os.chmod('.', 0o500)", id="the folder is read-only"),
        pytest.param("import os; os.rename(os.getcwd(), os.environ['PACELINE_CHECKPOINT'] + '/moved')", id="no folder"),
    ],
)
def test_no_files_of_the_working_folder_are_named_if_there_are_none(harness: Harness, code: str) -> None:
    if isinstance(harness, ContainerHarness):
        code = f"try: {code}\nexcept OSError: pass"  # the job's user cannot move its folder
    job = harness.runtime.start(harness.spec(code))
    assert read_to_end(job) == []
    assert job.work_files({"job.py"}) == []
    job.remove()


def test_program_among_the_input_files_keeps_its_mode(harness: Harness, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho from a script")
    script.chmod(0o755)
    job = harness.runtime.start(harness.spec(command=["./run.sh"], files={"run.sh": script}))
    assert read_to_end(job) == ["from a script"]
    job.remove()


def test_invalid_spec_is_rejected_before_the_start(harness: Harness, tmp_path: Path) -> None:
    good: JobSpec = harness.spec("print()")
    cases: dict[str, dict[str, Any]] = {
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
