"""Tests of the process runtime beyond the runtime contract: environment, launcher, guardian and cleanup."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, BinaryIO

import pytest
from tests.integration.jobs import MECHANISMS, ProcessHarness, pids_of_jobs_in
from tests.waiting import until

from paceline.control import DeadlineController, Limits
from paceline.errors import PacelineError, RuntimeUnavailableError, TrainingFailedError
from paceline.run import Exchange, Handover, MemoryState, PaceLoop, Surroundings
from paceline.run.clock import SystemClock
from paceline.runtime import Job
from paceline.runtime.base import JOB_ENVIRONMENT
from paceline.runtime.cgroups import Group
from paceline.runtime.process_job import claim
from paceline.runtime.processes import find_by_environment, identify
from paceline.runtime.scratch import Scratch, read_json
from paceline.testing.runtime_contract.harness import GATE, RESUMES, fail_on_leftovers, read_to_end, wait_for_line

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the process runtime is for Linux")


@pytest.fixture(params=MECHANISMS)
def harness(request: pytest.FixtureRequest, tmp_path: Path, process_runtime_root: Path) -> Iterator[ProcessHarness]:
    """Yield a harness for each mechanism, and fail a test whose jobs have left anything."""
    with fail_on_leftovers(ProcessHarness(process_runtime_root, request.param, tmp_path)) as made:
        yield made


signal_only = pytest.mark.parametrize("harness", ["signal"], indirect=True)

INSPECT = """
import json, os, sys, paceline.train.progress as progress
print(json.dumps({"environment": dict(os.environ), "folder": os.getcwd(), "python": sys.executable,
    "sdk": progress.__file__, "session": os.getsid(0) == os.getpid(), "handles": os.listdir("/proc/self/fd")}))
