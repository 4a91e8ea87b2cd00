"""Helpers for tests of jobs in both runtimes: start, signal and inspect jobs, and find their leftovers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from tests.waiting import until

from paceline.runtime import DockerRuntime, Job, JobSpec, ProcessRuntime, cgroups
from paceline.runtime.cgroups import Group
from paceline.runtime.process_job import ProcessJob
from paceline.runtime.scratch import Scratch, read_json

if TYPE_CHECKING:
    import docker

MIB = 1024**2
MAX_OUTPUT_BYTES = 1_000_000

# Code that precedes a job's code: gate() prints a line and waits until the test sends SIGUSR1.
GATE = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def gate():
    print("at the gate", flush=True)
    signal.sigwait([signal.SIGUSR1])
"""


# Code of a job that the test kills. When the job is restarted, it prints the step at which it resumes.
RESUMES = """
import os, pathlib, signal
saved = pathlib.Path(os.environ["PACELINE_CHECKPOINT"], "step")
print("resumed at", saved.read_text() if saved.exists() else "0", flush=True)
if saved.exists(): raise SystemExit(0)
saved.write_text("41")
print("saved", flush=True)
signal.pause()
"""


def _can_create_cgroup() -> bool:
    probe = cgroups.create(f"paceline-test-{os.getpid()}")
    return probe is not None and probe.remove()


MECHANISMS = [
    "signal",
    pytest.param(
        "cgroup", marks=pytest.mark.skipif(not _can_create_cgroup(), reason="this user may not create a cgroup")
    ),
]


class ContainerHarness:
    """Test harness for jobs that run as containers of an engine."""

    def __init__(self, client: docker.APIClient, address: str, image: str, folder: Path) -> None:
        self.client = client
        self.runtime = DockerRuntime(client, max_output_bytes=MAX_OUTPUT_BYTES)
        # ``constructor`` is code that creates the same runtime. ``rejected`` maps error messages to invalid specs.
        self.constructor = f"DockerRuntime(docker.APIClient({address!r}, version='auto'))"
        self.rejected = {
            "image: got 'no/such:image', expected an image that the engine has": {"image": "no/such:image"},
            "image: got None": {"image": None},
            "network: got 'no-such-network'": {"network": "no-such-network"},
        }
        self.mark = f"test-{uuid.uuid4().hex[:12]}"
        self._image, self._folder = image, folder

    def spec(self, code: str = "", **changes: Any) -> JobSpec:
        return _spec(
            self.mark, self._folder, code, {"image": self._image, "labels": {"paceline.test": self.mark}, **changes}
        )

    def signal(self, job: Job, number: int) -> None:
        """Send a signal to the job's first process."""
        self.client.kill(job.id, signal=int(number))

    def quota_of(self, job: Job) -> float:
        """Return the job's current CPU quota in cores."""
        host = self.client.inspect_container(job.id)["HostConfig"]
        return float(host["CpuQuota"] / host["CpuPeriod"])

    def leftovers(self) -> list[str]:
        """Return the containers and networks that the test's jobs have left."""
        containers = self.client.containers(all=True, filters={"label": f"paceline.test={self.mark}"})
        networks = [one["Name"] for one in self.client.networks() if one["Name"].startswith(self.mark)]
        return [str(one["Id"]) for one in containers] + networks

    def remove_leftovers(self) -> None:
        self.runtime.remove_all({"paceline.test": self.mark})


