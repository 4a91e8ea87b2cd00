"""A training with the throughput objective, in a real Airflow and real containers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import torch
from tests.integration.training.gates import Training, dag, open_gates
from tests.waiting import LONG_S, until

from paceline.airflow.demo.airflow_process import AirflowProcess
from paceline.elastic.nodes import LABEL_TEAM
from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "training" / "patient.py"
SAMPLES, EPOCHS = 120, 40
LABELS = [LABEL_TEAM, "paceline.dag=soon"]  # teams of other tests have another DAG
DAG = f"""
from airflow.sdk import DAG
from paceline.elastic import Options
from paceline.operators import DeadlineTrainingOperator

with DAG("soon", schedule=None):
    DeadlineTrainingOperator(
        task_id="train",
        script={str(SCRIPT)!r},
        arguments=["{SAMPLES}", "{EPOCHS}"],
        objective="throughput",
        budget=2.0,
        # Any two samples are stable. The workers are mostly idle, so scaling soon adds one.
        scaling=Options(
            start_share=1.0, stable_samples=2, stable_variation=1.0, network_samples=2, max_servers=1, max_workers=3
        ),
    )
"""


@pytest.fixture
def soon(airflow: AirflowProcess, docker_client: docker.APIClient) -> Iterator[Training]:
    with dag(airflow, "soon", DAG):
        yield Training(airflow, "soon", airflow.run_dag("soon"))
    DockerRuntime(docker_client).remove_all({"paceline.dag": "soon"})


def test_training_scales_within_its_budget_after_its_task_is_killed(
    soon: Training, docker_client: docker.APIClient
) -> None:
    def nodes() -> dict[str, str]:
        found = docker_client.containers(filters={"label": LABELS})
        return {one["Labels"]["paceline.node"]: one["Id"] for one in found}

    soon.until(lambda pace: pace["progress_pct"] > 0)
    before = nodes()
    os.kill(soon.instance()["pid"], signal.SIGKILL)
    until(lambda: soon.instance()["try_number"] == 2, "the next try")
    soon.until(lambda history: any(len(one.get("nodes", ())) == 4 for one in history["events"]), "history")
    now = nodes()
    assert before.items() <= now.items(), "the same containers, and possibly one more"
    hosts = [docker_client.inspect_container(container)["HostConfig"] for container in now.values()]
    assert sum(host["CpuQuota"] / host["CpuPeriod"] for host in hosts) <= 2.0 + 0.01

    for container in now.values():
        open_gates(docker_client, container, "go")
    assert soon.airflow.wait("soon", soon.run_id, LONG_S) == "success"
    model = torch.load(Path(soon.result()["model"]) / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    pace = soon.store("pace")
    assert (pace["state"], pace["feasible"]) == ("finished", True)
    events = [one for one in soon.store("history")["events"] if one["kind"] == "scaled"]
    assert events[0]["why"] == "starts on 2 of 2 cores"
    assert "more worker" in events[1]["why"]
    assert docker_client.containers(all=True, filters={"label": LABELS}) == []
