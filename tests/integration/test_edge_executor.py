"""Edge sites for real: two edge workers of Airflow's EdgeExecutor, each with a Docker engine of its own.

The parameter server and one worker are at the first site, the other worker reaches them from the second one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import torch

from paceline.demo.airflow_process import AirflowProcess, free_port

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.docker,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("dockerd"), reason="a second engine needs root, dockerd"),
]

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "tests" / "unit" / "train" / "counted.py"
SAMPLES, EPOCHS = 120, 4
SITES = ("a", "b")
_EXECUTOR = "airflow.providers.edge3.executors.EdgeExecutor"


@pytest.fixture(scope="module")
def other_engine(docker_client: docker.APIClient, trainer_image: str) -> Iterator[str]:
    """A second private engine with the trainer image."""
    folder = tempfile.mkdtemp(prefix="pace", dir="/tmp")  # short: a socket path has at most 107 characters
    engine = str(PROJECT / "docker" / "engine")
    try:
        subprocess.run([engine, "start", folder], check=True, capture_output=True)
        host = f"unix://{folder}/docker.sock"
        other = docker.APIClient(base_url=host, version="auto", timeout=120)
        other.load_image(docker_client.get_image(trainer_image))
        other.close()
        yield host
    finally:
        subprocess.run([engine, "remove", folder], check=True, capture_output=True)


@pytest.fixture(scope="module")
def gateway(docker_client: docker.APIClient) -> str:
    """An address of this machine that containers of any engine here reach, and nobody outside."""
    (config,) = docker_client.inspect_network("bridge")["IPAM"]["Config"]
    return str(config["Gateway"])


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, docker_host: str, other_engine: str) -> Iterator[AirflowProcess]:
    """An Airflow whose tasks run on edge workers, one for each site."""
    port = free_port()
    config = {
        "core.executor": f"LocalExecutor,{_EXECUTOR}",
        "database.external_db_managers": "airflow.providers.edge3.models.db.EdgeDBManager",
        "edge.api_enabled": True,
        "edge.api_url": f"http://127.0.0.1:{port}/edge_worker/v1/rpcapi",
        "edge.job_poll_interval": 1,
        "edge.heartbeat_interval": 5,
    }
    environment = {"AIRFLOW_CONN_SITES_KEY": json.dumps({"conn_type": "generic", "password": "only these two know"})}
    home = tmp_path_factory.mktemp("edge")
    with AirflowProcess(home, config=config, environment=environment, port=port) as running:
        for site, host in zip(SITES, (docker_host, other_engine), strict=True):
            arguments = ["edge", "worker", "-q", f"site-{site}", "-H", f"site-{site}", "--pid", f"{home}/{site}.pid"]
            running.start_component(f"edge-{site}", arguments, {"DOCKER_HOST": host})
        yield running


def dag_of(address: str) -> str:
    return f"""
from airflow.sdk import DAG
from paceline.fleet import Fleet, Worker
from paceline.operators import train_on_fleet

gates = [
    Worker(
        name="gate-" + site, kind="part", cores=0.5, memory_gib=1, queue="site-" + site, executor="{_EXECUTOR}",
        address={address!r} if site == "a" else None,
    )
    for site in {SITES!r}
]
with DAG("sites", schedule=None):
    train_on_fleet(
        fleet=Fleet(workers=gates, parameter_server=gates[0], key_conn_id="sites_key"),
        plan={{"workers": {{gate.name: {{"samples": {SAMPLES // 2}, "batch_size": 4}} for gate in gates}}}},
        server={{"cores": 0.5}},
        script={str(SCRIPT)!r},
        arguments=["{SAMPLES}", "{EPOCHS}", "0.3"],
        deadline="60s",
        deadline_from="task",
    )
"""


def tasks_of(client: docker.APIClient) -> dict[str, Any]:
    """Task to its container, where it runs."""
    found = client.containers(filters={"label": "paceline.dag=sites"})
    return {one["Labels"]["paceline.task"]: one for one in found}


def test_two_sites_train_one_model_each_on_its_own_engine(
    airflow: AirflowProcess, docker_client: docker.APIClient, other_engine: str, gateway: str
) -> None:
    other = docker.APIClient(base_url=other_engine, version="auto", timeout=60)
    (airflow.dags_folder / "sites.py").write_text(dag_of(f"{gateway}:{free_port()}"))
    run_id = airflow.run_dag("sites")
    give_up = time.monotonic() + 120
    while len(here := tasks_of(docker_client)) + len(there := tasks_of(other)) < 3:
        assert time.monotonic() < give_up, airflow.task_states("sites", run_id)
        time.sleep(0.2)
    assert list(there) == ["train.gate-b"]
    assert set(here) == {"train.parameter_server", "train.gate-a"}
    ports = here["train.parameter_server"]["Ports"]
    assert {port["IP"] for port in ports if "IP" in port} == {gateway}  # no other address of the machine

    assert airflow.wait("sites", run_id, timeout_s=240) == "success", airflow.task_log("sites", run_id, "train.gate-b")
    for gate in ("train.gate-a", "train.gate-b"):
        model = Path(airflow.xcom("sites", run_id, gate)["model"]) / "model.pt"
        assert torch.load(model, weights_only=True)["counts"].tolist() == [EPOCHS] * SAMPLES
        assert "Training was done at" in airflow.task_log("sites", run_id, gate)
    for client in (docker_client, other):
        assert client.containers(all=True, filters={"label": "paceline.dag=sites"}) == []
        assert client.networks(filters={"label": "paceline.network"}) == []
