"""What a bench must not do: leave something behind when it is closed at any moment, or kill what it measures."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path

import docker
import pytest

from paceline.errors import PacelineError, TrainingFailedError
from paceline.fleet import BackgroundApp, Machine
from paceline.fleet.usage import EngineUsage
from paceline.profiles.bench import Bench, Timing
from paceline.profiles.neighbours import IMAGE as NEIGHBOUR
from paceline.profiles.neighbours import Load, Neighbours
from paceline.profiles.rehearsal import TrainingSpec
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


class Gated(DockerRuntime):
    """Starts containers; with the ``nth`` it does not come back before the test has opened ``gate``."""

    def __init__(self, client: docker.APIClient, nth: int) -> None:
        super().__init__(client)
        self.left = nth
        self.reached, self.gate = threading.Event(), threading.Event()

    def start(self, spec: JobSpec) -> DockerJob:
        job = super().start(spec)
        self.left -= 1
        if not self.left:
            self.reached.set()
            assert self.gate.wait(60)
        return job


@pytest.mark.parametrize(
    ("nth", "is_under_way"),
    [(1, False), (3, False), (3, True)],
    ids=["at-its-first-container", "at-its-last-container", "after-all-have-started"],
)
def test_a_bench_that_is_closed_by_another_thread_leaves_nothing(
    docker_client: docker.APIClient, trainer_image: str, nth: int, is_under_way: bool
) -> None:
    machines = [Machine(name=name, kind="part", cores=0.3, memory_gib=1) for name in ("a", "b")]
    server = machines[0].model_copy(update={"name": "server"})
    label = f"paceline.test=bench-{uuid.uuid4().hex}"
    gauges = {one.name: EngineUsage(docker_client, one) for one in (*machines, server)}
    raised: list[BaseException] = []

    def train() -> None:
        try:
            with bench:
                bench.train({"a": 16, "b": 16})
        except PacelineError as error:
            raised.append(error)

    runtime = Gated(docker_client, nth)
    runtimes = dict.fromkeys(gauges, runtime)
    labels = dict([label.split("=")])
    bench = Bench(machines, server, TrainingSpec(SCRIPT, trainer_image), runtimes, gauges, labels=labels)
    under_way = threading.Thread(target=train)
    under_way.start()
    assert runtime.reached.wait(60)
    if is_under_way:
        runtime.gate.set()
    bench.close()  # it cannot know yet of a container whose start has not come back
    runtime.gate.set()
    under_way.join(60)
    assert not under_way.is_alive()
    assert raised, "it did not notice"
    assert docker_client.containers(all=True, filters={"label": label}) == []
    assert [one["Name"] for one in docker_client.networks() if one["Name"].startswith(bench._run)] == []


def test_an_application_that_runs_already_is_listened_to_and_left_alone(
    docker_client: docker.APIClient, trainer_image: str
) -> None:
    machine = Machine(
        name="a", kind="part", cores=0.5, memory_gib=1, background=(BackgroundApp(name="tick", latency_ms=1000),)
    )
    # Not started by Paceline, but it has its package, as an application has it that is installed with it.
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
        assert set(neighbours.take_times()["tick"]) == {0.25}
        neighbours.close()
        assert docker_client.inspect_container(container)["State"]["Running"]
    finally:
        docker_client.remove_container(container, force=True, v=True)


def test_an_application_that_says_nothing_is_named(docker_client: docker.APIClient, neighbour_image: str) -> None:
    app = BackgroundApp(name="mute", latency_ms=1000)
    machine = Machine(name="a", kind="part", cores=0.5, memory_gib=1, background=(app,))
    container = docker_client.create_container(neighbour_image, ["sleep", "60"], labels={"paceline.background": "mute"})
    neighbours = Neighbours(DockerRuntime(docker_client), machine, "mute-test", patience_s=0.5)
    try:
        docker_client.start(container)
        with pytest.raises(TrainingFailedError, match=r"background\.mute of a runs already, and in 0.5 s has not said"):
            neighbours.start()
    finally:
        neighbours.close()
        docker_client.remove_container(container, force=True, v=True)


class Recording(DockerRuntime):
    """Remembers what it has started."""

    def __init__(self, client: docker.APIClient) -> None:
        super().__init__(client)
        self.started: list[JobSpec] = []

    def start(self, spec: JobSpec) -> DockerJob:
        self.started.append(spec)
        return super().start(spec)


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made by root")
def test_load_leaves_the_last_of_a_machines_memory_to_the_training(
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
        runtime = Recording(docker_client)
        runtimes = dict.fromkeys(gauges, runtime)
        timing = Timing(settle_s=0.1, before_s=0.5, training_s=0.5, every_s=0.25)
        with Bench([machine], server, TrainingSpec(SCRIPT, trainer_image), runtimes, gauges, timing=timing) as bench:
            bench.train({"full": 16})
            (row,) = bench.measure({"full": Load(memory=1.0)}, active=["full"])
            free = 0.9 - bench._memory["full"]
    (load,) = [spec.command for spec in runtime.started if spec.name.endswith("-memory")]
    assert int(load[load.index("--vm-bytes") + 1]) == int(free * memory_gib * 2**30)
    # It has trained on, with the rest in use, and the application was listened to.
    assert row["compute_s"] > 0
    assert row["new_memory"] < 1.0
    assert row["execution_s.tick"] == 0.25
