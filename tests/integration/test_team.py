"""A training as a team of real containers: nodes come and go while it trains, and nothing is left of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
import torch

from paceline.elastic import Options
from paceline.elastic.nodes import LABEL_TEAM
from paceline.elastic.runtime import TeamRuntime
from paceline.elastic.team import TeamJob
from paceline.errors import InvalidInputError
from paceline.runtime import DockerRuntime, JobSpec
from paceline.train._paths import EXIT_TERMINATED
from paceline.train.progress import parse_line

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[1] / "unit" / "train" / "counted.py"
SAMPLES, EPOCHS = 120, 20
BUDGET, LESS = 1.2, 0.9


def training(name: str, batch_s: float = 0.2) -> JobSpec:
    return JobSpec(
        name=name,
        command=["python", "counted.py", str(SAMPLES), str(EPOCHS), str(batch_s)],
        devices=BUDGET,
        image="paceline-trainer:latest",
        files={"counted.py": SCRIPT},
    )


@pytest.fixture
def name(docker_client: docker.APIClient) -> Iterator[str]:
    name = f"team-{uuid.uuid4().hex[:8]}"
    yield name
    DockerRuntime(docker_client).remove_all({LABEL_TEAM: name})


def quotas(client: docker.APIClient, name: str) -> dict[str, float]:
    found = client.containers(filters={"label": f"{LABEL_TEAM}={name}"})
    hosts = {one["Labels"]["paceline.node"]: client.inspect_container(one["Id"])["HostConfig"] for one in found}
    return {node: host["CpuQuota"] / host["CpuPeriod"] for node, host in hosts.items()}


def follow(team: TeamJob, look: Callable[[list[str]], None], timeout_s: float = 300.0) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not team.wait(0.5):
        assert time.monotonic() < give_up_s
        team.usage()
        look(team.read_lines())
    look(team.read_lines())


def test_a_team_starts_small_grows_within_its_budget_and_ends_with_one_model(
    docker_client: docker.APIClient, name: str, tmp_path: Path
) -> None:
    # Waits most of the time, as a worker does whose cores are more than it can use.
    options = Options(start_share=1.0, stable_samples=2, stable_variation=0.5, network_samples=2, most_workers=4)
    runtime = TeamRuntime(DockerRuntime(docker_client), lambda _: training(name), options=options)
    team = runtime.start(training(name))
    assert sorted(quotas(docker_client, name)) == ["ps-0", "worker-0", "worker-1"]
    most, nodes, said = 0.0, set(), []

    def look(lines: list[str]) -> None:
        nonlocal most
        said.extend(lines)
        held = quotas(docker_client, name)
        nodes.update(held)
        most = max(most, sum(held.values()))

    follow(team, look)
    steps = team.take_steps()
    print([step.reason for step in steps], nodes, most)
    assert team.status().exit_code == 0
    assert most <= BUDGET + 0.01
    assert "worker-2" in nodes, "more workers than it began with"
    assert [step.kind for step in steps[:2]] == ["begin", "worker"]
    progress = [one for line in said if (one := parse_line(line))]
    assert (progress[-1].done, progress[-1].total) == (SAMPLES * EPOCHS, SAMPLES * EPOCHS)
    team.collect(tmp_path)
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    team.remove()
    assert docker_client.containers(all=True, filters={"label": f"{LABEL_TEAM}={name}"}) == []
    assert docker_client.networks(names=[f"paceline-{name}"]) == []


def test_a_team_is_found_again_and_a_worker_that_dies_comes_back(docker_client: docker.APIClient, name: str) -> None:
    runtime = TeamRuntime(DockerRuntime(docker_client), lambda _: training(name), options=Options(start_share=1.0))
    runtime.start(training(name)).close()
    first = docker_client.containers(filters={"label": ["paceline.node=ps-0", f"{LABEL_TEAM}={name}"]})[0]["Id"]
    team = runtime.reattach(first)
    assert sorted(team.configuration.nodes) == ["ps-0", "worker-0", "worker-1"]
    assert team.configuration.cores == pytest.approx(BUDGET)
    said: list[str] = []
    killed = False

    def look(lines: list[str]) -> None:
        nonlocal killed
        said.extend(lines)
        done = [one.done for line in lines if (one := parse_line(line))]
        if not killed and done and done[-1] > 0:
            worker = docker_client.containers(filters={"label": ["paceline.node=worker-1", f"{LABEL_TEAM}={name}"]})
            docker_client.kill(worker[0]["Id"])
            killed = True

    follow(team, look)
    assert killed
    assert team.status().exit_code == 0
    assert any(line.startswith("worker-1 has died") for line in said)
    team.remove()


def test_a_team_that_stands_still_for_a_while_loses_no_sample(
    docker_client: docker.APIClient, name: str, tmp_path: Path
) -> None:
    options = Options(start_share=1.0, stable_samples=2, stable_variation=0.5, network_samples=2, most_workers=2)
    spec = training(name, batch_s=0.1)
    team = TeamRuntime(DockerRuntime(docker_client), lambda _: spec, options=options).start(spec)
    stood_still = False

    def look(lines: list[str]) -> None:
        nonlocal stood_still
        done = [one.done for line in lines if (one := parse_line(line))]
        if not stood_still and len(quotas(docker_client, name)) == 4 and done and done[-1] > 0:
            # In the middle of its work, with its state in two parameter servers.
            team.stop(10.0)
            assert quotas(docker_client, name) == {}
            assert team.status().exit_code == EXIT_TERMINATED
            team.resize(LESS)
            team.restart()
            assert sum(quotas(docker_client, name).values()) <= LESS + 0.01
            stood_still = True

    follow(team, look)
    print([step.reason for step in team.take_steps()])
    assert stood_still, "two workers and a second parameter server were to be seen"
    assert team.status().exit_code == 0
    team.collect(tmp_path)
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    team.remove()


def test_what_cannot_run_as_a_team_is_refused_before_anything_starts(
    docker_client: docker.APIClient, name: str
) -> None:
    runtime = TeamRuntime(DockerRuntime(docker_client), lambda _: training(name))
    with pytest.raises(InvalidInputError, match="network_mode"):
        runtime.check(JobSpec(name=name, command=["python"], devices=1.0, image="paceline-trainer:latest", network="x"))
    with pytest.raises(InvalidInputError, match="budget"):
        runtime.check(JobSpec(name=name, command=["python"], devices=0.1, image="paceline-trainer:latest"))
    assert docker_client.containers(all=True, filters={"label": f"{LABEL_TEAM}={name}"}) == []
