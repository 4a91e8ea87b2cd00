"""ProcessRuntime with real processes: the share it keeps, what survives an accident, and that nothing stays behind."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidInputError, JobLostError, TrainingFailedError
from paceline.runtime import JobSpec, ProcessRuntime, cgroups
from paceline.runtime.base import JOB_ENVIRONMENT
from paceline.runtime.process_job import ProcessJob
from paceline.runtime.procfs import carrying, cpu_seconds

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the process runtime is for Linux")

MIB = 1024**2


def cgroup_permitted() -> bool:
    probe = cgroups.create(f"paceline-test-{os.getpid()}")
    return probe is not None and probe.remove()


MECHANISMS = [
    "signal",
    pytest.param("cgroup", marks=pytest.mark.skipif(not cgroup_permitted(), reason="no cgroup may be made here")),
]


@pytest.fixture(params=MECHANISMS)
def runtime(request: pytest.FixtureRequest, process_runtime_root: Path) -> Iterator[ProcessRuntime]:
    """A runtime with each mechanism, and afterwards the proof that nothing is left of its jobs."""
    made = ProcessRuntime(process_runtime_root, mechanism=request.param)
    yield made
    left = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_below(process_runtime_root)]
    folders = list(process_runtime_root.iterdir())
    for folder in folders:
        made.reattach(str(folder)).remove()
    assert not left
    assert not folders
    assert not list(Path("/sys/fs/cgroup").glob("*/paceline-job*"))


def processes_below(root: Path) -> list[int]:
    """Jobs, launchers and guardians that work in ``root``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if str(root).encode() in told and state not in "ZX":
                found.append(int(entry.name))
    return found


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., JobSpec]:
    def make(code: str, **changes: Any) -> JobSpec:
        script = tmp_path / "job.py"
        script.write_text(code)
        base = JobSpec(
            name="job", command=["python", "job.py"], devices=1.0, files={"job.py": script}, memory_bytes=512 * MIB
        )
        return dataclasses.replace(base, **changes)

    return make


def finish(job: ProcessJob, timeout_s: float = 30.0) -> list[str]:
    assert job.wait(timeout_s), job.status()
    return job.read_lines()


def wait_for_line(job: ProcessJob, wanted: str, timeout_s: float = 20.0) -> list[str]:
    lines: list[str] = []
    limit = time.monotonic() + timeout_s
    while not any(wanted in line for line in lines):
        assert time.monotonic() < limit, f"{wanted!r} was not said, only {lines[-5:]}"
        ended = job.wait(0.02)
        lines += job.read_lines()
        assert not ended or any(wanted in line for line in lines), (lines[-5:], job.status())
    return lines


def state_of(job: ProcessJob) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((Path(job.id) / "state.json").read_text())
    return state


def idle_cores() -> float:
    """Idle CPU time of this machine so far, in core seconds."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def cpu_of(*pids: int) -> float:
    return sum(cpu_seconds(pid) or 0.0 for pid in pids)


def prefer(job: ProcessJob) -> None:
    """Let the scheduler prefer this job, so that other work on the machine is not measured instead of the share."""
    state = state_of(job)
    for pid in (state["launcher"]["pid"], state["child"]):
        try:
            Path(f"/proc/{pid}/autogroup").write_text("-15")
        except OSError:
            return


BURN = """
import multiprocessing, sys, time
def burn(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(2000))
if __name__ == "__main__":
    workers = [multiprocessing.get_context("fork").Process(target=burn, args=(60,)) for _ in range(int(sys.argv[1]))]
    for worker in workers: worker.start()
    print("up", flush=True)
    for worker in workers: worker.join()
