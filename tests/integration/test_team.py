"""A training job that runs as a team of real containers, which nodes join and leave during training.

``tests/unit/elastic`` tests the scaling decisions and the failures of engines and nodes.
"""

from __future__ import annotations

import contextlib
import textwrap
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
import torch
from tests.integration.training.gates import open_gates
from tests.waiting import LONG_S, until

from paceline.elastic import Team
from paceline.elastic.nodes import LABEL_TEAM
from paceline.elastic.runtime import TeamRuntime
from paceline.elastic.team import TeamJob
from paceline.errors import InvalidInputError, UnsuitableCodeError
from paceline.runtime import DockerOptions, DockerRuntime, JobSpec
from paceline.train.job import EXIT_TERMINATED
from paceline.train.progress import Progress, parse_line

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "training" / "patient.py"
SAMPLES, EPOCHS = 120, 40
BUDGET, SMALLER_BUDGET = 2.0, 1.2
# With these options, two samples suffice for a scaling decision. The workers are mostly idle, so scaling adds a worker.
OPTIONS = Team(start_share=1.0, stable_samples=2, stable_variation=1.0, network_samples=2, max_servers=1, max_workers=3)


class ControlledTeam:
    """A team that the test controls step by step."""

    def __init__(self, job: TeamJob, quotas: Callable[[], Iterator[float]], budget: float) -> None:
        self.job, self.lines, self.budget = job, [""], budget
        self._quotas = quotas

    @property
    def progress(self) -> list[Progress]:
        return [one for line in self.lines if (one := parse_line(line))]

    def step(self) -> bool:
        """Let scaling decide, read the output and check the quotas. Return whether the team has ended."""
        ended = self.job.wait(0.2)
        if not ended:
            self.job.usage()
        self.lines.extend(self.job.read_lines())
        assert sum(self._quotas()) <= self.budget + 0.01
        return ended

    def wait_until(self, condition: Callable[[], object], description: str) -> None:
        until(lambda: self.step() or condition(), description)
        assert not self.job.wait(0.0), "the job has ended too early"


@pytest.fixture
def team_name(docker_client: docker.APIClient) -> Iterator[str]:
    team_name = f"team-{uuid.uuid4().hex[:8]}"
    yield team_name
    DockerRuntime(docker_client).remove_all({LABEL_TEAM: team_name})


def team_spec(team_name: str) -> JobSpec:
    return JobSpec(
        name=team_name,
        command=["python", SCRIPT.name, str(SAMPLES), str(EPOCHS)],
        devices=BUDGET,
        image="paceline-trainer:latest",
        files={SCRIPT.name: SCRIPT},
    )