gate()
"""


def test_job_and_launcher_do_not_inherit_the_environment(
    harness: ProcessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERNET_KEY", "s3cret")
    job = harness.runtime.start(harness.spec(GATE + INSPECT, environment={"SEED": "7"}))
    line, _ = wait_for_line(job, "at the gate")
    running = pids_of_jobs_in(harness.runtime.root)
    assert len(running) == 3  # the job, its launcher and its guardian
    assert not any(b"s3cret" in Path(f"/proc/{pid}/environ").read_bytes() for pid in running)
    seen, home = json.loads(line), Path(job.id)
    seen["environment"].pop("LC_CTYPE", None)
    assert set(seen["environment"]) == {
        *JOB_ENVIRONMENT,
        "HOME", "LANG", "PACELINE_CHECKPOINT", "PACELINE_CONTROL", "PACELINE_CORES_PER_DEVICE", "PACELINE_INPUT",
        "PACELINE_OUTPUT", "PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "SEED", "TMPDIR",
    }  # fmt: skip
    assert (seen["folder"], seen["python"]) == (str(home / "work"), sys.executable)
    assert seen["sdk"].startswith(str(home / "sdk"))
    assert seen["session"]
    assert len(seen["handles"]) == 4  # the three standard streams and the listed folder
    assert home.stat().st_mode & 0o077 == (home / "job.json").stat().st_mode & 0o077 == 0
    harness.signal(job, signal.SIGUSR1)
    assert read_to_end(job) == []
    job.remove()


SPREADS = """
import os, subprocess, sys, signal
code = "while True: sum(range(1000))"
subprocess.Popen([sys.executable, "-c", code])
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    os._exit(0)
os.wait()
print("up", flush=True)
"""


def test_processes_in_other_sessions_are_limited_and_end_with_the_launcher(harness: ProcessHarness) -> None:
    job = harness.runtime.start(harness.spec(SPREADS + "while True: sum(range(1000))"))
    wait_for_line(job, "up")
    pids = pids_of_job(job)
    assert len(pids) == 4
    job.resize(0.01)
    if harness.read_state(job)["cgroup"] is None:  # the throttle stops all processes at the same time
        until(lambda: {process_state(pid) for pid in pids} == {"T"})
        job.resize(4)
        until(lambda: "T" not in {process_state(pid) for pid in pids})
    else:
        group = Group.from_json(harness.read_state(job)["cgroup"])
        assert set(pids) <= set(group.members())
    os.kill(harness.read_state(job)["launcher"]["pid"], signal.SIGKILL)
    assert job.wait(60)
    assert (job.status().state, job.status().exit_code) == ("exited", 137)
    assert "controlled the job was killed" in job.status().reason
    assert pids_of_job(job) == []
    job.remove()


def test_background_processes_end_with_the_job(harness: ProcessHarness) -> None:
    job = harness.runtime.start(harness.spec(SPREADS))
    assert read_to_end(job) == ["up"]
    assert pids_of_job(job) == []
    job.remove()


WITHOUT_ENVIRONMENT = """
import signal, subprocess
started = [subprocess.Popen(["sleep", "600"], env={}, start_new_session=new) for new in (True, False)]
print(*(process.pid for process in started), flush=True)
signal.pause()
"""


def test_processes_without_the_environment_of_the_job_end_with_the_launcher(harness: ProcessHarness) -> None:
    job = harness.runtime.start(harness.spec(WITHOUT_ENVIRONMENT))
    pids = [int(pid) for pid in wait_for_line(job, " ")[-1].split()]
    identities = [identify(pid) or pytest.fail("the process has ended") for pid in pids]
    os.kill(harness.read_state(job)["launcher"]["pid"], signal.SIGKILL)
    assert job.wait(60)
    assert [identity.is_alive() for identity in identities] == [False, False]
    job.remove()


def pids_of_job(job: Job) -> list[int]:
    return [process.pid for process in find_by_environment("PACELINE_OUTPUT", f"{job.id}/output")]


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


HOPS = """
import subprocess, sys, time
hopper = '''
import os, time
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    began = time.process_time()
    while time.process_time() < began + 0.02: pass
'''
subprocess.run([sys.executable, "-c", hopper])
while time.process_time() < 0.3: pass
print("up", flush=True)
"""


@signal_only
def test_processes_that_change_sessions_do_not_block_other_processes(harness: ProcessHarness) -> None:
    job = harness.runtime.start(harness.spec(HOPS, devices=0.5))
    wait_for_line(job, "up")
    job.remove()


def test_job_whose_launcher_and_guardian_were_killed_can_be_restarted(harness: ProcessHarness) -> None:
    job = harness.runtime.start(harness.spec(RESUMES))
    wait_for_line(job, "saved")
    for name in ("guardian", "launcher"):
        os.kill(harness.read_state(job)[name]["pid"], signal.SIGKILL)
    assert job.wait(60)
    assert job.status().state == "gone"
    assert harness.runtime.reattach(job.id).status().state == "gone"
    job.restart()
    assert read_to_end(job)[-1] == "resumed at 41"
    job.remove()


@signal_only
@pytest.mark.parametrize(("number", "name"), [(12, "SIGUSR2"), (40, "signal 40")])
def test_signal_that_kills_a_job_is_reported(harness: ProcessHarness, number: int, name: str) -> None:
    job = harness.runtime.start(harness.spec(f"import os; os.kill(os.getpid(), {number})"))
    assert job.wait(60)
    assert (job.status().exit_code, job.status().reason) == (128 + number, f"killed ({name})")
    job.remove()


@signal_only
def test_process_that_reuses_the_launchers_pid_is_not_signalled(harness: ProcessHarness) -> None:
    job = harness.runtime.start(harness.spec("print()"))
    read_to_end(job)
    until(lambda: not pids_of_jobs_in(harness.runtime.root))
    scratch = Scratch(Path(job.id))
    scratch.end.unlink()
    changed = harness.read_state(job)
    for name in ("launcher", "guardian"):
        changed[name]["pid"] = os.getpid()  # a live process with another start time
    scratch.state.write_text(json.dumps(changed))
    assert job.status().state == "gone"
    job.stop(0.0)  # a signal would end this test process
    job.remove()


@signal_only
@pytest.mark.parametrize("step", ["sdk_files", "job_files", "write_json", "launch"])
@pytest.mark.parametrize("error", [OSError("cut off"), KeyboardInterrupt("cut off")], ids=["disk", "interrupted"])
def test_interrupted_start_leaves_nothing(
    harness: ProcessHarness, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    def raise_error(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(f"paceline.runtime._process.{step}", raise_error)
    with pytest.raises(PacelineError if isinstance(error, OSError) else KeyboardInterrupt, match="cut off"):
        harness.runtime.start(harness.spec("print()"))
    assert harness.leftovers() == []


@signal_only
def test_start_interrupted_after_the_job_has_started_leaves_nothing(
    harness: ProcessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []
    wait = subprocess.Popen.wait

    def wait_once(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        code = wait(self, timeout)
        waited.append(timeout)
        if len(waited) == 1:
            raise KeyboardInterrupt("cut off")
        return code

    monkeypatch.setattr(subprocess.Popen, "wait", wait_once)
    with pytest.raises(KeyboardInterrupt, match="cut off"):
        harness.runtime.start(harness.spec("import signal; signal.pause()"))
    assert harness.leftovers() == []


@signal_only
def test_folder_of_a_job_that_never_started_is_replaced(
    harness: ProcessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = harness.spec("print('done')")
    with monkeypatch.context() as crash:  # a worker process that is killed before the launch removes nothing
        crash.setattr("paceline.runtime._process.launch", lambda *_: None)
        job = harness.runtime.start(wanted)
    assert read_json(Scratch(Path(job.id)).job) is not None
    again = harness.runtime.start(wanted)
    assert again.id == job.id
    assert read_to_end(again) == ["done"]
    again.remove()


@signal_only
def test_job_that_another_process_starts_is_not_started_twice(harness: ProcessHarness) -> None:
    wanted = harness.spec("print('done')")
    job = harness.runtime.start(wanted)
    scratch = Scratch(Path(job.id))
    read_to_end(job)
    until(lambda: not pids_of_jobs_in(harness.runtime.root))
    with scratch.launcher_log.open("ab") as of_another_process:
        fcntl.flock(of_another_process, fcntl.LOCK_EX)
        with pytest.raises(RuntimeUnavailableError, match="another process is starting or running the job"):
            job.restart()
        scratch.state.unlink()  # the other process has not started the job yet
        with pytest.raises(RuntimeUnavailableError, match="another process is starting or running the job"):
            harness.runtime.start(wanted)
    assert scratch.job.exists()
    assert read_to_end(harness.runtime.start(wanted)) == ["done"]
    job.remove()


@signal_only
def test_failed_start_keeps_the_job_that_another_process_has_started_meanwhile(
    harness: ProcessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = harness.spec("import signal; signal.pause()")
    jobs: list[Job] = []

    def claim_late(scratch: Scratch) -> BinaryIO:
        monkeypatch.setattr("paceline.runtime._process.claim", claim)
        jobs.append(harness.runtime.start(wanted))  # replaces the folder of the first start
        return claim(scratch)

    monkeypatch.setattr("paceline.runtime._process.claim", claim_late)
    with pytest.raises(RuntimeUnavailableError, match="another process is starting or running the job"):
        harness.runtime.start(wanted)
    assert [job.status().state for job in jobs] == ["running"]
    jobs[0].remove()


@signal_only
@pytest.mark.parametrize("step", ["sdk_files", "job_files", "shutil.copy"])
@pytest.mark.parametrize("error", ["", "cut off"])
def test_start_of_a_job_that_was_removed_meanwhile_keeps_the_job_of_the_next_try(
    harness: ProcessHarness, monkeypatch: pytest.MonkeyPatch, step: str, error: str
) -> None:
    wanted = harness.spec("import signal; signal.pause()", labels={"paceline.test": harness.mark})
    jobs: list[Job] = []
    make = resolve_name(f"paceline.runtime._process.{step}")

    def make_late(*arguments: Any) -> Any:
        monkeypatch.setattr(f"paceline.runtime._process.{step}", make)
        made = make(*arguments)
        harness.runtime.remove_all(wanted.labels)
        jobs.append(harness.runtime.start(wanted))
        if error:
            raise OSError(error)
        return made

    monkeypatch.setattr(f"paceline.runtime._process.{step}", make_late)
    with pytest.raises(PacelineError, match=error or "was removed before its start"):
        harness.runtime.start(wanted)
    assert jobs[0].status().state == "running"
    assert harness.runtime.find_job(wanted.name, wanted.labels) is not None
    jobs[0].remove()


@signal_only
def test_folder_that_another_process_deletes_cannot_be_claimed(
    harness: ProcessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = Scratch(harness.runtime.root / "paceline-deleted")
    scratch.path.mkdir(parents=True)
    lock = fcntl.flock

    def lock_late(file: BinaryIO, operation: int) -> None:
        scratch.delete()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with pytest.raises(RuntimeUnavailableError, match="another process is starting or running the job"):
        claim(scratch)


@signal_only
def test_folder_of_another_user_has_no_jobs(harness: ProcessHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal of such a job would kill the processes that the other user has named in its files."""
    job = harness.runtime.start(harness.spec("print()"))
    assert [found for found, _ in harness.runtime.jobs()] == [job.id]
    with monkeypatch.context() as another:
        another.setattr(os, "getuid", lambda: harness.runtime.root.stat().st_uid + 1)
        assert list(harness.runtime.jobs()) == []
    job.remove()