"""


@pytest.mark.alone
@pytest.mark.parametrize(("workers", "devices", "lasts_s"), [(1, 0.35, 5.0), (2, 1.3, 10.0)])
def test_the_share_is_kept_within_three_percent(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec], workers: int, devices: float, lasts_s: float
) -> None:
    if runtime.mechanism == "cgroup":
        lasts_s /= 2  # there the kernel keeps it
    if devices > runtime.capacity():
        pytest.skip(f"needs {devices} cores")
    job = runtime.start(spec(BURN, command=["python", "job.py", str(workers)], devices=devices))
    try:
        wait_for_line(job, "up")
        prefer(job)
        job.wait(1.0)
        launcher = state_of(job)["launcher"]["pid"]
        members = carrying(f"PACELINE_OUTPUT={job.id}/output")
        assert len(members) == 1 + workers
        idle, begun, used, overhead = idle_cores(), time.monotonic(), cpu_of(*members), cpu_of(launcher)
        assert not job.wait(lasts_s)
        lasted, got, cost = time.monotonic() - begun, cpu_of(*members) - used, cpu_of(launcher) - overhead
        spare = (idle_cores() - idle) / lasted
        reported = job.usage().cpu_s
        assert reported == pytest.approx(cpu_of(*members), abs=0.5 * workers)
        got, cost = got / lasted, cost / lasted
        # We may have begun and ended at different places of a period, which is 100 ms.
        assert got <= devices * (1.03 + 0.1 / lasted), f"{got:.3f} cores"
        # A machine that others keep busy cannot give what it has not got, and that is no fault of the share.
        assert got >= devices * 0.97 or spare < 0.2, f"{got:.3f} cores, and {spare:.2f} were idle"
        assert cost < 0.02, f"the launcher used {cost:.1%} of a core"
    finally:
        job.remove()


def test_the_share_follows_resize_at_once_up_and_down(runtime: ProcessRuntime, spec: Callable[..., JobSpec]) -> None:
    job = runtime.start(spec(BURN, command=["python", "job.py", "1"], devices=0.1))
    try:
        wait_for_line(job, "up")
        prefer(job)

        def cores(devices: float) -> float:
            job.resize(devices)
            job.wait(0.5)
            begun, used = time.monotonic(), job.usage().cpu_s
            job.wait(1.5)
            return (job.usage().cpu_s - used) / (time.monotonic() - begun)

        low, high, again = cores(0.1), cores(0.7), cores(0.1)
        assert low < 0.13
        assert 0.2 < high < 0.76
        assert again < 0.13
        assert json.loads((Path(job.id) / "control.json").read_text()) == {"devices": 0.1}
    finally:
        job.remove()


def test_every_line_arrives_once_and_in_order_however_fast_they_come(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    code = "import sys\nsys.stdout.reconfigure(write_through=False)\nfor i in range(100_000): print('line', i)\n"
    job = runtime.start(spec(code, devices=runtime.capacity()))
    lines: list[str] = []
    while not job.wait(0.01):
        lines += job.read_lines()
    assert lines + job.read_lines() == [f"line {i}" for i in range(100_000)]
    job.remove()


LOOK_AROUND = """
import json, os, pathlib, sys, paceline.train.progress as progress
print(json.dumps({"environment": dict(os.environ), "folder": os.getcwd(), "python": sys.executable,
    "sdk": progress.__file__, "input": pathlib.Path(os.environ["PACELINE_INPUT"], "data/a.txt").read_text(),
    "session": os.getsid(0) == os.getpid(), "handles": sorted(os.listdir("/proc/self/fd"))}))
pathlib.Path(os.environ["PACELINE_OUTPUT"], "deep").mkdir()
pathlib.Path(os.environ["PACELINE_OUTPUT"], "deep", "model.bin").write_bytes(b"weights")
print("no line end", end="")
"""


def test_a_job_finds_its_files_and_none_of_our_environment(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:s3cret@db")
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text("reference")
    job = runtime.start(spec(LOOK_AROUND, inputs={"data": data}, environment={"SEED": "7"}))
    launcher = state_of(job)["launcher"]["pid"]
    told, last = finish(job)
    seen = json.loads(told)
    home = Path(job.id)
    environment = seen["environment"]
    environment.pop("LC_CTYPE", None)
    assert set(environment) == {
        *JOB_ENVIRONMENT,
        "HOME", "LANG", "PACELINE_CHECKPOINT", "PACELINE_CONTROL", "PACELINE_INPUT", "PACELINE_OUTPUT", "PATH",
        "PYTHONPATH", "PYTHONUNBUFFERED", "SEED", "TMPDIR",
    }  # fmt: skip
    assert seen["folder"] == str(home / "work")
    assert seen["python"] == sys.executable
    assert seen["sdk"].startswith(str(home / "sdk"))
    assert seen["input"] == "reference"
    assert seen["session"]
    assert len(seen["handles"]) == 4  # the standard three and the listing itself
    assert last == "no line end"
    assert (home / "job.json").stat().st_mode & 0o077 == 0
    assert home.stat().st_mode & 0o077 == 0
    assert not Path(f"/proc/{launcher}").exists() or job.status().state == "exited"
    job.collect(tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "model.bin").read_bytes() == b"weights"
    status = job.status()
    assert (status.state, status.exit_code, status.reason) == ("exited", 0, "")
    assert status.started_s is not None
    assert status.finished_s is not None
    assert status.started_s < status.finished_s < time.time()
    job.remove()
    job.remove()
    assert job.status().state == "gone"
    with pytest.raises(JobLostError):
        runtime.reattach(job.id)


def test_the_launcher_carries_no_secret_of_ours(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FERNET_KEY", "s3cret")
    job = runtime.start(spec("import time; time.sleep(60)"))
    for pid in processes_below(runtime.root):
        assert b"s3cret" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert len(processes_below(runtime.root)) == 3
    job.remove()


def test_wait_returns_as_soon_as_the_job_ends_and_not_later_than_asked(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec("import time; print('up', flush=True); time.sleep(1.5)"))
    wait_for_line(job, "up")
    begun = time.monotonic()
    assert not job.wait(0.2)
    assert time.monotonic() - begun < 0.6
    assert job.wait(20.0)
    finished = job.status().finished_s
    assert finished is not None
    assert time.time() - finished < 0.5
    job.remove()


OWNER = """
import sys, time
from pathlib import Path
from paceline.runtime import JobSpec, ProcessRuntime
job = ProcessRuntime(Path(sys.argv[1]), mechanism=sys.argv[3]).start(JobSpec(
    name="job", command=["python", "job.py"], devices=1.0, files={"job.py": Path(sys.argv[2])},
    memory_bytes=512 * 1024**2))
