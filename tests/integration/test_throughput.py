"""A training that is to end as soon as its budget allows, in a real Airflow and real containers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
import torch

from paceline.demo.airflow_process import AirflowProcess
from paceline.elastic.nodes import LABEL_TEAM
from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[1] / "unit" / "train" / "counted.py"
SAMPLES, EPOCHS = 120, 12
OURS = [LABEL_TEAM, "paceline.dag=soon"]  # other tests have teams, too
DAG = f"""
from airflow.sdk import DAG
from paceline.elastic import Options
from paceline.operators import DeadlineTrainingOperator

with DAG("soon", schedule=None, params={{"batch_s": 0.2}}):
    DeadlineTrainingOperator(
        task_id="train",
        script={str(SCRIPT)!r},
        arguments=["{SAMPLES}", "{EPOCHS}", "{{{{ params.batch_s }}}}"],
        objective="throughput",
        budget=1.2,
        # Its workers wait most of the time: steps are steps here, how fast they are says little.
        scaling=Options(
            start_share=1.0, stable_samples=2, stable_variation=0.5, network_samples=2, most_servers=1, most_workers=3
        ),
    )
"""


@pytest.fixture(scope="module")
def dag(airflow: AirflowProcess, docker_client: docker.APIClient) -> Iterator[str]:
    (airflow.dags_folder / "soon.py").write_text(DAG)
    yield "soon"
    DockerRuntime(docker_client).remove_all({"paceline.dag": "soon"})


def test_a_training_without_a_deadline_scales_within_its_budget(
    airflow: AirflowProcess, dag: str, docker_client: docker.APIClient
) -> None:
    run_id = airflow.run_dag(dag)
    most = 0.0

    def look() -> None:
        nonlocal most
        held = 0.0
        for one in docker_client.containers(filters={"label": OURS}):
            try:
                host = docker_client.inspect_container(one["Id"])["HostConfig"]
            except docker.errors.NotFound:
                continue
            held += host["CpuQuota"] / host["CpuPeriod"]
        most = max(most, held)

    assert airflow.wait(dag, run_id, timeout_s=300, each=look) == "success"
    result = airflow.xcom(dag, run_id, "train")
    model = torch.load(Path(result["model"]) / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    assert most <= 1.2 + 0.01
    pace = airflow.task_state(dag, run_id, "train", "pace")
    assert (pace["state"], pace["feasible"]) == ("finished", True)
    events = [one for one in airflow.task_state(dag, run_id, "train", "history")["events"] if one["kind"] == "scaled"]
    assert [one for one in events if len(one["nodes"]) == 4], events
    assert events[0]["why"] == "it begins on 1.2 of 1.2 cores"
    assert "more worker" in events[1]["why"]
    assert docker_client.containers(all=True, filters={"label": OURS}) == []


def test_its_process_may_die_and_the_next_try_goes_on_with_the_same_containers(
    airflow: AirflowProcess, dag: str, docker_client: docker.APIClient
) -> None:
    def nodes() -> dict[str, str]:
        found = docker_client.containers(filters={"label": OURS})
        return {one["Labels"]["paceline.node"]: one["Id"] for one in found}

    def wait_until(what: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + 120
        while not what():
            assert time.monotonic() < give_up_s
            time.sleep(0.5)

    run_id = airflow.run_dag(dag, {"batch_s": 0.5})
    wait_until(lambda: len(nodes()) >= 3 and bool(airflow.task_state(dag, run_id, "train", "container")))
    before = nodes()
    os.kill(airflow.task_instance(dag, run_id, "train")["pid"], signal.SIGKILL)
    wait_until(lambda: airflow.task_instance(dag, run_id, "train")["try_number"] == 2)
    assert before.items() <= nodes().items()
    assert airflow.wait(dag, run_id, timeout_s=300) == "success"
    model = torch.load(Path(airflow.xcom(dag, run_id, "train")["model"]) / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    assert nodes() == {}
