"""From machines nobody knows to a model: profile, schedule and train in a real Airflow, on emulated devices."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from paceline.demo.airflow_process import AirflowProcess
from paceline.fleet.emulated import EmulatedDevice

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.docker,
    pytest.mark.alone,  # it measures how fast things go, and keeps the machine busy
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="emulated devices are control groups, which only root can make"),
]

EDGE = Path(__file__).parents[2] / "benchmarks" / "edge"
NEIGHBOUR = "paceline-neighbour:latest"
MEMORY_GIB = 1.5
# Like the quick one is another of its kind, but with an objective that its application would miss even alone.
CORES = {"quick": 0.45, "strict": 0.45, "slow": 0.25}
PROCESSORS = {"quick": 0, "strict": 0, "slow": 1, "server": 1}


@pytest.fixture(scope="module")
def devices(docker_client: docker.APIClient) -> Iterator[dict[str, EmulatedDevice]]:
    try:
        docker_client.inspect_image(NEIGHBOUR)
    except docker.errors.ImageNotFound:
        pytest.skip(f"no image {NEIGHBOUR}; `make neighbour-image` builds it")
    made: dict[str, EmulatedDevice] = {}
    try:
        for name, cores in {**CORES, "server": 0.3}.items():
            made[name] = EmulatedDevice(f"edge-test-{name}", cores, int(MEMORY_GIB * 2**30), PROCESSORS[name])
        yield made
    finally:
        for device in made.values():
            device.close()


def dag_of(devices: dict[str, EmulatedDevice], profiles: Path) -> str:
    app = {"name": "stitching", "image": NEIGHBOUR, "script": str(EDGE / "stitching.py")}
    workers = [
        {
            "name": name,
            "kind": "slow" if name == "slow" else "quick",
            "cores": cores,
            "memory_gib": MEMORY_GIB,
            "cgroup_parent": devices[name].cgroup_parent,
            "background": [{**app, "latency_ms": 5 if name == "strict" else 5000}],
        }
        for name, cores in CORES.items()
    ]
    server = {"name": "server", "kind": "server", "cores": 0.3, "memory_gib": MEMORY_GIB}
    fleet = {"workers": workers, "parameter_server": {**server, "cgroup_parent": devices["server"].cgroup_parent}}
    return textwrap.dedent(
        f"""
        from airflow.sdk import DAG
        from paceline.fleet import Fleet
        from paceline.operators import ProfileOperator, ScheduleOperator, train_on_fleet

        fleet = Fleet.model_validate({fleet!r})
        training = {{"script": {str(EDGE / "train.py")!r}}}
        with DAG("edge", schedule=None):
            profile = ProfileOperator(
                task_id="profile",
                fleet=fleet,
                profiles={str(profiles)!r},
                points=24,
                look_s=1.5,
                batch_sizes=[16],
                **training,
            )
            schedule = ScheduleOperator(
                task_id="schedule", fleet=fleet, profiles={str(profiles)!r}, samples=3855, watch_s=2
            )
            train = train_on_fleet(fleet=fleet, plan=schedule.output, deadline="45s", deadline_from="task", **training)
            profile >> schedule >> train
        """
    )


def test_an_unknown_fleet_is_profiled_scheduled_and_trains(
    airflow: AirflowProcess, devices: dict[str, EmulatedDevice], docker_client: docker.APIClient, tmp_path: Path
) -> None:
    (airflow.dags_folder / "edge.py").write_text(dag_of(devices, tmp_path / "profiles"))
    run_id = airflow.run_dag("edge")
    assert airflow.wait("edge", run_id, timeout_s=400) == "success", airflow.task_log("edge", run_id, "profile")
    profiled = airflow.xcom("edge", run_id, "profile")
    assert set(profiled["profiled"]) == {"quick", "slow"}
    assert {row["function"] for row in profiled["report"]} >= {"EstComputeTime", "EstExecTime[stitching]"}

    plan = airflow.xcom("edge", run_id, "schedule")
    assert "stitching would take" in plan["left_out"]["strict"]
    parts = plan["workers"]
    assert parts["quick"]["samples"] > 1.2 * parts["slow"]["samples"]  # nearly twice the cores
    assert sum(part["samples"] for part in parts.values()) == 3855

    states = airflow.task_states("edge", run_id)
    assert states["train.strict"] == "skipped"
    assert states["train.quick"] == states["train.slow"] == "success"
    assert docker_client.containers(all=True, filters={"label": "paceline.dag=edge"}) == []
