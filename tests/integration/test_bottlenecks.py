"""What holds a real training up is recognised as what it is, and the step against it is taken."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from paceline.elastic import Configuration, Options, Scaling, Step
from paceline.elastic.nodes import LABEL_NODE, LABEL_TEAM
from paceline.elastic.runtime import TeamRuntime
from paceline.errors import PacelineError
from paceline.fleet import Link
from paceline.fleet.emulated_link import narrow
from paceline.runtime import DockerRuntime, JobSpec

pytestmark = [pytest.mark.docker, pytest.mark.alone, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parent / "training" / "held_up.py"
# A busy machine is not as steady as a cluster: more variation counts as stable here than by default.
STEADY = {"stable_samples": 3, "stable_variation": 0.2, "network_samples": 10}


@pytest.fixture
def name(docker_client: docker.APIClient) -> Iterator[str]:
    name = f"held-up-{uuid.uuid4().hex[:8]}"
    yield name
    DockerRuntime(docker_client).remove_all({LABEL_TEAM: name})


def first_step(
    client: docker.APIClient,
    name: str,
    configuration: Configuration,
    *,
    numbers: int,
    batch_cpu_s: float,
    link_mbit_s: float | None = None,
) -> Step:
    """Train on a configuration until the first step; the link of ps-0 is narrow, if one is given."""
    options = Options(link_mbit_s=link_mbit_s, **STEADY)
    spec = JobSpec(
        name=name,
        command=["python", SCRIPT.name, str(numbers), str(batch_cpu_s)],
        devices=configuration.cores,
        image="paceline-trainer:latest",
        files={SCRIPT.name: SCRIPT},
    )
    scaling = Scaling(configuration.cores, options, configuration=configuration)
    runtime = TeamRuntime(DockerRuntime(client), lambda _: spec, options=options, decider=lambda *_: scaling)
    team = runtime.start(spec)
    if link_mbit_s is not None:
        labels = [f"{LABEL_TEAM}={name}", f"{LABEL_NODE}=ps-0"]
        narrow(client, client.containers(filters={"label": labels})[0]["Id"], Link(mbit_per_s=link_mbit_s))
    try:
        give_up_s = time.monotonic() + 200
        while True:
            assert time.monotonic() < give_up_s, "no step was taken"
            assert not team.wait(0.5)
            team.usage()
            team.read_lines()
            steps = [step for step in team.take_steps() if step.kind != "begin"]
            if steps:
                print(steps[0].kind, "|", steps[0].reason, "|", steps[0].configuration)
                return steps[0]
    finally:
        with contextlib.suppress(PacelineError):
            team.stop(1.0)
        team.remove()


def test_a_worker_with_more_cores_than_its_threads_can_use_becomes_two(docker_client, name):
    before = Configuration((0.2,), (1.5,))
    step = first_step(docker_client, name, before, numbers=1000, batch_cpu_s=0.02)
    assert step.kind == "worker"
    assert (len(step.configuration.servers), len(step.configuration.workers)) == (1, 2)
    assert step.configuration.cores == pytest.approx(before.cores)
    assert "cores are used: 1 more worker" in step.reason


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("tc"), reason="traffic control needs root and iproute2")
def test_a_narrow_link_of_a_parameter_server_asks_for_another_one(docker_client, name):
    before = Configuration((0.4,), (0.2,) * 5)  # fewer would take turns with its two directions
    step = first_step(docker_client, name, before, numbers=100_000, batch_cpu_s=0.001, link_mbit_s=20)
    assert step.kind == "server"
    assert (len(step.configuration.servers), len(step.configuration.workers)) == (2, 5)
    assert step.reason.startswith("network of ps-0 at 9")


def test_a_parameter_server_short_of_cores_gets_those_that_workers_leave_idle(docker_client, name):
    before = Configuration((0.1,), (0.7, 0.7))
    step = first_step(docker_client, name, before, numbers=1_000_000, batch_cpu_s=0.01)
    assert step.kind == "reassign"
    assert step.configuration.servers[0] > 1.2 * before.servers[0]
    assert step.configuration.cores == pytest.approx(before.cores)
    assert step.reason.startswith("worker-")
