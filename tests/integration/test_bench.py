"""A closed bench has removed its containers, but has not stopped the applications that it measured."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path

import docker
import pytest
from tests.waiting import LONG_S

from paceline.errors import PacelineError, TrainingFailedError
from paceline.fleet import BackgroundApp, Machine
from paceline.fleet.usage import EngineUsage
from paceline.profiles.bench import Bench, Timing
from paceline.profiles.measured_training import TrainingSpec
from paceline.profiles.neighbours import IMAGE as NEIGHBOUR
from paceline.profiles.neighbours import Load, Neighbours
from paceline.runtime import DockerRuntime, JobSpec
from paceline.runtime.docker_job import DockerJob
from paceline.testing.emulated_device import EmulatedDevice

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "benchmarks" / "edge" / "train.py"
SDK = PROJECT / "include" / "paceline"
TICK = Path(__file__).parent / "training" / "tick.py"


@pytest.fixture
def neighbour_image(docker_client: docker.APIClient) -> str:
    try:
        docker_client.inspect_image(NEIGHBOUR)
    except docker.errors.ImageNotFound:
        pytest.skip(f"no image {NEIGHBOUR}; `make neighbour-image` builds it")
    return NEIGHBOUR


class GatedRuntime(DockerRuntime):
    """A runtime that blocks the ``start`` call of the ``nth`` container until the test opens ``gate``."""

    def __init__(self, client: docker.APIClient, nth: int) -> None:
        super().__init__(client)
        self.starts_until_gate = nth
        self.reached, self.gate = threading.Event(), threading.Event()

    def start(self, spec: JobSpec) -> DockerJob:
        job = super().start(spec)
        self.starts_until_gate -= 1
        if not self.starts_until_gate:
            self.reached.set()
            assert self.gate.wait(60)
        return job


@pytest.mark.parametrize(
    ("nth", "is_training"),
    [(1, False), (3, False), (3, True)],
    ids=["at-its-first-container", "at-its-last-container", "after-all-have-started"],
)
def test_bench_closed_by_another_thread_leaves_no_container(
    docker_client: docker.APIClient, trainer_image: str, nth: int, is_training: bool
) -> None:
    machines = [Machine(name=name, kind="part", cores=0.3, memory_gib=1) for name in ("a", "b")]
    server = machines[0].model_copy(update={"name": "server"})
    label = f"paceline.test=bench-{uuid.uuid4().hex}"
    gauges = {one.name: EngineUsage(docker_client, one) for one in (*machines, server)}
    raised: list[BaseException] = []

    def train_on_bench() -> None:
        try:
            with bench:
                bench.train({"a": 16, "b": 16})
        except PacelineError as error:
            raised.append(error)

    runtime = GatedRuntime(docker_client, nth)
    runtimes = dict.fromkeys(gauges, runtime)
    labels = dict([label.split("=")])
    training = TrainingSpec(SCRIPT, trainer_image)
    bench = Bench(machines, server, training, runtimes, gauges, image=trainer_image, labels=labels)
    thread = threading.Thread(target=train_on_bench)
    thread.start()
    assert runtime.reached.wait(60)
    if is_training:
        runtime.gate.set()
    bench.close()  # the bench does not yet know the container whose ``start`` call is blocked
    runtime.gate.set()
    thread.join(60)
    assert not thread.is_alive()
    assert raised, "the training was not interrupted"
    assert docker_client.containers(all=True, filters={"label": label}) == []
    assert [one["Name"] for one in docker_client.networks() if one["Name"].startswith(bench._prefix)] == []


def test_running_application_is_measured_and_not_stopped(docker_client: docker.APIClient, trainer_image: str) -> None:
    machine = Machine(
        name="a", kind="part", cores=0.5, memory_gib=1, background=(BackgroundApp(name="tick", latency_ms=1000),)
    )
    # The test itself starts this container, which contains the paceline package.
    container = docker_client.create_container(
        trainer_image,
        ["python3", "-c", TICK.read_text()],
        environment={"PYTHONPATH": "/sdk", "PACELINE_PROGRESS": "lines"},
        labels={"paceline.background": "tick"},
        host_config=docker_client.create_host_config(binds={str(SDK): {"bind": "/sdk/paceline", "mode": "ro"}}),
    )
    neighbours = Neighbours(DockerRuntime(docker_client), machine, "tick-test")
    try:
        docker_client.start(container)
        neighbours.start()
        assert set(neighbours.take_execution_times()["tick"]) == {0.25}
        neighbours.close()
        assert docker_client.inspect_container(container)["State"]["Running"]
    finally:
        docker_client.remove_container(container, force=True, v=True)


def test_error_names_the_application_that_reports_nothing(
    docker_client: docker.APIClient, neighbour_image: str
) -> None:
    app = BackgroundApp(name="mute", latency_ms=1000)
    machine = Machine(name="a", kind="part", cores=0.5, memory_gib=1, background=(app,))
    container = docker_client.create_container(neighbour_image, ["sleep", "60"], labels={"paceline.background": "mute"})
    neighbours = Neighbours(DockerRuntime(docker_client), machine, "mute-test", timeout_s=0.5)
    try:
        docker_client.start(container)
        message = r"background\.mute of a is running but did not report an execution time within 0.5 s"
        with pytest.raises(TrainingFailedError, match=message):
            neighbours.start()
    finally:
        neighbours.close()
        docker_client.remove_container(container, force=True, v=True)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("import time; time.sleep(600)", "is running but did not report an execution time within 0.5 s: it must call"),
        ("raise SystemExit(3)", "has ended: exit code 3"),
    ],
    ids=["silent", "ended"],
)
def test_bench_notices_an_application_that_reports_nothing_before_its_first_point(
    docker_client: docker.APIClient, trainer_image: str, tmp_path: Path, script: str, problem: str
) -> None:
    (tmp_path / "mute.py").write_text(script)
    app = BackgroundApp(name="mute", latency_ms=1000, image=trainer_image, script=str(tmp_path / "mute.py"))
    machine = Machine(name="a", kind="part", cores=0.5, memory_gib=1, background=(app,))
    server = Machine(name="server", kind="part", cores=0.5, memory_gib=1)
    gauges = {one.name: EngineUsage(docker_client, one) for one in (machine, server)}
    label = f"paceline.test=bench-{uuid.uuid4().hex}"
    bench = Bench(
        [machine],
        server,
        TrainingSpec(SCRIPT, trainer_image),
        dict.fromkeys(gauges, DockerRuntime(docker_client)),
        gauges,
        timing=Timing(report_s=0.5 if "sleep" in script else 60.0),
        labels=dict([label.split("=")]),
    )
    with pytest.raises(TrainingFailedError, match=f"background.mute of a {problem}"), bench:
        pass
    assert docker_client.containers(all=True, filters={"label": label}) == []


@pytest.mark.parametrize(("load", "resource"), [(Load(cpu=0.5), "CPU"), (Load(memory=0.1), "memory")])
def test_bench_notices_that_an_artificial_load_has_ended(
    docker_client: docker.APIClient, neighbour_image: str, load: Load, resource: str
) -> None:
    machine = Machine(name="a", kind="part", cores=0.5, memory_gib=1)
    neighbours = Neighbours(DockerRuntime(docker_client), machine, f"load-{uuid.uuid4().hex[:8]}", neighbour_image)
    try:
        neighbours.set_load(load)
        assert neighbours.take_execution_times() == {}
        process = neighbours._cpu or neighbours._memory
        assert process is not None
        docker_client.kill(process.id)
        assert process.wait(LONG_S)
        with pytest.raises(TrainingFailedError, match=f"the {resource} load on a has ended: .*SIGKILL"):
            neighbours.take_execution_times()
    finally:
        neighbours.close()


class RecordingRuntime(DockerRuntime):
    """A runtime that records the specification of each started job."""

    def __init__(self, client: docker.APIClient) -> None:
        super().__init__(client)
        self.started: list[JobSpec] = []

    def start(self, spec: JobSpec) -> DockerJob:
        self.started.append(spec)
        return super().start(spec)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create control groups")
def test_memory_load_leaves_10_percent_of_memory_free(
    docker_client: docker.APIClient, trainer_image: str, neighbour_image: str
) -> None:
    memory_gib = 0.75
    app = BackgroundApp(name="tick", latency_ms=1000, image=trainer_image, script=str(TICK))
    with EmulatedDevice("test-full", 0.8, int(memory_gib * 2**30)) as device:
        machine = Machine(
            name="full",
            kind="part",
            cores=0.8,
            memory_gib=memory_gib,
            cgroup_parent=device.cgroup_parent,
            background=(app,),
        )
        server = Machine(name="server", kind="part", cores=1, memory_gib=1)
        gauges = {"full": device, "server": EngineUsage(docker_client, server)}
        runtime = RecordingRuntime(docker_client)
        runtimes = dict.fromkeys(gauges, runtime)
        timing = Timing(settle_s=0.1, before_s=0.5, training_s=0.5, every_s=0.25)
        with Bench([machine], server, TrainingSpec(SCRIPT, trainer_image), runtimes, gauges, timing=timing) as bench:
            bench.train({"full": 16})
            (row,) = bench.measure({"full": Load(memory=1.0)}, active=["full"])
            free = 0.9 - bench._memory["full"]
    (load,) = [spec.command for spec in runtime.started if spec.name.endswith("-memory")]
    assert int(load[load.index("--vm-bytes") + 1]) == int(free * memory_gib * 2**30)
    # Training continued under the memory load, and the bench measured the application.
    assert row["compute_s"] > 0
    assert row["new_memory"] < 1.0
    assert row["execution_s.tick"] == 0.25
