"""Tests of the choice of GPUs, and of the GPUs of local jobs."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.waiting import until

from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime import Job, JobSpec, ProcessRuntime, gpus
from paceline.runtime.kubernetes import KubernetesRuntime
from paceline.runtime.process_job import ProcessJob
from paceline.runtime.scratch import Scratch, read_json
from paceline.train.progress import parse_line

PRINTS_GPUS = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"), flush=True)
signal.sigwait([signal.SIGUSR1])
"""


class Machine:
    """A machine with the device files of ``count`` GPUs."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self.dev = folder / "dev"
        self.dev.mkdir()
        for name in ["nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(count))]:
            (self.dev / name).touch()
        (folder / "job.py").write_text(PRINTS_GPUS)
        self.jobs: list[ProcessJob] = []

    def start(self, name: str, count: int) -> ProcessJob:
        job = self.runtime().start(self.spec(name, count))
        self.jobs.append(job)
        return job

    def runtime(self) -> ProcessRuntime:
        return ProcessRuntime(self._folder / "root", mechanism="signal", dev=self.dev)

    def spec(self, name: str, count: int) -> JobSpec:
        return JobSpec(name, ["python", "job.py"], 1.0, files={"job.py": self._folder / "job.py"}, gpus=count)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Yield a machine with two GPUs, and remove its jobs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made = Machine(tmp_path, 2)
    yield made
    for job in made.jobs:
        job.remove()


def first_line(job: Job) -> str:
    lines: list[str] = []
    until(lambda: lines.extend(job.read_lines()) or lines)
    return lines[0]


def pid_of(job: ProcessJob, role: str) -> int:
    state = read_json(Scratch(Path(job.id)).state) or {}
    return int(state["child"] if role == "child" else state[role]["pid"])


def test_free_gpus_are_chosen_in_order_and_avoided_ones_last() -> None:
    ids = ["0", "1", "2", "3"]
    assert gpus.choose(ids, (), 2) == ["0", "1"]
    assert gpus.choose(ids, {"0", "2"}, 2) == ["1", "3"]
    assert gpus.choose(ids, {"0"}, 2, avoid={"1", "2"}) == ["3", "1"]
    assert gpus.choose(ids, ids, 0) == []


def test_more_gpus_than_exist_are_invalid_and_more_than_are_free_are_unavailable() -> None:
    with pytest.raises(InvalidInputError, match=r"gpus: got 3, expected at most 2, the number of GPUs \(0, 1\)"):
        gpus.choose(["0", "1"], {"0"}, 3)
    with pytest.raises(InvalidInputError, match=r"gpus: got 1, expected at most 0, the number of GPUs \(none\)"):
        gpus.choose([], (), 1)
    with pytest.raises(RuntimeUnavailableError, match=r"gpus: got 2, expected at most 1, .* use GPU 1; free: 0"):
        gpus.choose(["0", "1"], {"1"}, 2)


def test_process_may_use_the_visible_gpus_else_those_with_a_device_file(machine: Machine) -> None:
    assert gpus.of_process({}, machine.dev) == ["0", "1"]
    assert gpus.of_process({"CUDA_VISIBLE_DEVICES": " GPU-5b, MIG-7/1/0 ,"}, machine.dev) == ["GPU-5b", "MIG-7/1/0"]
    assert gpus.of_process({"CUDA_VISIBLE_DEVICES": "-1"}, machine.dev) == []


def test_share_of_the_gpu_of_a_pod_is_rejected() -> None:
    spec = JobSpec("train", ["python"], 0.5, image="trainer", gpus=1, shares_gpus=True)
    with pytest.raises(InvalidInputError, match="shares_gpus: got True, expected False, because a pod has whole GPUs"):
        KubernetesRuntime(Mock()).check(spec)


def test_only_gpu_of_a_container_has_the_index_0(tmp_path: Path) -> None:
    (tmp_path / "nvidia3").touch()
    assert gpus.of_machine(tmp_path) == ["0"]


def test_two_jobs_get_different_gpus_and_a_third_job_gets_none(machine: Machine) -> None:
    first, second = machine.start("first", 1), machine.start("second", 1)
    assert [first_line(first), first_line(second)] == ["0 PCI_BUS_ID", "1 PCI_BUS_ID"]
    with pytest.raises(RuntimeUnavailableError, match=r"^gpus: got 1, expected at most 0, .* GPU 0, 1; free: none$"):
        machine.start("third", 1)
    assert not list(machine.runtime().root.glob("*third*"))
    first.remove()
    assert first_line(machine.start("third", 1)) == "0 PCI_BUS_ID"


@pytest.mark.parametrize("role", ["child", "launcher", "guardian"])
def test_killed_job_frees_its_gpus(machine: Machine, role: str) -> None:
    job = machine.start("killed", 2)
    assert first_line(job) == "0,1 PCI_BUS_ID"
    os.kill(pid_of(job, role), signal.SIGKILL)
    if role == "guardian":  # the job trains on, and keeps its GPUs
        with pytest.raises(RuntimeUnavailableError, match="free: none"):
            machine.start("next", 1)
        os.kill(pid_of(job, "launcher"), signal.SIGKILL)
    until(lambda: job.status().state != "running")
    job.remove()
    assert first_line(machine.start("next", 2)) == "0,1 PCI_BUS_ID"


def test_restarted_job_may_get_other_gpus_and_survives_a_restart_without_free_ones(machine: Machine) -> None:
    job = machine.start("preempted", 1)
    first_line(job)
    job.stop()
    machine.start("second", 1)
    third = machine.start("third", 1)
    with pytest.raises(RuntimeUnavailableError, match="free: none"):
        job.restart()
    assert job.status().state == "exited"
    assert machine.runtime().reattach(job.id).status().exit_code == 143
    third.remove()
    job.restart()
    until(lambda: "1 PCI_BUS_ID" in Scratch(Path(job.id)).stdout.read_text())


def test_job_without_gpus_keeps_the_environment_it_was_given(machine: Machine) -> None:
    machine.start("all", 2)
    assert first_line(machine.start("none", 0)) == "None None"


def test_job_uses_only_the_gpus_that_the_worker_may_use(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(InvalidInputError, match=r"gpus: got 2, expected at most 1, the number of GPUs \(1\)"):
        machine.runtime().check(machine.spec("both", 2))
    assert first_line(machine.start("one", 1)) == "1 PCI_BUS_ID"


def part_of_gpu(machine: Machine, name: str, part: float) -> ProcessJob:
    spec = replace(machine.spec(name, 1), gpus=part, devices=part, shares_gpus=True, cores_per_device=math.inf)
    machine.jobs.append(machine.runtime().start(spec))
    return machine.jobs[-1]


def test_parts_of_a_gpu_are_one_at_most_together_and_leave_other_gpus_to_whole_jobs(machine: Machine) -> None:
    first, second = part_of_gpu(machine, "first", 0.5), part_of_gpu(machine, "second", 0.25)
    assert [first_line(first), first_line(second)] == ["0 PCI_BUS_ID"] * 2
    assert first_line(machine.start("whole", 1)) == "1 PCI_BUS_ID"
    refused = r"^gpus: got 0.5, expected at most 0.25, because other jobs use the GPUs; free: 0.25 of GPU 0$"
    with pytest.raises(RuntimeUnavailableError, match=refused):
        part_of_gpu(machine, "third", 0.5)
    with pytest.raises(RuntimeUnavailableError, match="free: none"):
        machine.start("third", 1)
    os.kill(pid_of(first, "launcher"), signal.SIGKILL)
    until(lambda: first.status().state != "running")
    first.remove()
    third = part_of_gpu(machine, "third", 0.75)
    assert first_line(third) == "0 PCI_BUS_ID"
    assert (read_json(Scratch(Path(third.id)).job) or {})["gpus"] == 0.75


@pytest.mark.parametrize("jobs", [3, 6, 7, 9])
def test_equal_parts_of_a_gpu_fit_together(jobs: int) -> None:
    parts = {"0": (jobs - 1) * (1 / jobs)}
    assert gpus.choose_part(["0"], set(), parts, 1 / jobs) == "0"
    with pytest.raises(RuntimeUnavailableError):
        gpus.choose_part(["0"], set(), parts, 1 / jobs + 1e-5)


TRAINS = """
import os, time
from paceline.train import track
from paceline.train.pacing.share import CpuShare
print(os.environ["PACELINE_GPU_TURNS"], CpuShare().read(), flush=True)
for _ in track(range({batches})):
    time.sleep(0.02)
    print("trained", flush=True)