print(job.id, flush=True)
time.sleep(60)
"""


def test_a_job_goes_on_when_its_first_owner_is_killed_and_another_process_takes_over(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    wanted = spec("import time\nfor i in range(25): print('line', i, flush=True); time.sleep(0.1)")
    command = [sys.executable, "-c", OWNER, str(runtime.root), str(wanted.files["job.py"]), runtime.mechanism]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        assert owner.stdout is not None
        job_id = owner.stdout.readline().strip()
        os.killpg(owner.pid, signal.SIGKILL)  # as a worker's end takes all of its processes
    job = runtime.reattach(job_id)
    assert job.status().state == "running"
    assert runtime.start(wanted).id == job_id
    job.resize(0.9)
    lines = finish(job)
    assert lines == [f"line {i}" for i in range(25)]
    assert job.status().exit_code == 0
    job.remove()


RESUMES = """
import os, pathlib, time
saved = pathlib.Path(os.environ["PACELINE_CHECKPOINT"], "step")
print("resumed at", saved.read_text() if saved.exists() else "nothing", flush=True)
if saved.exists(): raise SystemExit(0)
saved.write_text("41")
print("saved", flush=True)
time.sleep(60)
"""


def test_a_killed_job_is_restarted_with_its_checkpoint_and_its_output_goes_on(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec(RESUMES))
    lines = wait_for_line(job, "saved")
    os.kill(state_of(job)["child"], signal.SIGKILL)
    lines += finish(job)
    assert (job.status().exit_code, job.status().reason) == (137, "killed (SIGKILL)")
    job.restart()
    lines += finish(job)
    assert lines == ["resumed at nothing", "saved", "resumed at 41"]
    assert job.status().exit_code == 0
    job.remove()


SPREADS = """
import os, subprocess, sys, time
code = "import time\\nwhile True: sum(range(1000))"
subprocess.Popen([sys.executable, "-c", code])
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    os._exit(0)
os.wait()
print("up", flush=True)
"""


def test_a_launcher_that_is_killed_leaves_neither_running_nor_stopped_processes(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec(SPREADS + "time.sleep(60)", devices=0.4))
    wait_for_line(job, "up")
    assert len(carrying(f"PACELINE_OUTPUT={job.id}/output")) == 4
    os.kill(state_of(job)["launcher"]["pid"], signal.SIGKILL)
    assert job.wait(10.0)
    status = job.status()
    assert (status.state, status.exit_code) == ("exited", 137)
    assert "controlled the job was killed" in status.reason
    assert carrying(f"PACELINE_OUTPUT={job.id}/output") == []
    job.remove()


def test_what_a_job_leaves_running_in_the_background_ends_with_it(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec(SPREADS))
    assert finish(job) == ["up"]
    assert carrying(f"PACELINE_OUTPUT={job.id}/output") == []
    job.remove()


def test_background_processes_in_sessions_of_their_own_share_the_share(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec(SPREADS + "time.sleep(60)", devices=0.3))
    try:
        wait_for_line(job, "up")
        job.wait(1.5)
        pids = carrying(f"PACELINE_OUTPUT={job.id}/output")
        begun, before = time.monotonic(), cpu_of(*pids)
        job.wait(3.0)
        assert (cpu_of(*pids) - before) / (time.monotonic() - begun) < 0.3 * 1.1
    finally:
        job.remove()


HOPS = """
import os, subprocess, sys, time
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
for _ in range(20):
    began = time.process_time()
    while time.process_time() < began + 0.02: pass
