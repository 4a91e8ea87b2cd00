"""Tests that the DAGs of the guide to fleets, with its fleet files, are valid DAGs of this version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.sdk import DAG

from paceline.fleet import load
from paceline.operators import Docker, Kubernetes, ProfileOperator, ScheduleOperator, train_on_fleet

GUIDE = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text()


def block(language: str, text: str) -> str:
    """Return the only block of code of the guide that contains the text."""
    (found,) = [code for code in re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S) if text in code]
    return found


@pytest.fixture
def dags_folder(tmp_path: Path) -> Path:
    for name in ("fleet.yaml", "sites.yaml", "nodes.yaml"):
        (tmp_path / name).write_text(block("yaml", f"# dags/{name}"))
    (tmp_path / "train.py").write_text(block("python", "# dags/train.py"))
    return tmp_path


def test_dag_of_two_machines_profiles_schedules_and_trains(dags_folder: Path) -> None:
    namespace = {"__file__": str(dags_folder / "retrain_on_gates.py"), "__name__": "retrain_on_gates"}
    exec(block("python", "# dags/retrain_on_gates.py"), namespace)
    tasks = namespace["train"].dag.task_ids
    training = [f"train.{name}" for name in ("parameter_server", "gate-1", "gate-2", "result")]
    assert sorted(tasks) == sorted(["profile", "schedule", *training])


def test_group_of_two_sites_runs_on_the_queues_of_their_edge_workers(dags_folder: Path) -> None:
    names = {"load": load, "Path": Path, "Docker": Docker, "train_on_fleet": train_on_fleet}
    with DAG("sites", schedule=None) as dag:
        exec(block("python", "sites.yaml"), {"__file__": str(dags_folder / "sites.py"), **names})
    assert {dag.get_task(f"train.{gate}").queue for gate in ("gate-1", "gate-2")} == {"gate-1", "gate-2"}


def test_fleet_of_nodes_runs_in_pods(dags_folder: Path) -> None:
    operators = {one.__name__: one for one in (Kubernetes, ProfileOperator, ScheduleOperator, train_on_fleet)}
    with DAG("nodes", schedule=None) as dag:
        fleet = load(dags_folder / "nodes.yaml")
        exec(block("python", "neighbour_image="), {"fleet": fleet, "PROFILES": "profiles", **operators})
    assert {dag.get_task(name).runtime.memory for name in ("profile", "schedule", "train.gate-3")} == {"2g"}
