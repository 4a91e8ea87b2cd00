"""A training job on several machines in a real Airflow, with one container per worker and one parameter server.

The model counts how often each sample was trained on, see ``training/counts.py``. ``python -m benchmarks.promises``
measures how close to the deadline the workers end if their shards differ in size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training import gates
from tests.integration.training.gates import TrainingTask, open_gates, run_in_container
from tests.waiting import LONG_S, until

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(1200)]

SAMPLES, EPOCHS = 24, 2
SHARDS = {"a": {"samples": 16, "batch_size": 4}, "b": {"samples": 8, "batch_size": 4}}
SERVER, A, B, RESULT = (f"train.{name}" for name in ("parameter_server", "a", "b", "result"))
DAG = f"""
from datetime import timedelta

from airflow.sdk import DAG
from paceline.fleet import Fleet, Machine
from paceline.operators import Docker, train_on_fleet

machines = [Machine(name=name, kind="part", cores=1, memory_gib=1) for name in "ab"]
with DAG("machines", schedule=None):
    train_on_fleet(
        fleet=Fleet(machines=machines, parameter_server=machines[0]),
        plan={{"workers": {SHARDS}}},
        server={{"cores": 1, "retry_delay": timedelta(seconds=1)}},
        script={str(Path(__file__).parent / "training" / "counts.py")!r},
        arguments=["{SAMPLES}", "{EPOCHS}"],
        deadline="1h",
        min_devices=1,
        retry_delay=timedelta(seconds=1),
    )
"""


@pytest.fixture
def container_of_task(docker_client: docker.APIClient) -> Iterator[Callable[[str], str]]:
    """Yield a function that returns a task's container id. Fail the test if a container or network is left."""

    def container_ids(*labels: str) -> list[str]:
        labelled = docker_client.containers(all=True, filters={"label": ["paceline.dag=machines", *labels]})
        return [one["Id"] for one in labelled]

    yield lambda task: container_ids(f"paceline.task={task}")[0]
    left = container_ids(), training_networks(docker_client)
    for container in left[0]:
        docker_client.remove_container(container, force=True, v=True)
    for network in left[1]:
        docker_client.remove_network(network["Id"])
    assert left == ([], [])


@pytest.fixture
def tasks(airflow: AirflowProcess, container_of_task: object) -> Iterator[dict[str, TrainingTask]]:
    """Start a run, and yield its tasks by task id."""
    with gates.temporary_dag(airflow, "machines", DAG) as dag:
        run_id = airflow.run_dag(dag)
        yield {name: TrainingTask(airflow, dag, run_id, name) for name in (SERVER, A, B, RESULT)}


def training_networks(client: docker.APIClient) -> list[dict[str, Any]]:
    return client.networks(names=["paceline-machines-train"])


def test_each_sample_is_trained_once_per_epoch_if_worker_and_server_restart(
    airflow, tasks, container_of_task, docker_client
):
    server, a, b = tasks[SERVER], tasks[A], tasks[B]
    for worker in (a, b):  # both workers wait in their second batch
        worker.wait_until(lambda pace: pace["progress_pct"] > 0)
    (network,) = training_networks(docker_client)
    assert network["Internal"]  # containers of this network cannot reach other networks
    assert json.loads(run_in_container(docker_client, container_of_task(SERVER), "cat", "plan.json")) == {
        "workers": SHARDS
    }

    docker_client.kill(container_of_task(B))
    server.wait_until(lambda pace: (pace["metrics"]["failures"], pace["metrics"]["workers"]) == (1, 2))

    def list_checkpoint_files() -> set[str]:
        return set(run_in_container(docker_client, container_of_task(SERVER), "ls", "../checkpoint").split())

    before = list_checkpoint_files()
    until(lambda: list_checkpoint_files() - before)  # the new checkpoint has a failure count of 1
    docker_client.kill(container_of_task(SERVER))
    until(lambda: b"resuming from checkpoint" in docker_client.logs(container_of_task(SERVER)))
    for worker in (A, B):
        open_gates(docker_client, container_of_task(worker), "go")

    airflow.wait("machines", server.run_id, LONG_S)
    assert set(airflow.task_states("machines", server.run_id).values()) == {"success"}
    assert server.result()["metrics"]["failures"] == 1
    for task in (a, b, tasks[RESULT]):
        assert json.loads((Path(task.result()["model"]) / "counts.json").read_text()) == [EPOCHS] * SAMPLES


@pytest.mark.parametrize(
    ("dag_id", "fault", "ended", "message"),
    [
        (
            "server_without_image",
            ('server={"cores": 1,', 'server={"runtime": Docker(image="paceline-missing:latest"), "cores": 1,'),
            A,
            "will not serve",
        ),
        (
            "worker_without_input",
            ("min_devices=1,", 'min_devices=1, inputs={"x": "/paceline/missing"},'),
            SERVER,
            "no worker is left",
        ),
    ],
)
def test_tasks_of_a_training_end_when_those_that_they_wait_for_have_failed(
    airflow, docker_client, dag_id, fault, ended, message
):
    text = DAG.replace('"machines"', f'"{dag_id}"').replace("retry_delay=timedelta(seconds=1)", "retries=0")
    text = text.replace('"retry_delay": timedelta(seconds=1)', '"retries": 0').replace(*fault)
    with gates.temporary_dag(airflow, dag_id, text):
        run_id = airflow.run_dag(dag_id)
        assert airflow.wait(dag_id, run_id, LONG_S) == "failed"
        assert airflow.task_states(dag_id, run_id)[ended] == "failed"
        assert message in airflow.task_log(dag_id, run_id, ended)
    for container in docker_client.containers(all=True, filters={"label": [f"paceline.dag={dag_id}"]}):
        docker_client.remove_container(container, force=True, v=True)
