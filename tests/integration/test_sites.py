"""Sites for real: two Docker engines, with an edge worker of Airflow's EdgeExecutor beside each, or without.

The parameter server and one worker are at the first site, the other worker reaches them from the second one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import torch

from paceline.demo.airflow_process import AirflowProcess, free_port
from paceline.fleet import Worker
from paceline.fleet.usage import EngineUsage
from paceline.profile.bench import Bench, Timing
from paceline.profile.rehearsal import Training
from paceline.runtime import DockerRuntime

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
    connections = {
        "SITES_KEY": {"password": "only these two know"},
        "ENGINE_A": {"host": docker_host},
        "ENGINE_B": {"host": other_engine},
    }
    environment = {
        f"AIRFLOW_CONN_{name}": json.dumps({"conn_type": "generic", **content}) for name, content in connections.items()
    }
    home = tmp_path_factory.mktemp("edge")
    with AirflowProcess(home, config=config, environment=environment, port=port) as running:
        for site, host in zip(SITES, (docker_host, other_engine), strict=True):
            arguments = ["edge", "worker", "-q", f"site-{site}", "-H", f"site-{site}", "--pid", f"{home}/{site}.pid"]
            running.start_component(f"edge-{site}", arguments, {"DOCKER_HOST": host})
        yield running


@pytest.fixture(params=["edge workers", "connections"])
def dag(
    request: pytest.FixtureRequest,
    airflow: AirflowProcess,
    docker_client: docker.APIClient,
    gateway: str,
) -> Iterator[str]:
    """A training on both sites: with tasks on the edge worker of each, or all of them central; leaves nothing."""
    dag_id = "sites_" + request.param.replace(" ", "_")
    machines = {}
    for site in SITES:
        place = f"queue='site-{site}', executor='{_EXECUTOR}'"
        if request.param == "connections":
            place = f"engine_conn_id='engine_{site}'"
        address = f", address='{gateway}:{free_port()}'" if site == "a" else ""
        machines[site] = f"Worker(name='gate-{site}', kind='part', cores=0.5, memory_gib=1, {place}{address})"
    text = f"""
from airflow.sdk import DAG
from paceline.fleet import Fleet, Worker
from paceline.operators import train_on_fleet

gates = [{", ".join(machines.values())}]
with DAG("{dag_id}", schedule=None):
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
    (airflow.dags_folder / f"{dag_id}.py").write_text(text)
    yield dag_id
    DockerRuntime(docker_client).remove_all({"paceline.dag": dag_id})  # of a test that has failed


def tasks_of(client: docker.APIClient, dag: str) -> dict[str, Any]:
    """Task to its container, where it runs."""
    found = client.containers(filters={"label": f"paceline.dag={dag}"})
    return {one["Labels"]["paceline.task"]: one for one in found}


def test_two_sites_train_one_model_each_on_its_own_engine(
    airflow: AirflowProcess, dag: str, docker_client: docker.APIClient, other_engine: str, gateway: str
) -> None:
    other = docker.APIClient(base_url=other_engine, version="auto", timeout=60)
    run_id = airflow.run_dag(dag)
    give_up = time.monotonic() + 120
    while len(here := tasks_of(docker_client, dag)) + len(there := tasks_of(other, dag)) < 3:
        assert time.monotonic() < give_up, airflow.task_states(dag, run_id)
        time.sleep(0.2)
    assert list(there) == ["train.gate-b"]
    assert set(here) == {"train.parameter_server", "train.gate-a"}
    ports = here["train.parameter_server"]["Ports"]
    assert {port["IP"] for port in ports if "IP" in port} == {gateway}  # no other address of the machine

    assert airflow.wait(dag, run_id, timeout_s=240) == "success", airflow.task_log(dag, run_id, "train.gate-b")
    for gate in ("train.gate-a", "train.gate-b"):
        model = Path(airflow.xcom(dag, run_id, gate)["model"]) / "model.pt"
        assert torch.load(model, weights_only=True)["counts"].tolist() == [EPOCHS] * SAMPLES
        assert "Training was done at" in airflow.task_log(dag, run_id, gate)
    for client in (docker_client, other):
        assert client.containers(all=True, filters={"label": f"paceline.dag={dag}"}) == []
        assert client.networks(names=[f"paceline-{dag.replace('_', '-')}-train"]) == []


def test_machines_of_two_engines_are_measured_together(
    docker_client: docker.APIClient, other_engine: str, gateway: str, trainer_image: str
) -> None:
    here = Worker(name="here", kind="part", cores=0.5, memory_gib=1)
    there = here.model_copy(update={"name": "there", "engine_conn_id": "engine_b"})
    server = here.model_copy(update={"name": "server", "address": f"{gateway}:{free_port()}"})
    other = docker.APIClient(base_url=other_engine, version="auto", timeout=60)
    clients = {"here": docker_client, "there": other, "server": docker_client}
    machines = {"here": here, "there": there, "server": server}
    bench = Bench(
        [here, there],
        server,
        Training(PROJECT / "benchmarks" / "edge" / "train.py", trainer_image),
        {name: DockerRuntime(client) for name, client in clients.items()},
        {name: EngineUsage(client, machines[name]) for name, client in clients.items()},
        timing=Timing(before_s=1.0, training_s=1.0),
    )
    with bench:
        bench.train({"here": 16, "there": 16})
        rows = bench.measure({}, active=["here", "there"])
    assert {row["machine"] for row in rows} == {"here", "there"}
    assert all(row["update_s"] > 0 for row in rows)
    assert [one for client in (docker_client, other) for one in client.networks(names=[bench._run])] == []


def test_every_engine_of_a_fleet_is_reached_through_its_connection(airflow: AirflowProcess, tmp_path: Path) -> None:
    def check(*engines: str) -> subprocess.CompletedProcess[str]:
        machines = [
            {"name": f"gate-{one}", "kind": "part", "cores": 0.5, "memory_gib": 1, "engine_conn_id": f"engine_{one}"}
            for one in engines
        ]
        file = tmp_path / "fleet.yaml"
        file.write_text(json.dumps({"workers": machines, "parameter_server": machines[0]}))
        command = [
            sys.executable,
            "-m",
            "paceline.cli",
            "fleet",
            "check",
            str(file),
            "--image",
            "paceline-trainer:latest",
        ]
        gone = json.dumps({"conn_type": "generic", "host": "unix:///nowhere/docker.sock"})
        environment = {**airflow.env, "AIRFLOW_CONN_ENGINE_GONE": gone}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    both = check("a", "b")
    assert both.returncode == 0, both.stderr
    assert [line.split()[0] for line in both.stdout.splitlines()] == ["MACHINE", "gate-a", "gate-b"]
    assert all(line.endswith(" ok") for line in both.stdout.splitlines()[1:])
    one_gone = check("a", "gone")
    assert one_gone.returncode == 1
    assert "gate-gone" in one_gone.stdout
    assert "its engine does not answer" in one_gone.stdout
