"""What a bench must not do: leave something behind when it is closed at any moment, or kill what it measures."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import docker
import pytest

from paceline.errors import PacelineError, TrainingFailedError
from paceline.fleet import BackgroundApp, Worker
from paceline.fleet.emulated import EmulatedDevice
from paceline.fleet.usage import EngineUsage
from paceline.profile.bench import Bench, Timing
from paceline.profile.neighbours import IMAGE as NEIGHBOUR
from paceline.profile.neighbours import Load, Neighbours
from paceline.profile.rehearsal import Training
from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]

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


@pytest.mark.parametrize("after_s", [0.2, 1.0, 2.5])
def test_a_bench_that_is_closed_by_another_thread_leaves_nothing(
    docker_client: docker.APIClient, trainer_image: str, after_s: float
) -> None:
    machines = [Worker(name=name, kind="part", cores=0.3, memory_gib=1) for name in ("a", "b")]
    server = machines[0].model_copy(update={"name": "server"})
    labels = {"paceline.test": f"bench-{after_s}"}
    gauges = {one.name: EngineUsage(docker_client, one) for one in (*machines, server)}
    raised: list[BaseException] = []

    def train() -> None:
        try:
            with bench:
                bench.train({"a": 16, "b": 16})
        except PacelineError as error:
            raised.append(error)

    runtimes = dict.fromkeys(gauges, DockerRuntime(docker_client))
    bench = Bench(machines, server, Training(SCRIPT, trainer_image), runtimes, gauges, labels=labels)
    under_way = threading.Thread(target=train)
    under_way.start()
    time.sleep(after_s)  # from the first container's start to a training that has begun
    bench.close()
    under_way.join(60)
    assert not under_way.is_alive()
    assert raised, "it did not notice"
    filters = {"label": [f"{name}={value}" for name, value in labels.items()]}
    assert docker_client.containers(all=True, filters=filters) == []
    assert [one["Name"] for one in docker_client.networks() if one["Name"].startswith(bench._run)] == []


def test_an_application_that_runs_already_is_listened_to_and_left_alone(
    docker_client: docker.APIClient, trainer_image: str, neighbour_image: str
) -> None:
    app = BackgroundApp(name="tick", latency_ms=1000, image=neighbour_image, script=str(TICK))
    machine = Worker(name="a", kind="part", cores=0.5, memory_gib=1, background=(app,))
    server = Worker(name="server", kind="part", cores=0.3, memory_gib=1)
    runtime = DockerRuntime(docker_client)
    # Not started by Paceline, but it has its package, as an application has it that is installed with it.
    container = docker_client.create_container(
        trainer_image,
        ["python3", "-c", TICK.read_text()],
        environment={"PYTHONPATH": "/sdk", "PACELINE_PROGRESS": "lines"},
        labels={"paceline.background": "tick"},
        host_config=docker_client.create_host_config(binds={str(SDK): {"bind": "/sdk/paceline", "mode": "ro"}}),
    )
    try:
        docker_client.start(container)
        gauges = {name: EngineUsage(docker_client, one) for name, one in (("a", machine), ("server", server))}
        runtimes = dict.fromkeys(gauges, runtime)
        timing = Timing(before_s=1.0, training_s=1.0)
        with Bench([machine], server, Training(SCRIPT, trainer_image), runtimes, gauges, timing=timing) as bench:
            bench.train({"a": 16})
            (row,) = bench.measure({}, active=["a"])
        assert row["execution_s.tick"] == row["alone_s.tick"] == 0.25
        assert docker_client.inspect_container(container)["State"]["Running"]
    finally:
        docker_client.remove_container(container, force=True, v=True)


def test_an_application_that_says_nothing_is_named(docker_client: docker.APIClient, neighbour_image: str) -> None:
    app = BackgroundApp(name="mute", latency_ms=1000)
    machine = Worker(name="a", kind="part", cores=0.5, memory_gib=1, background=(app,))
    container = docker_client.create_container(neighbour_image, ["sleep", "60"], labels={"paceline.background": "mute"})
    neighbours = Neighbours(DockerRuntime(docker_client), machine, "mute-test", patience_s=0.5)
    try:
        docker_client.start(container)
        with pytest.raises(TrainingFailedError, match=r"background\.mute of a runs already, and in 0.5 s has not said"):
            neighbours.start()
    finally:
        neighbours.close()
        docker_client.remove_container(container, force=True, v=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made by root")
def test_load_leaves_the_last_of_a_machines_memory_to_the_training(
    docker_client: docker.APIClient, trainer_image: str, neighbour_image: str
) -> None:
    memory_gib = 0.75
    with EmulatedDevice("test-full", 0.8, int(memory_gib * 2**30)) as device:
        machine = Worker(name="full", kind="part", cores=0.8, memory_gib=memory_gib, cgroup_parent=device.cgroup_parent)
        server = Worker(name="server", kind="part", cores=0.3, memory_gib=1)
        gauges = {"full": device, "server": EngineUsage(docker_client, server)}
        runtimes = dict.fromkeys(gauges, DockerRuntime(docker_client))
        timing = Timing(before_s=1.0, training_s=1.0)
        with Bench([machine], server, Training(SCRIPT, trainer_image), runtimes, gauges, timing=timing) as bench:
            bench.train({"full": 16})
            (row,) = bench.measure({"full": Load(memory=1.0)}, active=["full"])
    # It has trained on, with all the rest in use.
    assert 0.8 < row["new_memory"] < 1.0
    assert row["compute_s"] > 0
