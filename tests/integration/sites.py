"""Helpers for tests of a training job on two sites, each with a Docker engine.

The parameter server and the worker ``gate-a`` run at the first site, and the worker ``gate-b`` at the second site.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import docker
import torch
from demo.airflow_process import AirflowProcess, free_port
from tests.integration.training.gates import open_gates
from tests.waiting import until

PROJECT = Path(__file__).parents[2]
ENGINE = PROJECT / "docker" / "engine"
SCRIPT = Path(__file__).parent / "training" / "patient.py"
SAMPLES, EPOCHS = 120, 10
SITES = ("a", "b")
SKIP_REASON = "" if os.geteuid() == 0 and shutil.which("dockerd") else "a second engine needs root, dockerd"


@contextmanager
def second_engine(first: docker.APIClient, image: str) -> Iterator[str]:
    """Start a private engine with the image, in memory if there is enough memory, and yield the engine's address."""
    statistics = os.statvfs("/dev/shm")
    enough_memory = statistics.f_bavail * statistics.f_frsize > 6 * 2**30
    folder = tempfile.mkdtemp(prefix="pace", dir="/dev/shm" if enough_memory else "/tmp")  # socket paths must be short
    try:
        subprocess.run([ENGINE, "start", folder], check=True, capture_output=True)
        address = f"unix://{folder}/docker.sock"
        other = docker.APIClient(base_url=address, version="auto", timeout=300)
        other.load_image(first.get_image(image))
        other.close()
        yield address
    finally:
        subprocess.run([ENGINE, "remove", folder], check=True, capture_output=True)


def gateway(first: docker.APIClient) -> str:
    """Return an address of this machine that only this machine and the containers of its engines can reach."""
    (config,) = first.inspect_network("bridge")["IPAM"]["Config"]
    return str(config["Gateway"])


def render_fleet_dag(dag_id: str, places: Mapping[str, str], first: docker.APIClient) -> str:
    """Return the code of a DAG that trains on both sites. ``places`` maps each site to arguments of its ``Machine``."""
    machines = []
    for site in SITES:
        address = f", address='{gateway(first)}:{free_port()}'" if site == "a" else ""
        machines.append(f"Machine(name='gate-{site}', kind='part', cores=0.5, memory_gib=1, {places[site]}{address})")
    return f"""
from airflow.sdk import DAG
from paceline.fleet import Fleet, Machine
from paceline.operators import train_on_fleet

gates = [{", ".join(machines)}]
with DAG("{dag_id}", schedule=None):
    train_on_fleet(
        fleet=Fleet(machines=gates, parameter_server=gates[0], key_conn_id="sites_key"),
        plan={{"workers": {{gate.name: {{"samples": {SAMPLES // 2}, "batch_size": 4}} for gate in gates}}}},
        server={{"cores": 0.5}},
        script={str(SCRIPT)!r},
        arguments=["{SAMPLES}", "{EPOCHS}"],
        deadline="1h",
        deadline_from="task",
    )
"""


def train_and_check_one_model(
    airflow: AirflowProcess, dag_id: str, first: docker.APIClient, second_address: str
) -> None:
    """Run the DAG. Check that each container runs on its site's engine, models are equal, and no container is left."""
    second = docker.APIClient(base_url=second_address, version="auto", timeout=60)
    run_id = airflow.run_dag(dag_id)

    def containers_by_task(client: docker.APIClient) -> dict[str, dict]:
        containers = client.containers(filters={"label": f"paceline.dag={dag_id}"})
        return {one["Labels"]["paceline.task"]: one for one in containers}

    def both_workers_have_progress() -> bool:
        paces = [airflow.task_state(dag_id, run_id, f"train.gate-{site}", "pace") for site in SITES]
        return all(pace and pace["progress_pct"] > 0 for pace in paces)

    until(both_workers_have_progress, "progress of both workers")
    here, there = containers_by_task(first), containers_by_task(second)
    assert set(here) == {"train.parameter_server", "train.gate-a"}
    assert list(there) == ["train.gate-b"]
    ports = here["train.parameter_server"]["Ports"]
    assert {port["IP"] for port in ports if "IP" in port} == {gateway(first)}  # not reachable at other addresses

    open_gates(first, here["train.gate-a"]["Id"], "go")
    open_gates(second, there["train.gate-b"]["Id"], "go")
    assert airflow.wait(dag_id, run_id, timeout_s=300) == "success", airflow.task_states(dag_id, run_id)
    for gate in ("train.gate-a", "train.gate-b"):
        model = Path(airflow.xcom(dag_id, run_id, gate)["model"]) / "model.pt"
        assert torch.load(model, weights_only=True)["counts"].tolist() == [EPOCHS] * SAMPLES
        assert "Training ended at" in airflow.task_log(dag_id, run_id, gate)
    for client in (first, second):
        assert client.containers(all=True, filters={"label": f"paceline.dag={dag_id}"}) == []
        assert client.networks(names=[f"paceline-{dag_id.replace('_', '-')}-train"]) == []
    second.close()