"""


def share_of_gpu(machine: Machine, share: float, batches: int) -> ProcessJob:
    """Start a job that trains ``batches`` batches of 20 ms with a share of a GPU's time."""
    script = machine.dev / "train.py"
    script.write_text(TRAINS.format(batches=batches))
    spec = machine.spec("share", 1)
    spec = replace(spec, files={"job.py": script}, devices=share, shares_gpus=True, cores_per_device=math.inf)
    machine.jobs.append(machine.runtime().start(spec))
    return machine.jobs[-1]


def test_job_computes_for_no_longer_than_its_share_of_the_time(machine: Machine) -> None:
    job = share_of_gpu(machine, 0.25, 20)
    assert job.wait(60)
    first, *lines = job.read_lines()
    cores = machine.runtime().capacity()
    assert first == f"{machine.runtime().root}/gpus/turn-0 {cores}"
    reports = [report for line in lines if (report := parse_line(line))]
    computed_s = [report.gpu_s or 0.0 for report in reports]
    assert computed_s[-1] >= 0.4
    passed_s = reports[-1].monotonic_s - reports[0].monotonic_s
    assert computed_s[-1] - max(b - a for a, b in pairwise(computed_s)) <= 0.25 * passed_s


def test_new_share_reaches_a_job_that_waits_for_credit_and_leaves_its_cores_alone(machine: Machine) -> None:
    job = share_of_gpu(machine, 0.0001, 3)  # one batch in 200 s
    until(lambda: "trained" in Scratch(Path(job.id)).stdout.read_text())
    job.resize(1.0)
    assert job.wait(60)
    assert [report.done for line in job.read_lines() if (report := parse_line(line))][-1] == 3
    state = read_json(Scratch(Path(job.id)).job) or {}
    assert (state["cores"], state["cores_per_device"]) == (machine.runtime().capacity(), None)


def test_simultaneous_starts_share_no_gpu(machine: Machine) -> None:
    """Claim and release GPUs in several processes at once; a process that claims a claimed GPU ends with an error."""
    code = """
import os, sys
from pathlib import Path
from paceline.errors import RuntimeUnavailableError
from paceline.runtime import gpus
root, claims = Path(sys.argv[1]), 0
while claims < 50:
    pid = os.fork()
    if not pid:
        try:
            claimed = [root / f"held-{gpu}" for gpu in gpus.claim(["0", "1", "2"], 2, root)]
            for held in claimed:
                held.mkdir()  # fails if another process holds the GPU
            os.sched_yield()
            for held in claimed:
                held.rmdir()
        except RuntimeUnavailableError:
            os._exit(3)
        except BaseException:
            os._exit(1)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert ended in (0, 3), ended
    claims += ended == 0
"""
    root = machine.dev / "root"
    root.mkdir()
    started = [os.posix_spawn(sys.executable, [sys.executable, "-c", code, str(root)], {**os.environ}) for _ in "123"]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started] == [0, 0, 0]
