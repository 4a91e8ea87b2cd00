"""A training job on two Docker engines that Airflow connections name. ``tests/soak`` tests this with edge workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration import sites
from tests.integration.training.gates import temporary_dag

from paceline.runtime import DockerRuntime

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.docker,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(sites.SKIP_REASON), reason=sites.SKIP_REASON),
]
DAG_ID = "two_sites"


@pytest.fixture(scope="module")
def second_engine(docker_client: docker.APIClient, trainer_image: str) -> Iterator[str]:
    with sites.second_engine(docker_client, trainer_image) as address:
        yield address


@pytest.fixture(scope="module")
def engine_connections(airflow: AirflowProcess, docker_host: str, second_engine: str) -> Iterator[None]:
    """Create Airflow connections to both engines, and a connection that contains the key of the training job."""
    connections = {
        "engine_a": {"host": docker_host},
        "engine_b": {"host": second_engine},
        "sites_key": {"password": "shared secret"},
    }
    for name, content in connections.items():
        airflow.api("POST", "/connections", {"connection_id": name, "conn_type": "generic", **content})
    yield
    for name in connections:
        airflow.api("DELETE", f"/connections/{name}")


def test_two_sites_train_one_model_on_two_engines(
    airflow: AirflowProcess, docker_client: docker.APIClient, engine_connections: None, second_engine: str
) -> None:
    places = {site: f"engine_conn_id='engine_{site}'" for site in sites.SITES}
    try:
        with temporary_dag(airflow, DAG_ID, sites.render_fleet_dag(DAG_ID, places, docker_client)):
            sites.train_and_check_one_model(airflow, DAG_ID, docker_client, second_engine)
    finally:
        DockerRuntime(docker_client).remove_all({"paceline.dag": DAG_ID})  # a failed test leaves containers


def test_fleet_check_connects_to_every_engine(
    airflow: AirflowProcess, docker_host: str, second_engine: str, tmp_path: Path
) -> None:
    addresses = {"a": docker_host, "b": second_engine, "gone": "unix:///nowhere/docker.sock"}
    environment = dict(airflow.env)
    machines = []
    for name, address in addresses.items():
        connection = {"conn_type": "generic", "host": address}
        environment[f"AIRFLOW_CONN_ENGINE_{name.upper()}"] = json.dumps(connection)
        machine = {"kind": "part", "cores": 0.5, "memory_gib": 1, "engine_conn_id": f"engine_{name}"}
        machines.append({"name": f"gate-{name}", **machine})
    file = tmp_path / "fleet.yaml"
    file.write_text(json.dumps({"machines": machines, "parameter_server": machines[0]}))
    command = [
        sys.executable,
        "-m",
        "paceline.airflow.cli",
        "fleet",
        "check",
        file,
        "--image",
        "paceline-trainer:latest",
    ]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert completed.returncode == 1, completed.stderr
    lines = [
        line for line in completed.stdout.splitlines() if line.startswith("gate-")
    ]  # the other lines are log lines
    assert [line.split()[0] for line in lines] == ["gate-a", "gate-b", "gate-gone"]
    assert [line.endswith(" ok") for line in lines] == [True, True, False]
    assert "its engine does not respond" in lines[2]
