"""DockerRuntime against a real engine: what a container may do, how it is controlled, and what no accident loses."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidInputError, JobLostError, RuntimeUnavailableError, TrainingFailedError
from paceline.runtime import DockerRuntime, Job, JobSpec
from paceline.runtime.docker_stats import stats_now, usage_of

pytestmark = pytest.mark.docker

MIB = 1024**2


@pytest.fixture
def runtime(docker_client: Any) -> DockerRuntime:
    return DockerRuntime(docker_client)


@pytest.fixture
def spec(trainer_image: str, tmp_path: Path, docker_client: Any) -> Iterator[Callable[..., JobSpec]]:
    """Makes specs whose containers are gone after the test, whatever happened."""
    mark = uuid.uuid4().hex[:12]

    def make(code: str, **changes: Any) -> JobSpec:
        script = tmp_path / "job.py"
        script.write_text(code)
        base = JobSpec(
            name=f"test-{mark}",
            command=["python", "job.py"],
            devices=1.0,
            image=trainer_image,
            files={"job.py": script},
            memory_bytes=256 * MIB,
            labels={"paceline.test": mark},
        )
        return dataclasses.replace(base, **changes)

    yield make
    for left in docker_client.containers(all=True, filters={"label": f"paceline.test={mark}"}):
        docker_client.remove_container(left["Id"], force=True, v=True)


def finish(job: Job, timeout_s: float = 60.0) -> list[str]:
    lines: list[str] = []
    limit = time.monotonic() + timeout_s
    while not job.wait(0.2):
        lines += job.read_lines()
        assert time.monotonic() < limit, f"the job did not end; it said {lines[-5:]}"
    return lines + job.read_lines()


def wait_for_line(job: Job, wanted: str, timeout_s: float = 30.0) -> list[str]:
    lines: list[str] = []
    limit = time.monotonic() + timeout_s
    while not any(wanted in line for line in lines):
        assert time.monotonic() < limit, f"{wanted!r} was not said, only {lines[-5:]}"
        ended = job.wait(0.05)
        lines += job.read_lines()
        assert not ended or any(wanted in line for line in lines), (lines[-5:], job.status())
    return lines


LOOK_AROUND = """
import json, os, socket, pathlib, paceline.train.progress as progress
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
def attempt(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"
print(json.dumps({
    "caps": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"],
    "ids": [os.getuid(), os.getgid()],
    "groups": sorted(set(os.getgroups())),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "connect": attempt(lambda: socket.create_connection(("172.17.0.1", 80), timeout=2)),
    "folder": os.getcwd(),
    "input": pathlib.Path(os.environ["PACELINE_INPUT"], "data/a.txt").read_text(),
    "write_input": attempt(lambda: open(os.environ["PACELINE_INPUT"] + "/x", "w")),
    "write_sdk": attempt(lambda: open(progress.__file__, "a")),
    "write_root": attempt(lambda: open("/etc/x", "w")),
    "write_work": attempt(lambda: open("x", "w")),
    "init": open("/proc/1/comm").read().strip(),
    "secret": os.environ.get("TOKEN"),
}))
for folder in ("PACELINE_OUTPUT", "PACELINE_CHECKPOINT"):
    pathlib.Path(os.environ[folder], "deep").mkdir()
    pathlib.Path(os.environ[folder], "deep", "model.bin").write_bytes(b"weights")
"""


def test_a_job_has_its_files_and_may_do_nothing_else(
    runtime: DockerRuntime, spec: Callable[..., JobSpec], tmp_path: Path, docker_client: Any
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text("reference")
    job = runtime.start(spec(LOOK_AROUND, inputs={"data": data}, environment={"TOKEN": "s3cret"}, max_processes=77))
    (said,) = finish(job)
    seen = json.loads(said)
    assert seen["caps"] == ["0000000000000000"] * 5
    assert seen["no_new_privileges"] == "1"
    assert seen["ids"] == [65532, 65532]
    assert 0 not in seen["groups"]
    assert seen["interfaces"] == ["lo"]
    assert seen["connect"] != "done"
    assert seen["folder"] == "/paceline/work"
    assert seen["input"] == "reference"
    assert [seen["write_input"], seen["write_sdk"], seen["write_root"]] == ["PermissionError"] * 3
    assert seen["write_work"] == "done"
    assert seen["init"] in ("docker-init", "tini")
    assert seen["secret"] == "s3cret"
    host = docker_client.inspect_container(job.id)["HostConfig"]
    assert (host["PidsLimit"], host["Memory"], host["MemorySwap"]) == (77, 256 * MIB, 256 * MIB)
    assert not host["Binds"]
    assert not host["Privileged"]

    job.collect(tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "model.bin").read_bytes() == b"weights"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["deep"]
    status = job.status()
    assert (status.state, status.exit_code, status.reason) == ("exited", 0, "")
    assert status.started_s is not None
    assert status.finished_s is not None
    assert abs(status.finished_s - time.time()) < 60

    job.remove()
    job.remove()
    assert job.status().state == "gone"
    assert not docker_client.containers(all=True, filters={"name": f"paceline-{job.id}"})
    with pytest.raises(JobLostError):
        runtime.reattach(job.id)


CORES = """
import os, time
def used(seconds):
    start, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - start < seconds:
        sum(range(1000))
    return (time.process_time() - cpu) / (time.monotonic() - start)
while True:
    print("cores", used(0.5), flush=True)
"""


def test_the_share_follows_resize_up_and_down_while_the_job_runs(
    runtime: DockerRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec(CORES, devices=0.2))

    def most_of(count: int) -> float:
        wait_for_line(job, "cores")  # one that may lie across the change
        lines: list[str] = []
        while len(lines) < count:
            lines += [line for line in wait_for_line(job, "cores") if line.startswith("cores")]
        return max(float(line.split()[1]) for line in lines)

    try:
        first = most_of(2)
        job.resize(0.8)
        second = most_of(2)
        job.resize(0.0001)
        job.resize(0.2)
        third = most_of(2)
        # A quota is an upper bound; a busy machine may give less, so the growth is asked for with a margin.
        assert first <= 0.23
        assert 1.25 * first < second <= 0.83
        assert third <= 0.23
        before = job.usage()
        assert before.cpu_s > 0.1
        assert 0 < before.memory_bytes < 256 * MIB
    finally:
        job.remove()


def test_in_a_network_of_its_own_nobody_waits_long_for_a_name(
    runtime: DockerRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec("print(open('/etc/resolv.conf').read())", own_network="test-names", alias="it"))
    try:
        lines = finish(job)
    finally:
        job.remove()
    assert {"timeout:1", "attempts:2"} <= {word for line in lines for word in line.split()}, lines


def test_a_container_that_goes_away_while_it_is_measured_has_nothing_to_tell(
    docker_client: Any, runtime: DockerRuntime, spec: Callable[..., JobSpec]
) -> None:
    for asked_before_s in (0.0, 0.1, 0.3, 0.6):  # the engine measures once a second, nobody knows when
        job = runtime.start(spec("while True: pass"))
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(stats_now, docker_client, job.id)
            time.sleep(asked_before_s)
            job.remove()
            try:
                said = usage_of(answer.result())
            except JobLostError:
                said = None
        assert said is None or said.cpu_s > 0  # of the moment before


def test_every_line_arrives_once_and_in_order_however_fast_they_come(
    runtime: DockerRuntime, spec: Callable[..., JobSpec]
) -> None:
    code = "import sys\nsys.stdout.reconfigure(write_through=False)\nfor i in range(100_000): print('line', i)\n"
    job = runtime.start(spec(code, devices=runtime.capacity()))
    assert finish(job) == [f"line {i}" for i in range(100_000)]
    job.remove()


def test_garbage_long_lines_and_a_missing_line_end_are_taken_as_they_are(
    runtime: DockerRuntime, spec: Callable[..., JobSpec]
) -> None:
    code = r"""
import os
os.write(1, b"\xff\xfe broken\n" + b"x" * 200_000 + b"\nafter\n10%\r50%\r100%\n\nlast")
"""
    job = runtime.start(spec(code))
    lines = finish(job)
    assert lines[0] == "�� broken"
    assert lines[1].startswith("x" * 65536)
    assert len(lines[1]) < 65600
    assert lines[2:] == ["after", "100%", "", "last"]
    job.remove()


def test_wait_returns_as_soon_as_the_job_ends_and_not_later_than_asked(
    runtime: DockerRuntime, spec: Callable[..., JobSpec]
) -> None:
    job = runtime.start(spec("import time; print('up', flush=True); time.sleep(2)"))
    wait_for_line(job, "up")
    begun = time.monotonic()
    assert not job.wait(0.3)
    assert time.monotonic() - begun < 1.0
    assert job.wait(30.0)
    finished = job.status().finished_s
    assert finished is not None
    assert time.time() - finished < 1.0
    job.remove()


def test_a_job_killed_for_memory_says_so_with_its_limit(runtime: DockerRuntime, spec: Callable[..., JobSpec]) -> None:
    job = runtime.start(spec("x = []\nwhile True: x.append(bytearray(10_000_000))", memory_bytes=64 * MIB))
    finish(job)
    status = job.status()
    assert status.out_of_memory
    assert status.exit_code == 137
    assert status.reason == "killed for memory, limit 64 MiB"
    job.remove()


def test_a_killed_container_is_restarted_with_its_checkpoint_and_its_output_goes_on(
    runtime: DockerRuntime, spec: Callable[..., JobSpec], docker_client: Any
) -> None:
    code = """
import os, pathlib, time
saved = pathlib.Path(os.environ["PACELINE_CHECKPOINT"], "step")
print("resumed at", saved.read_text() if saved.exists() else "nothing", flush=True)
if saved.exists(): raise SystemExit(0)
saved.write_text("41")
print("saved", flush=True)
time.sleep(60)
"""
    job = runtime.start(spec(code))
    lines = wait_for_line(job, "saved")
    docker_client.kill(job.id)
    lines += finish(job)
    assert job.status().reason == "killed (SIGKILL)"
    job.restart()
    lines += finish(job)
    assert lines == ["resumed at nothing", "saved", "resumed at 41"]
    assert job.status().exit_code == 0
    job.remove()


def test_stop_lets_a_job_save_first_and_ends_one_that_does_not(
    runtime: DockerRuntime, spec: Callable[..., JobSpec]
) -> None:
    code = """
import signal, time
def save(*_):
    print("saving", flush=True)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, save if DEAF == 0 else signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
    job = runtime.start(spec(code.replace("DEAF", "0")))
    lines = wait_for_line(job, "up")
    job.stop(5.0)
    lines += finish(job)
    assert lines == ["up", "saving"]
    assert job.status().exit_code == 0
    job.stop()
    job.remove()
    deaf = runtime.start(spec(code.replace("DEAF", "1")))
    wait_for_line(deaf, "up")
    begun = time.monotonic()
    deaf.stop(1.0)
    assert deaf.status().exit_code == 137
    assert time.monotonic() - begun < 8.0
    deaf.remove()


def test_the_same_spec_started_again_is_the_same_container(
    runtime: DockerRuntime, spec: Callable[..., JobSpec], docker_client: Any
) -> None:
    first = runtime.start(spec("import time; print('up', flush=True); time.sleep(60)"))
    wait_for_line(first, "up")
    again = runtime.start(spec("import time; print('up', flush=True); time.sleep(60)", devices=0.5))
    assert again.id == first.id
    wait_for_line(again, "up")
    again.close()
    with pytest.raises(InvalidInputError, match=r"name: .* runs another job of this name"):
        runtime.start(spec("print('other')"))
    first.stop(0.0)
    other = runtime.start(spec("print('other')"))
    assert other.id != first.id
    assert finish(other) == ["other"]
    first.close()
    other.remove()


def test_a_job_goes_on_when_its_first_owner_is_killed_and_another_process_takes_over(
    runtime: DockerRuntime, spec: Callable[..., JobSpec], docker_client: Any, docker_host: str
) -> None:
    wanted = spec("import time\nfor i in range(40): print('line', i, flush=True); time.sleep(0.1)")
    owner = f"""
import docker, time
from pathlib import Path
from paceline.runtime import DockerRuntime, JobSpec
client = docker.APIClient({docker_host!r}, version="auto")
job = DockerRuntime(client).start(JobSpec(name={wanted.name!r}, command=["python", "job.py"], devices=1.0,
    image={wanted.image!r}, files={{"job.py": Path({str(wanted.files["job.py"])!r})}},
    memory_bytes={wanted.memory_bytes}, labels={dict(wanted.labels)!r}))
print(job.id, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        job_id = first.stdout.readline().strip()
        first.kill()
    job = runtime.reattach(job_id)
    assert job.status().state == "running"
    assert runtime.start(wanted).id == job_id
    lines = finish(job)
    assert lines[-1] == "line 39"
    assert job.status().exit_code == 0
    assert len(docker_client.containers(all=True, filters={"name": wanted.name})) == 1
    job.remove()


def test_a_container_that_was_created_but_never_started_is_made_anew(
    runtime: DockerRuntime, spec: Callable[..., JobSpec], docker_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The crash between create and start: what was put into the container by then is unknown.
    wanted = spec("print('done')")
    with monkeypatch.context() as crash:
        crash.setattr(DockerRuntime, "_discard", lambda *_: None)
        crash.setattr(docker_client, "start", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            runtime.start(wanted)
    left = docker_client.inspect_container(f"paceline-{wanted.name}")
    assert left["State"]["Status"] == "created"
    with pytest.raises(JobLostError, match="never started"):
        runtime.reattach(left["Id"])
    job = runtime.start(wanted)
    assert job.id != left["Id"]
    assert finish(job) == ["done"]
    job.remove()


def test_a_start_that_fails_leaves_no_container(
    runtime: DockerRuntime, spec: Callable[..., JobSpec], docker_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = spec("", command=["no-such-program"])
    try:
        job = runtime.start(wanted)
    except Exception:
        assert not docker_client.containers(all=True, filters={"name": wanted.name})
    else:  # an engine with an init starts it, and the init fails
        finish(job)
        assert job.status().exit_code == 127
        assert "could not be run" in job.status().reason
        job.remove()

    def cut_off(*_: Any) -> None:
        raise ConnectionResetError("cut off")

    # The engine goes away in the middle, and is back for the removal.
    monkeypatch.setattr(docker_client, "put_archive", cut_off)
    broken = spec("print()")
    with pytest.raises(RuntimeUnavailableError, match=r"put the job's files into the container: .* cut off"):
        runtime.start(broken)
    assert not docker_client.containers(all=True, filters={"name": broken.name})


@pytest.mark.parametrize("trick", ["os.symlink('/etc/passwd', out + '/x')", "os.mkfifo(out + '/x')"])
def test_output_that_is_no_file_is_refused_as_a_whole(
    runtime: DockerRuntime, spec: Callable[..., JobSpec], tmp_path: Path, trick: str
) -> None:
    job = runtime.start(spec(f"import os\nout = os.environ['PACELINE_OUTPUT']\nopen(out + '/a', 'w')\n{trick}"))
    finish(job)
    assert job.status().exit_code == 0
    with pytest.raises(TrainingFailedError, match="'output/x' is no regular file"):
        job.collect(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    job.remove()


def test_more_output_than_the_limit_is_refused(
    docker_client: Any, spec: Callable[..., JobSpec], tmp_path: Path
) -> None:
    code = "import os\nopen(os.environ['PACELINE_OUTPUT'] + '/big', 'wb').write(bytes(2_000_000))"
    job = DockerRuntime(docker_client, max_output_bytes=1_000_000).start(spec(code))
    finish(job)
    with pytest.raises(TrainingFailedError, match="more than 1000000 bytes"):
        job.collect(tmp_path / "out")
    job.remove()


def test_what_cannot_run_is_refused_before_anything_is_made(
    runtime: DockerRuntime, spec: Callable[..., JobSpec], docker_client: Any, tmp_path: Path
) -> None:
    good = spec("print()")
    cases = {
        "image: got 'no/such:image', expected an image that the engine has": {"image": "no/such:image"},
        "image: got None": {"image": None},
        "files: got .*nowhere.py', expected an existing file": {"files": {"a.py": tmp_path / "nowhere.py"}},
        "inputs: got .*nowhere', expected an existing file or folder": {"inputs": {"a": tmp_path / "nowhere"}},
        "network: got 'no-such-network'": {"network": "no-such-network"},
        "devices: got 1000": {"devices": 1000},
    }
    for message, change in cases.items():
        with pytest.raises(InvalidInputError, match=message):
            runtime.start(dataclasses.replace(good, **change))  # type: ignore[arg-type]
    assert not docker_client.containers(all=True, filters={"name": good.name})


def test_gpus_are_asked_of_the_engine_and_named_where_it_has_none(
    runtime: DockerRuntime, spec: Callable[..., JobSpec], docker_client: Any
) -> None:
    wanted = dataclasses.replace(spec("import os; print(os.path.exists('/dev/nvidiactl'))"), gpus=1)
    if any("nvidia" in name for name in docker_client.info()["Runtimes"]):
        job = runtime.start(wanted)
        assert finish(job) == ["True"]
        job.remove()
    else:
        with pytest.raises(InvalidInputError, match="gpus: got 1, expected at most the GPUs that the engine can give"):
            runtime.start(wanted)
        assert not docker_client.containers(all=True, filters={"name": wanted.name})


def test_an_engine_that_is_not_there_is_said_to_be_away(spec: Callable[..., JobSpec]) -> None:
    import docker

    runtime = DockerRuntime(lambda: docker.APIClient("unix:///nowhere/docker.sock", version="auto"))
    with pytest.raises(RuntimeUnavailableError, match="connect to the Docker engine"):
        runtime.check(spec("print()"))


def test_a_container_that_outlives_its_engine_for_a_while_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    import docker

    script = Path(__file__).parents[2] / "docker" / "engine"
    folder = Path("/tmp") / f"pe-{uuid.uuid4().hex[:8]}"  # a socket's path must be short

    def engine(*words: str) -> None:
        subprocess.run([str(script), *words], check=True, capture_output=True, timeout=120)

    try:
        engine("start", str(folder), "--live-restore")
        client = docker.APIClient(f"unix://{folder}/docker.sock", version="auto", timeout=10)
        shell_image(client, tmp_path_factory.mktemp("image"))
        count = (
            "i=0; while [ $i -lt 120 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; echo saved >/paceline/output/m"
        )
        wanted = JobSpec(name="outage", command=["/bin/sh", "-c", count], devices=1.0, image="shell:latest")
        job = DockerRuntime(client).start(wanted)
        lines = wait_for_line(job, "line 5")
        engine("stop", str(folder))
        stopped = time.monotonic()
        with pytest.raises(RuntimeUnavailableError, match="does not answer"):
            job.resize(0.5)
        with pytest.raises(RuntimeUnavailableError):
            job.status()
        while time.monotonic() - stopped < 6.0:
            assert not job.wait(1.0)
            lines += job.read_lines()
        engine("start", str(folder), "--live-restore")
        back = time.monotonic()
        lines += wait_for_line(job, "line 2")
        assert time.monotonic() - back < 10.0
        job.resize(0.5)
        lines += finish(job)
        assert lines == [f"line {i}" for i in range(120)]
        assert job.status().exit_code == 0
        job.collect(folder / "out")
        assert (folder / "out" / "m").read_text() == "saved\n"
        job.remove()
        assert client.containers(all=True) == []
    finally:
        engine("remove", str(folder))


def shell_image(client: Any, folder: Path) -> None:
    """Import an image with nothing but this machine's shell, which is quicker than copying one between engines."""
    import shutil
    import tarfile

    programs = [Path(found).resolve() for found in (shutil.which("dash") or "/bin/sh", shutil.which("sleep")) if found]
    needed = {program: program for program in programs}
    for program in programs:
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                needed[Path(word)] = Path(word).resolve()
    archive = folder / "shell.tar"
    with tarfile.open(archive, "w") as tar:
        for place, source in needed.items():
            tar.add(source, arcname=str(place))
        tar.add(programs[0], arcname="/bin/sh")
        tar.add(programs[1], arcname="/bin/sleep")
    client.import_image_from_file(str(archive), repository="shell", tag="latest")
