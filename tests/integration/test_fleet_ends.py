"""How a fleet's training ends in a real Airflow: a job that ends at once, and a worker whose code leaves its loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
import torch
from demo.airflow_process import AirflowProcess
from tests.integration.training import gates
from tests.integration.training.gates import TrainingTask, open_gates
from tests.waiting import LONG_S, until

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(1200)]

SERVER, A, B, RESULT = (f"train.{name}" for name in ("parameter_server", "a", "b", "result"))
# Each row counts how often it was trained on. With ``leaves``, worker ``b`` leaves its loop in its first batch, and
# worker ``a`` waits in its batch until the test creates the file ``go``.
SCRIPT = """
import os, pathlib, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from paceline.train import checkpoint, output_dir, track

print("script starts", flush=True)
rows, epochs, leaves = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["leaves"]
model = nn.Module()
model.counts = nn.Parameter(torch.zeros(rows))
checkpoint(model=model)
for (indices,) in track(DataLoader(TensorDataset(torch.arange(rows)), 4), epochs=epochs):
    if leaves and os.environ["PACELINE_WORKER"] == "b":
        break
    with torch.no_grad():
        model.counts[indices] += 1
    while leaves and not pathlib.Path("go").exists():
        time.sleep(0.05)
torch.save(model.state_dict(), output_dir() / "model.pt")
"""
DAG = """
from datetime import timedelta

from airflow.sdk import DAG
from paceline.fleet import Fleet, Machine
from paceline.operators import train_on_fleet

for dag_id, names, arguments in [
    ("ends", "a", ["2", "1"]),
    ("ends_left", "ab", ["24", "2", "leaves"]),
]:
    machines = [Machine(name=name, kind="part", cores=1, memory_gib=1) for name in names]
    with DAG(dag_id, schedule=None):
        train_on_fleet(
            fleet=Fleet(machines=machines, parameter_server=machines[0]),
            plan={"workers": {name: {"samples": 1, "batch_size": 4} for name in names}},
            script=SCRIPT_PATH,
            arguments=arguments,
            deadline="1h",
            min_devices=1,
            retries=0,
            retry_delay=timedelta(seconds=1),
        )
"""

Start = Callable[[str], dict[str, TrainingTask]]


@pytest.fixture(scope="module")
def dags(airflow: AirflowProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    script = tmp_path_factory.mktemp("fleet") / "train.py"
    script.write_text(SCRIPT)
    with gates.temporary_dag(airflow, "ends", DAG.replace("SCRIPT_PATH", repr(str(script)))):
        yield


@pytest.fixture
def start(airflow: AirflowProcess, dags: None, docker_client: docker.APIClient) -> Iterator[Start]:
    """Yield a function that runs a DAG and returns its tasks. Fail if a container is left, and remove it."""
    started: list[str] = []

    def run_dag(dag_id: str) -> dict[str, TrainingTask]:
        run_id = airflow.run_dag(dag_id)
        started.append(run_id)
        return {name: TrainingTask(airflow, dag_id, run_id, name) for name in (SERVER, A, B, RESULT)}

    yield run_dag
    labels = [{"label": f"paceline.run={run_id}"} for run_id in started]
    left = [one["Id"] for filters in labels for one in docker_client.containers(all=True, filters=filters)]
    for container in left:
        docker_client.remove_container(container, force=True, v=True)
    assert not left


def test_worker_that_ends_at_once_runs_once(start, airflow):
    tasks = start("ends")
    assert airflow.wait("ends", tasks[A].run_id, LONG_S) == "success", tasks[A].log()
    for name in (SERVER, A):
        assert "Restarting the job" not in tasks[name].log()
    assert tasks[A].log().count("script starts") == 1
    model = torch.load(Path(tasks[RESULT].result()["model"]) / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [1, 1]


def test_worker_that_leaves_its_loop_fails_and_another_has_the_model(start, airflow, docker_client):
    tasks = start("ends_left")
    tasks[SERVER].wait_until(lambda pace: pace["metrics"].get("failures") == 1)
    until(lambda: tasks[B].instance()["state"] in ("success", "failed"))
    open_gates(docker_client, tasks[A].container, "go")
    assert airflow.wait("ends_left", tasks[A].run_id, LONG_S) == "failed"
    states = airflow.task_states("ends_left", tasks[A].run_id)
    assert states == {SERVER: "success", A: "success", B: "failed", RESULT: "upstream_failed"}
    assert "left the track() loop before the end of training" in tasks[B].log()
    model = torch.load(Path(tasks[A].result()["model"]) / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [2] * 24