print("up", flush=True)
"""


def test_processes_that_leave_their_session_all_the_time_do_not_hold_the_others_for_ever(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec(HOPS, devices=0.3))
    try:
        wait_for_line(job, "up")
    finally:
        job.remove()


def test_when_everything_is_killed_the_job_is_gone_and_can_still_be_restarted(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec(RESUMES))
    wait_for_line(job, "saved")
    state = state_of(job)
    os.kill(state["guardian"]["pid"], signal.SIGKILL)
    os.kill(state["launcher"]["pid"], signal.SIGKILL)
    assert job.wait(5.0)
    assert job.status().state == "gone"
    assert runtime.reattach(job.id).status().state == "gone"
    job.restart()
    assert finish(job)[-1] == "resumed at 41"
    job.remove()


def test_another_process_with_the_number_of_the_launcher_is_not_taken_for_it(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec("print()"))
    finish(job)
    state = state_of(job)
    while processes_below(runtime.root):
        time.sleep(0.01)
    (Path(job.id) / "exit.json").unlink()
    for who in ("launcher", "guardian"):
        state[who]["pid"] = os.getpid()  # alive, but not started when the launcher was
    (Path(job.id) / "state.json").write_text(json.dumps(state))
    assert job.status().state == "gone"
    job.stop(0.0)  # and must not be sent a signal
    job.remove()


def test_a_job_killed_for_memory_says_so_with_its_limit(runtime: ProcessRuntime, spec: Callable[..., JobSpec]) -> None:
    code = "import time\nx = []\nwhile True: x.append(bytearray(b'x') * 2_000_000); time.sleep(0.002)"
    job = runtime.start(spec(code, memory_bytes=100 * MIB))
    finish(job)
    status = job.status()
    assert (status.out_of_memory, status.exit_code) == (True, 137)
    assert status.reason == "killed for memory, limit 100 MiB"
    job.remove()


STOPPABLE = """
import signal, time
def save(*_):
    print("saving", flush=True)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save if DEAF == 0 else signal.SIG_IGN)
print("up", flush=True)
while True: sum(range(1000))
"""


def test_stop_lets_a_job_save_first_even_at_a_tiny_share_and_ends_one_that_does_not(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec(STOPPABLE.replace("DEAF", "0"), devices=0.05))
    lines = wait_for_line(job, "up")
    job.stop(5.0)
    assert lines + finish(job) == ["up", "saving"]
    assert job.status().exit_code == 0
    job.stop()
    job.remove()
    deaf = runtime.start(spec(STOPPABLE.replace("DEAF", "1")))
    wait_for_line(deaf, "up")
    begun = time.monotonic()
    deaf.stop(0.5)
    assert time.monotonic() - begun < 3.0
    assert (deaf.status().exit_code, deaf.status().state) == (137, "exited")
    deaf.remove()


def test_a_different_spec_of_the_same_name_is_refused_while_the_first_runs(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec]
) -> None:
    first = runtime.start(spec("import time; time.sleep(60)"))
    with pytest.raises(InvalidInputError, match=r"name: .* runs another job of this name"):
        runtime.start(spec("print('other')"))
    first.stop(0.0)
    other = runtime.start(spec("print('other')"))
    assert finish(other) == ["other"]
    other.remove()


def test_what_cannot_run_is_refused_before_anything_is_made(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec], tmp_path: Path
) -> None:
    good = spec("print()")
    cases: dict[str, dict[str, Any]] = {
        "files: got .*nowhere.py', expected an existing file": {"files": {"a.py": tmp_path / "nowhere.py"}},
        "command: got 'no-such-program'": {"command": ["no-such-program"]},
        "command: got './no-such-file'": {"command": ["./no-such-file"]},
        "command: got 'job.py'": {"command": ["job.py"]},  # not on PATH: it would have to be ./job.py
        "devices: got 0,": {"devices": 0},
        "devices: got 1000": {"devices": 1000},
    }
    for message, change in cases.items():
        with pytest.raises(InvalidInputError, match=message):
            runtime.start(dataclasses.replace(good, **change))
    assert list(runtime.root.iterdir()) == []


def test_a_program_among_the_files_is_run_with_its_own_mode(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec], tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho from a script")
    script.chmod(0o755)
    job = runtime.start(spec("", command=["./run.sh"], files={"run.sh": script}))
    assert finish(job) == ["from a script"]
    job.remove()


@pytest.mark.parametrize("trick", ["os.symlink('/etc/passwd', out + '/x')", "os.mkfifo(out + '/x')"])
def test_output_that_is_no_file_is_refused_as_a_whole(
    runtime: ProcessRuntime, spec: Callable[..., JobSpec], tmp_path: Path, trick: str
) -> None:
    job = runtime.start(spec(f"import os\nout = os.environ['PACELINE_OUTPUT']\nopen(out + '/a', 'w')\n{trick}"))
    finish(job)
    with pytest.raises(TrainingFailedError, match="'output/x' is no regular file"):
        job.collect(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    job.remove()