class ProcessHarness:
    """Test harness for jobs that run as local processes, with folders in ``root``."""

    def __init__(self, root: Path, mechanism: Any, folder: Path) -> None:
        self.runtime = ProcessRuntime(root, mechanism=mechanism, max_output_bytes=MAX_OUTPUT_BYTES)
        self.constructor = f"ProcessRuntime({root!r}, mechanism={mechanism!r})"
        self.rejected = {
            "command: got 'no-such-program'": {"command": ["no-such-program"]},
            "command: got './no-such-file'": {"command": ["./no-such-file"]},
            "command: got 'job.py'": {"command": ["job.py"]},  # not on PATH; ./job.py would be accepted
        }
        self.mark = f"test-{uuid.uuid4().hex[:12]}"
        self._folder = folder

    def spec(self, code: str = "", **changes: Any) -> JobSpec:
        return _spec(self.mark, self._folder, code, changes)

    def signal(self, job: Job, number: int) -> None:
        os.kill(self.read_state(job)["child"], number)

    def quota_of(self, job: Job) -> float:
        group = self.read_state(job)["cgroup"]
        if group is None:
            stored, control = (
                read_json(path) or {} for path in (Scratch(Path(job.id)).job, Scratch(Path(job.id)).control)
            )
            return float(control["devices"] * stored["cores_per_device"])
        return quota_of_group(Group.from_json(group))

    def leftovers(self) -> list[str]:
        root = self.runtime.root
        # Unlike `glob`, `walk` ignores control groups of other tests that disappear meanwhile.
        folders = [Path(parent, name) for parent, names, _ in os.walk("/sys/fs/cgroup") for name in names]
        groups = [str(group) for group in folders if group.name.startswith(f"paceline-{self.mark}")]
        return [*map(str, root.iterdir()), *(f"process {pid}" for pid in pids_of_jobs_in(root)), *groups]

    def remove_leftovers(self) -> None:
        for folder in self.runtime.root.iterdir():
            ProcessJob(Scratch(folder), max_output_bytes=MAX_OUTPUT_BYTES, from_start=False).remove()

    def read_state(self, job: Job) -> dict[str, Any]:
        return read_json(Scratch(Path(job.id)).state) or {}


Harness = ContainerHarness | ProcessHarness
H = TypeVar("H", ContainerHarness, ProcessHarness)


@contextlib.contextmanager
def fail_on_leftovers(harness: H) -> Iterator[H]:
    """Remove what the test's jobs have left after the block, and fail the test if they have left anything."""
    yield harness
    leftovers_at_end = harness.leftovers()
    harness.remove_leftovers()
    assert not leftovers_at_end


def _spec(name: str, folder: Path, code: str, changes: dict[str, Any]) -> JobSpec:
    script = folder / "job.py"
    script.write_text(code)
    base = JobSpec(name, ["python", "job.py"], 1.0, files={"job.py": script}, memory_bytes=256 * MIB)
    return dataclasses.replace(base, **changes)


def quota_of_group(group: Group) -> float:
    """Return the CPU quota of a control group in cores."""
    if group.unified:
        limit, period = (group.cpu / "cpu.max").read_text().split()
    else:
        limit, period = ((group.cpu / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(limit) / int(period)


def pids_of_jobs_in(root: Path) -> list[int]:
    """Return the process ids of all jobs, launchers and guardians whose folders are in ``root``."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                content = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if str(root).encode() in content and state not in "ZX":
                pids.append(int(entry.name))
    return pids


def wait_for_line(job: Job, wanted: str) -> list[str]:
    """Wait for an output line that contains ``wanted``, and return the lines up to and including that line."""
    lines: list[str] = []

    def line_was_printed() -> bool:
        ended = job.wait(0.02)
        lines.extend(job.read_lines())
        printed = any(wanted in line for line in lines)
        assert printed or not ended, (lines[-5:], job.status())
        return printed

    until(line_was_printed, (wanted, lines), period_s=0)
    return lines


def read_to_end(job: Job) -> list[str]:
    """Read the job's output until the job ends, and return it."""
    lines: list[str] = []
    until(lambda: job.wait(0.1) or lines.extend(job.read_lines()), lines, period_s=0)
    return lines + job.read_lines()


def pass_gate(harness: Harness, job: Job) -> list[str]:
    """Wait until the job is at its gate, open the gate, and return the output before the gate."""
    lines = wait_for_line(job, "at the gate")
    harness.signal(job, signal.SIGUSR1)
    return lines[:-1]