LISTENS = "from multiprocessing.connection import Listener\nwith Listener(family='AF_UNIX'): print('listening')"


def test_processes_of_a_job_with_a_long_name_can_open_sockets(tmp_path: Path) -> None:
    """The workers of a torch DataLoader send each batch through such a socket."""
    root = Path(f"/tmp/paceline-{os.getpid():010}")  # as long as the default folder of a user with a large id
    try:
        with fail_on_leftovers(ProcessHarness(root, "signal", tmp_path)) as harness:
            names = [f"{'n' * 40}-{number:012}" for number in (1, 2)]  # the longest names of the operators
            jobs = [harness.runtime.start(harness.spec(LISTENS, name=name)) for name in names]
            assert jobs[0].id != jobs[1].id
            for job in jobs:
                assert read_to_end(job) == ["listening"]
                job.remove()
    finally:
        root.rmdir()


class RecordingClock(SystemClock):
    """The system's clock, which records the waits of the control loop besides those for the job."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)


@signal_only
def test_end_of_a_killed_job_is_reported_without_waiting_for_an_engine(harness: ProcessHarness) -> None:
    """A container's engine may be shutting down, which takes seconds to find out; a local job has no engine."""
    job = harness.runtime.start(harness.spec(GATE + 'print(\'@paceline {"done":1,"total":9}\', flush=True)\ngate()'))
    wait_for_line(job, "at the gate")
    harness.signal(job, signal.SIGKILL)
    clock = RecordingClock()
    controller = DeadlineController(Limits(0.1, 1.0), 3600.0)
    loop = PaceLoop(
        harness.runtime.reattach(job.id),
        controller,
        Exchange(MemoryState()),
        Handover(datetime.now(timezone.utc), allocated_devices=1.0),
        surroundings=Surroundings(clock=clock),
    )
    with pytest.raises(TrainingFailedError, match="exit code 137"):
        loop.run()
    assert clock.sleeps == []
    job.remove()
