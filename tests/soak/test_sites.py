"""Training and profiling on two engines, each used by an edge worker of Airflow's EdgeExecutor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from demo.airflow_process import AirflowProcess, free_port
from tests.integration import sites

from paceline.fleet import Machine
from paceline.fleet.usage import EngineUsage
from paceline.profiles.bench import Bench, Timing
from paceline.profiles.measured_training import TrainingSpec
from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(1800)]

EXECUTOR = "airflow.providers.edge3.executors.EdgeExecutor"
DAG_ID = "sites_edge"


@pytest.fixture
def airflow(tmp_path: Path, docker_host: str, second_engine: str) -> Iterator[AirflowProcess]:
    """Yield an Airflow whose tasks run on edge workers, one for each site."""
    port = free_port()
    config = {
        "core.executor": f"LocalExecutor,{EXECUTOR}",
        "database.external_db_managers": "airflow.providers.edge3.models.db.EdgeDBManager",
        "edge.api_enabled": True,
        "edge.api_url": f"http://127.0.0.1:{port}/edge_worker/v1/rpcapi",
        "edge.job_poll_interval": 1,
        "edge.heartbeat_interval": 5,
    }
    environment = {"AIRFLOW_CONN_SITES_KEY": json.dumps({"conn_type": "generic", "password": "only these two know"})}
    with AirflowProcess(tmp_path / "edge", config=config, environment=environment, port=port) as running:
        for site, host in zip(sites.SITES, (docker_host, second_engine), strict=True):
            pid = running.home / f"{site}.pid"
            arguments = ["edge", "worker", "-q", f"site-{site}", "-H", f"site-{site}", "--pid", str(pid)]
            running.start_component(f"edge-{site}", arguments, {"DOCKER_HOST": host})
        yield running


def test_two_sites_with_edge_workers_train_one_model(
    airflow: AirflowProcess, docker_client: docker.APIClient, second_engine: str
) -> None:
    places = {site: f"queue='site-{site}', executor='{EXECUTOR}'" for site in sites.SITES}
    (airflow.dags_folder / f"{DAG_ID}.py").write_text(sites.render_fleet_dag(DAG_ID, places, docker_client))
    try:
        sites.train_and_check_one_model(airflow, DAG_ID, docker_client, second_engine)
    finally:
        DockerRuntime(docker_client).remove_all({"paceline.dag": DAG_ID})  # a failed run leaves containers


def test_machines_of_two_engines_are_profiled_together(
    docker_client: docker.APIClient, second_engine: str, trainer_image: str
) -> None:
    here = Machine(name="here", kind="part", cores=0.5, memory_gib=1)
    there = here.model_copy(update={"name": "there", "engine_conn_id": "engine_b"})
    server = here.model_copy(update={"name": "server", "address": f"{sites.gateway(docker_client)}:{free_port()}"})
    other = docker.APIClient(base_url=second_engine, version="auto", timeout=60)
    clients = {"here": docker_client, "there": other, "server": docker_client}
    machines = {"here": here, "there": there, "server": server}
    bench = Bench(
        [here, there],
        server,
        TrainingSpec(sites.PROJECT / "benchmarks" / "edge" / "train.py", trainer_image),
        {name: DockerRuntime(client) for name, client in clients.items()},
        {name: EngineUsage(client, machines[name]) for name, client in clients.items()},
        timing=Timing(before_s=1.0, training_s=1.0),
    )
    with bench:
        bench.train({"here": 16, "there": 16})
        rows = bench.measure({}, active=["here", "there"])
    assert {row["machine"] for row in rows} == {"here", "there"}
    assert all(row["update_s"] > 0 for row in rows)
    assert [one for client in (docker_client, other) for one in client.networks(names=[bench._prefix])] == []
    other.close()
