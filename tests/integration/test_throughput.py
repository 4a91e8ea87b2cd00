"""A training job with the throughput objective, in a real Airflow, in real containers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import torch
from demo.airflow_process import AirflowProcess
from tests.integration.training.gates import TrainingTask, open_gates, temporary_dag
from tests.waiting import LONG_S, until

from paceline.elastic.nodes import LABEL_TEAM
from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "training" / "patient.py"
SAMPLES, EPOCHS = 120, 40
LABELS = [LABEL_TEAM, "paceline.dag=soon"]  # exclude the teams of other tests
DAG = f"""
from airflow.sdk import DAG
from paceline.elastic import Team
from paceline.operators import DeadlineTrainingOperator

with DAG("soon", schedule=None):
    DeadlineTrainingOperator(
        task_id="train",
        script={str(SCRIPT)!r},
        arguments=["{SAMPLES}", "{EPOCHS}"],
        max_devices=2.0,
        # Two samples suffice for a scaling decision. The workers are mostly idle, so scaling adds a worker.
        team=Team(
            start_share=1.0, stable_samples=2, stable_variation=1.0, network_samples=2, max_servers=1, max_workers=3
        ),
    )
"""


@pytest.fixture
def throughput_task(airflow: AirflowProcess, docker_client: docker.APIClient) -> Iterator[TrainingTask]:
    with temporary_dag(airflow, "soon", DAG):
        yield TrainingTask(airflow, "soon", airflow.run_dag("soon"))
    DockerRuntime(docker_client).remove_all({"paceline.dag": "soon"})


def test_job_whose_task_was_killed_scales_within_its_budget(
    throughput_task: TrainingTask, docker_client: docker.APIClient
) -> None:
    def team_containers() -> dict[str, str]:
        running = docker_client.containers(filters={"label": LABELS})
        return {one["Labels"]["paceline.node"]: one["Id"] for one in running}

    throughput_task.wait_until(lambda pace: pace["progress_pct"] > 0)
    before = team_containers()
    os.kill(throughput_task.instance()["pid"], signal.SIGKILL)
    until(lambda: throughput_task.instance()["try_number"] == 2, "the next try")
    throughput_task.wait_until(
        lambda history: any(len(one.get("nodes", ())) == 4 for one in history["events"]), "history"
    )
    now = team_containers()
    assert before.items() <= now.items(), "the same containers, and possibly one more"
    hosts = [docker_client.inspect_container(container)["HostConfig"] for container in now.values()]
    assert sum(host["CpuQuota"] / host["CpuPeriod"] for host in hosts) <= 2.0 + 0.01

    for container in now.values():
        open_gates(docker_client, container, "go")
    assert throughput_task.airflow.wait("soon", throughput_task.run_id, LONG_S) == "success"
    model = torch.load(Path(throughput_task.result()["model"]) / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    pace = throughput_task.stored_value("pace")
    assert (pace["state"], pace["feasible"]) == ("finished", True)
    events = [one for one in throughput_task.stored_value("history")["events"] if one["kind"] == "scaled"]
    assert events[0]["why"] == "starts on 2 of 2 cores"
    assert "more worker" in events[1]["why"]
    assert docker_client.containers(all=True, filters={"label": LABELS}) == []