def test_team_adds_and_restarts_workers_resumes_and_trains_every_sample(
    docker_client: docker.APIClient, team_name: str, tmp_path: Path
) -> None:
    def containers() -> dict[str, str]:
        running = docker_client.containers(filters={"label": f"{LABEL_TEAM}={team_name}"})
        return {one["Labels"]["paceline.node"]: one["Id"] for one in running}

    def quotas() -> Iterator[float]:
        for container in containers().values():
            with contextlib.suppress(docker.errors.NotFound):  # the container was removed after the listing
                host = docker_client.inspect_container(container)["HostConfig"]
                yield host["CpuQuota"] / host["CpuPeriod"]

    runtime = TeamRuntime(DockerRuntime(docker_client), lambda _: team_spec(team_name), options=OPTIONS)
    runtime.start(team_spec(team_name)).close()
    initial = containers()
    assert sorted(initial) == ["ps-0", "worker-0", "worker-1"]

    # Reattach to the team with a second job object.
    team = ControlledTeam(runtime.reattach(initial["ps-0"]), quotas, BUDGET)
    assert sorted(team.job.configuration.nodes) == sorted(initial)
    assert team.job.configuration.cores == pytest.approx(BUDGET, abs=0.001)
    team.wait_until(lambda: "worker-2" in containers(), "a third worker")
    (decision,) = team.job.take_steps()
    assert decision.kind == "worker"
    assert "cores are used: 1 more worker" in decision.reason
    team.wait_until(lambda: "paceline: worker-2 has joined: 3 workers" in team.lines, "the log of the third worker")

    docker_client.kill(initial["worker-1"])
    team.wait_until(lambda: any(line.startswith("worker-1 has died") for line in team.lines), "the crash of worker-1")
    team.wait_until(lambda: "worker-1" in containers(), "worker-1 again")

    so_far = team.progress[-1].done
    assert so_far > 0
    team.job.stop(grace_s=LONG_S)
    assert containers() == {}
    assert team.job.status().exit_code == EXIT_TERMINATED
    team.job.resize(SMALLER_BUDGET)
    team.job.restart()
    team.budget = SMALLER_BUDGET
    read = len(team.lines)
    team.wait_until(lambda: any(parse_line(line) for line in team.lines[read:]), "progress after the resume")
    assert next(one for line in team.lines[read:] if (one := parse_line(line))).done >= so_far

    for container in containers().values():
        open_gates(docker_client, container, "go")
    until(team.step, "the end")
    assert team.job.status().exit_code == 0
    assert (team.progress[-1].done, team.progress[-1].total) == (SAMPLES * EPOCHS, SAMPLES * EPOCHS)
    team.job.collect(tmp_path)
    model = torch.load(tmp_path / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    team.job.remove()
    assert docker_client.containers(all=True, filters={"label": f"{LABEL_TEAM}={team_name}"}) == []
    assert docker_client.networks(names=[f"paceline-{team_name}"]) == []


def test_worker_that_is_frozen_after_the_end_does_not_delay_the_complete_result(
    docker_client: docker.APIClient, team_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.elastic._end._NAMED_AFTER_S", 0.0)
    spec = replace(team_spec(team_name), command=["python", SCRIPT.name, str(SAMPLES), "2", "end"])
    runtime = TeamRuntime(DockerRuntime(docker_client), lambda _: spec, options=OPTIONS)
    job = runtime.start(spec)
    team = ControlledTeam(job, lambda: iter(()), BUDGET)
    team.wait_until(lambda: any(line.endswith("has joined: 2 workers") for line in team.lines), "both workers")
    for node in ("worker-0", "worker-1"):
        open_gates(docker_client, job._members.nodes[node].job.id, "go")
    for node in ("worker-0", "worker-1"):
        team.wait_until(lambda node=node: f"{node}: waits at end" in team.lines, f"{node} after its last batch")
    team.wait_until(lambda: job._members.first_server.status().exit_code == 0, "the end of the parameter server")
    job._members.nodes["worker-0"].job.pause()
    open_gates(docker_client, job._members.nodes["worker-1"].job.id, "end")
    team.wait_until(
        lambda: any("waiting for the end of" in one and "worker-0 (paused)" in one for one in team.lines), ""
    )
    monkeypatch.setattr("paceline.elastic._end._SURPLUS_GRACE_S", 0.0)
    until(team.step, "the end")
    assert "another worker's result is complete: ending worker-0 without a result" in [*team.lines, *job.read_lines()]
    assert job.status().exit_code == 0
    job.collect(tmp_path)
    assert torch.load(tmp_path / "model.pt", weights_only=True)["counts"].tolist() == [2] * SAMPLES
    job.remove()
    assert docker_client.containers(all=True, filters={"label": f"{LABEL_TEAM}={team_name}"}) == []


UNSUITABLE = {
    "no loop": ("print('no loop here')", r"worker: the script ended without a loop over track\(...\)"),
    "break": (
        """
        import torch
        from paceline.train import checkpoint, track

        data = torch.utils.data.TensorDataset(torch.zeros(40))
        checkpoint(model=torch.nn.Linear(1, 1))
        for batch in track(torch.utils.data.DataLoader(data, 4), epochs=20):
            break
        """,
        r"the training code left the track\(\) loop before the end of training, by a break at line 8 of .*\.py",
    ),
    "stream": (
        """
        import torch
        from paceline.train import checkpoint, track

        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                yield from range(40)

        checkpoint(model=torch.nn.Linear(1, 1))
        for batch in track(torch.utils.data.DataLoader(Stream(), 4), total=10):
            pass
        """,
        r"loader: got 'a DataLoader over Stream with batch_size=4', expected a torch DataLoader with a batch size",
    ),
}


@pytest.mark.parametrize("fault", UNSUITABLE)
def test_script_that_cannot_train_in_a_team_fails_it(
    docker_client: docker.APIClient, team_name: str, tmp_path: Path, fault: str
) -> None:
    text, reason = UNSUITABLE[fault]
    (tmp_path / SCRIPT.name).write_text(textwrap.dedent(text))
    spec = replace(team_spec(team_name), command=["python", SCRIPT.name], files={SCRIPT.name: tmp_path / SCRIPT.name})
    team = ControlledTeam(
        TeamRuntime(DockerRuntime(docker_client), lambda _: spec, options=OPTIONS).start(spec), lambda: iter(()), BUDGET
    )
    with pytest.raises(UnsuitableCodeError, match=reason):
        until(team.step, "the error")
    team.job.remove()


class Elsewhere:
    """The runtime of another package, which runs containers under another name."""

    name = "elsewhere"

    def __init__(self, containers: DockerRuntime) -> None:
        self._containers = containers

    def __getattr__(self, method: str) -> Any:
        return getattr(self._containers, method)


def test_team_on_the_runtime_of_another_package_is_found_again_and_removed(
    docker_client: docker.APIClient, team_name: str
) -> None:
    single: Any = Elsewhere(DockerRuntime(docker_client))
    runtime = TeamRuntime(single, lambda _: team_spec(team_name), options=OPTIONS)
    started = runtime.start(team_spec(team_name))
    assert (runtime.name, started.has_engine) == ("elsewhere", True)
    found = runtime.reattach(started.id)
    assert sorted(found.configuration.nodes) == ["ps-0", "worker-0", "worker-1"]
    found.remove()
    started.close()
    assert docker_client.containers(all=True, filters={"label": f"{LABEL_TEAM}={team_name}"}) == []


def test_invalid_team_is_rejected_before_the_start(docker_client: docker.APIClient, team_name: str) -> None:
    runtime = TeamRuntime(DockerRuntime(docker_client), lambda _: team_spec(team_name))
    with pytest.raises(InvalidInputError, match="network"):
        runtime.check(
            JobSpec(
                name=team_name,
                command=["python"],
                devices=1.0,
                image="paceline-trainer:latest",
                options=DockerOptions(network="x"),
            )
        )
    with pytest.raises(InvalidInputError, match="max_devices"):
        runtime.check(JobSpec(name=team_name, command=["python"], devices=0.1, image="paceline-trainer:latest"))
    assert docker_client.containers(all=True, filters={"label": f"{LABEL_TEAM}={team_name}"}) == []
