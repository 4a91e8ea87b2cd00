"""A training as a team of real containers: nodes come and go while it trains, and nothing is left of them.

What scaling decides, and what a team does when engines and nodes fail, the tests in ``tests/unit/elastic`` show.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
import torch
from tests.integration.training.gates import open_gates
from tests.waiting import LONG_S, until

from paceline.elastic import Options
from paceline.elastic.nodes import LABEL_TEAM
from paceline.elastic.runtime import TeamRuntime
from paceline.elastic.team import TeamJob
from paceline.errors import InvalidInputError
from paceline.runtime import DockerRuntime, JobSpec
from paceline.train.job import EXIT_TERMINATED
from paceline.train.progress import Progress, parse_line

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "training" / "patient.py"
SAMPLES, EPOCHS = 120, 40
BUDGET, LESS = 2.0, 1.2
# Any two samples are stable, and a worker that waits most of the time leaves cores to others: there is one more soon.
OPTIONS = Options(
    start_share=1.0, stable_samples=2, stable_variation=1.0, network_samples=2, most_servers=1, most_workers=3
)


class Followed:
    """A team whose control loop is this test: each look reads what the nodes say, and lets scaling decide."""

    def __init__(self, job: TeamJob, quotas: Callable[[], Iterator[float]], most: float) -> None:
        self.job, self.lines, self.most = job, [""], most
        self._quotas = quotas

    @property
    def progress(self) -> list[Progress]:
        return [one for line in self.lines if (one := parse_line(line))]

    def look(self) -> bool:
        """Do one step; return whether the team has ended."""
        ended = self.job.wait(0.2)
        if not ended:
            self.job.usage()
        self.lines.extend(self.job.read_lines())
        assert sum(self._quotas()) <= self.most + 0.01
        return ended

    def until(self, true: Callable[[], object], what: str) -> None:
        until(lambda: self.look() or true(), what)
        assert not self.job.wait(0.0), "the training has ended too early"


@pytest.fixture
def name(docker_client: docker.APIClient) -> Iterator[str]:
    name = f"team-{uuid.uuid4().hex[:8]}"
    yield name
    DockerRuntime(docker_client).remove_all({LABEL_TEAM: name})


def training(name: str) -> JobSpec:
    return JobSpec(
        name=name,
        command=["python", SCRIPT.name, str(SAMPLES), str(EPOCHS)],
        devices=BUDGET,
        image="paceline-trainer:latest",
        files={SCRIPT.name: SCRIPT},
    )


def test_a_team_grows_revives_a_worker_stands_still_and_ends_with_one_model_that_saw_every_sample_once_an_epoch(
    docker_client: docker.APIClient, name: str, tmp_path: Path
) -> None:
    def containers() -> dict[str, str]:
        found = docker_client.containers(filters={"label": f"{LABEL_TEAM}={name}"})
        return {one["Labels"]["paceline.node"]: one["Id"] for one in found}

    def quotas() -> Iterator[float]:
        for container in containers().values():
            with contextlib.suppress(docker.errors.NotFound):  # it has been removed just now
                host = docker_client.inspect_container(container)["HostConfig"]
                yield host["CpuQuota"] / host["CpuPeriod"]

    runtime = TeamRuntime(DockerRuntime(docker_client), lambda _: training(name), options=OPTIONS)
    runtime.start(training(name)).close()
    begun = containers()
    assert sorted(begun) == ["ps-0", "worker-0", "worker-1"]

    # Another process finds it again.
    team = Followed(runtime.reattach(begun["ps-0"]), quotas, BUDGET)
    assert sorted(team.job.configuration.nodes) == sorted(begun)
    assert team.job.configuration.cores == pytest.approx(BUDGET, abs=0.001)
    team.until(lambda: "worker-2" in containers(), "a third worker")
    (step,) = team.job.take_steps()
    assert step.kind == "worker"
    assert "cores are used: 1 more worker" in step.reason

    docker_client.kill(begun["worker-1"])
    team.until(lambda: any(line.startswith("worker-1 has died") for line in team.lines), "the death of worker-1")
    team.until(lambda: "worker-1" in containers(), "worker-1 again")

    so_far = team.progress[-1].done
    assert so_far > 0
    team.job.stop(grace_s=LONG_S)
    assert containers() == {}
    assert team.job.status().exit_code == EXIT_TERMINATED
    team.job.resize(LESS)
    team.job.restart()
    team.most = LESS
    said = len(team.lines)
    team.until(lambda: any(parse_line(line) for line in team.lines[said:]), "progress after the standstill")
    assert next(one for line in team.lines[said:] if (one := parse_line(line))).done >= so_far

    for container in containers().values():
        open_gates(docker_client, container, "go")
    until(team.look, "the end")
    assert team.job.status().exit_code == 0
    assert (team.progress[-1].done, team.progress[-1].total) == (SAMPLES * EPOCHS, SAMPLES * EPOCHS)
    team.job.collect(tmp_path)
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    team.job.remove()
    assert docker_client.containers(all=True, filters={"label": f"{LABEL_TEAM}={name}"}) == []
    assert docker_client.networks(names=[f"paceline-{name}"]) == []


def test_what_cannot_run_as_a_team_is_refused_before_anything_starts(
    docker_client: docker.APIClient, name: str
) -> None:
    runtime = TeamRuntime(DockerRuntime(docker_client), lambda _: training(name))
    with pytest.raises(InvalidInputError, match="network_mode"):
        runtime.check(JobSpec(name=name, command=["python"], devices=1.0, image="paceline-trainer:latest", network="x"))
    with pytest.raises(InvalidInputError, match="budget"):
        runtime.check(JobSpec(name=name, command=["python"], devices=0.1, image="paceline-trainer:latest"))
    assert docker_client.containers(all=True, filters={"label": f"{LABEL_TEAM}={name}"}) == []
