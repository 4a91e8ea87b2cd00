"""A training on several machines in a real Airflow: a container for the parameter server and for each worker.

The model counts on which samples it was trained, see ``tests/unit/train/counted.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import torch

from paceline.demo.airflow_process import AirflowProcess

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[1] / "unit" / "train" / "counted.py"
DIGITS = Path(__file__).parent / "training" / "digits.py"
SAMPLES, EPOCHS = 120, 4
SERVER, A, B, C, D, RESULT = (f"train.{name}" for name in ("parameter_server", *"abcd", "result"))


def dag_of(dag_id: str, script: Path, arguments: list[str], parts: dict[str, int], batch_size: int) -> str:
    return f"""
from airflow.sdk import DAG
from paceline.fleet import Fleet, Worker
from paceline.operators import train_on_fleet

machines = [Worker(name=name, kind="part", cores=0.5, memory_gib=1) for name in "abcd"]
plan = {{
    "workers": {{name: {{"samples": part, "batch_size": {batch_size}}} for name, part in {parts}.items()}},
    "left_out": {{"d": "its application would miss its objective"}},
}}
with DAG({dag_id!r}, schedule=None):
    train_on_fleet(
        fleet=Fleet(workers=machines, parameter_server=machines[0]),
        plan=plan,
        server={{"cores": 0.5}},
        script={str(script)!r},
        arguments={arguments},
        deadline="60s",
        deadline_from="run",
    )
"""


@pytest.fixture(scope="module")
def dag(airflow: AirflowProcess) -> str:
    equal = dict.fromkeys("abc", 40)
    text = dag_of("machines", SCRIPT, [str(SAMPLES), str(EPOCHS), "0.3"], equal, batch_size=4)
    (airflow.dags_folder / "machines.py").write_text(text)
    return "machines"


def networks_of(client: docker.APIClient) -> list[dict[str, Any]]:
    return [found for dag in ("machines", "unequal") for found in client.networks(names=[f"paceline-{dag}-train"])]


@pytest.fixture
def containers(docker_client: docker.APIClient) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """The containers of a task of the DAG; neither one nor a network may be left after the test."""

    def find(task: str | None = None) -> list[dict[str, Any]]:
        labels = ["paceline.dag=machines"] + ([f"paceline.task={task}"] if task else [])
        return docker_client.containers(all=True, filters={"label": labels})

    yield find
    left = find()
    for container in left:
        docker_client.remove_container(container["Id"], force=True, v=True)
    networks = networks_of(docker_client)
    for network in networks:
        docker_client.remove_network(network["Id"])
    assert (left, networks) == ([], [])


def wait_for_progress(airflow: AirflowProcess, dag: str, run_id: str, task: str, progress_pct: float) -> None:
    give_up = time.monotonic() + 120
    while not (pace := airflow.task_state(dag, run_id, task, "pace")) or pace["progress_pct"] < progress_pct:
        assert time.monotonic() < give_up, airflow.task_log(dag, run_id, task)
        time.sleep(0.3)


def counts(airflow: AirflowProcess, dag: str, run_id: str, task: str) -> list[float]:
    model = Path(airflow.xcom(dag, run_id, task)["model"]) / "model.pt"
    return torch.load(model, weights_only=True)["counts"].tolist()


def test_a_worker_that_dies_comes_back_and_every_sample_counts_once(airflow, dag, containers, docker_client):
    run_id = airflow.run_dag(dag)
    wait_for_progress(airflow, dag, run_id, B, 20)
    (network,) = networks_of(docker_client)
    assert network["Internal"]  # no way out
    docker_client.kill(containers(B)[0]["Id"])
    assert airflow.wait(dag, run_id, timeout_s=240) == "success", airflow.task_log(dag, run_id, B)
    states = airflow.task_states(dag, run_id)
    assert states[SERVER] == states[A] == states[C] == "success"
    assert states[D] == "skipped"
    assert "its application would miss its objective" in airflow.task_log(dag, run_id, D)
    assert states[B] in ("success", "skipped")  # skipped, where the others were done before it was back
    trained = [name for name in (A, B, C) if states[name] == "success"]
    assert [counts(airflow, dag, run_id, name) for name in trained] == [[EPOCHS] * SAMPLES] * len(trained)
    assert airflow.xcom(dag, run_id, SERVER)["metrics"]["failures"] == 1


def test_a_parameter_server_that_dies_is_started_again_from_its_checkpoint(airflow, dag, containers, docker_client):
    run_id = airflow.run_dag(dag)
    wait_for_progress(airflow, dag, run_id, SERVER, 45)
    docker_client.kill(containers(SERVER)[0]["Id"])
    assert airflow.wait(dag, run_id, timeout_s=300) == "success", airflow.task_log(dag, run_id, SERVER, 2)
    assert "going on from checkpoint" in airflow.task_log(dag, run_id, SERVER, 2)
    # Whoever was there at the end has the model: on a slow machine a worker may come back too late.
    assert counts(airflow, dag, run_id, RESULT) == [EPOCHS] * SAMPLES


@pytest.mark.alone
def test_workers_with_unequal_parts_end_together_at_the_deadline(airflow, containers):
    parts = {"a": 50, "b": 40, "c": 30}
    # Little enough for slow machines: workers that hold all they may take over each other's batches, and hold the same.
    text = dag_of("unequal", DIGITS, ["--batches=350", "--batch-size=64"], parts, batch_size=64)
    (airflow.dags_folder / "unequal.py").write_text(text)
    run_id = airflow.run_dag("unequal")
    assert airflow.wait("unequal", run_id, timeout_s=240) == "success", airflow.task_states("unequal", run_id)
    results = {name: airflow.xcom("unequal", run_id, name) for name in (A, B, C)}
    assert all(abs(result["error_pct"]) <= 3.0 for result in results.values()), results
    assert results[A]["device_seconds"] > 1.2 * results[C]["device_seconds"]
