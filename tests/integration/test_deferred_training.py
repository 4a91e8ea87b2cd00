"""Training jobs whose control runs in the triggerer of a real Airflow: their tasks have no worker slot meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import docker
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training.gates import TrainingTask, open_gates, temporary_dag
from tests.waiting import LONG_S, until

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "training" / "endless.py"
DAG = """
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator


def note(context):
    Path({noted!r}).open("a").write(context["paceline"]["kind"] + " " + context["ti"].task_id + "\\n")


training = {{"script": {script!r}, "arguments": ["400000"], "deadline_from": "task", "max_devices": 0.2, "retries": 0}}
tasks = {{
    "train": {{"deadline": "2h"}},
    "late": {{"deadline": "40s", "on_deadline_alert": note}},
    "limited": {{"deadline": "2h", "execution_timeout": timedelta(seconds=30)}},
    "copied": {{"deadline": "2h", "checkpoint_to": {copies!r}, "retries": 1, "retry_delay": timedelta(seconds=1)}},
}}
with DAG({dag_id!r}, schedule=None):
    for name in {names!r}:
        DeadlineTrainingOperator(task_id=name, deferrable=True, **{{**training, **tasks[name]}})
"""


@contextlib.contextmanager
def started(airflow: AirflowProcess, *names: str, folder: Path | None = None) -> Iterator[list[TrainingTask]]:
    """Start a run of the DAG with some of its tasks, and yield them.

    ``folder`` is for the kinds of the alerts (``noted``), and for copies of checkpoints (``copies``).
    """
    dag_id = f"deferred_{uuid.uuid4().hex[:6]}"
    paths = {name: f"{folder}/{name}" for name in ("noted", "copies")}
    text = DAG.format(script=str(SCRIPT), dag_id=dag_id, names=names, **paths)
    with temporary_dag(airflow, dag_id, text):
        run_id = airflow.run_dag(dag_id)
        yield [TrainingTask(airflow, dag_id, run_id, name) for name in names]


def containers(client: docker.APIClient, run_id: str) -> list[str]:
    """Return the ids of the run's containers."""
    return [one["Id"] for one in client.containers(all=True, filters={"label": f"paceline.run={run_id}"})]


def wait_for(task: TrainingTask, *states: str) -> None:
    until(lambda: task.instance()["state"] in states, task)


def test_training_is_controlled_without_a_slot(
    airflow: AirflowProcess, docker_client: docker.APIClient, tmp_path: Path
) -> None:
    """Meanwhile, deadlines move, the triggerer is killed, a callback and a time limit need a worker process."""
    noted = tmp_path / "noted"
    with started(airflow, "train", "late", "limited", folder=tmp_path) as (train, late, limited):
        wait_for(train, "deferred")
        train.wait_until(lambda pace: pace["state"] == "training")
        container = train.container
        airflow.set_task_state(train.dag_id, train.run_id, "train", "deadline", "3h")
        train.wait_until(lambda pace: pace["deadline_s"] == 10_800)

        until(lambda: noted.exists() and "missed late" in noted.read_text(), "the alerts")
        wait_for(late, "deferred")
        alerts = noted.read_text().splitlines()
        assert set(alerts) <= {"in_danger late", "infeasible late", "missed late"}
        assert len(set(alerts)) == len(alerts)

        wait_for(limited, "failed")
        assert "AirflowTaskTimeout" in limited.log()
        assert limited.stored_value("container") is None
        assert len(containers(docker_client, train.run_id)) == 2

        triggerer = airflow.processes["triggerer"]
        os.killpg(triggerer.pid, signal.SIGKILL)
        triggerer.wait(LONG_S)
        killed = train.stored_value("pace")
        airflow.start_component("triggerer")
        again = train.wait_until(lambda pace: pace["updated_at"] > killed["updated_at"])
        assert train.container == container
        assert again["t_s"] > killed["t_s"]

        for task in (train, late):
            wait_for(task, "deferred")
            open_gates(docker_client, task.container, "finish")
        for task in (train, late):
            wait_for(task, "success", "failed")
            assert task.instance()["state"] == "success", task.log()
            assert task.instance()["try_number"] == 1
            assert Path(task.result()["model"], "model.txt").read_text()
        assert containers(docker_client, train.run_id) == []


@pytest.mark.parametrize("action", ["marked", "cleared"])
def test_job_of_a_task_that_is_over_is_removed(
    airflow: AirflowProcess, docker_client: docker.APIClient, action: str
) -> None:
    with started(airflow, "train") as (task,):
        wait_for(task, "deferred")
        task.wait_until(lambda pace: pace["state"] == "training")
        container = task.container
        if action == "marked":
            airflow.api("PATCH", f"/dags/{task.dag_id}/dagRuns/{quote(task.run_id)}", {"state": "failed"})
        else:
            cleared = {"dry_run": False, "dag_run_id": task.run_id, "task_ids": ["train"], "only_failed": False}
            airflow.api("POST", f"/dags/{task.dag_id}/clearTaskInstances", cleared)
        until(lambda: container not in containers(docker_client, task.run_id), task)
        if action == "marked":  # what is left of the keys of a shared job would reserve its devices
            until(lambda: task.stored_value("container") is None, task)
            assert task.stored_value("deadline") is None
        if action == "cleared":
            task.wait_until(lambda record: record["id"] != container, "container")
            wait_for(task, "deferred")
            open_gates(docker_client, task.container, "finish")
            wait_for(task, "success", "failed")
            assert task.instance()["state"] == "success", task.log(2)


def test_lost_job_continues_from_the_copy_that_the_triggerer_has_made(
    airflow: AirflowProcess, docker_client: docker.APIClient, tmp_path: Path
) -> None:
    copies = tmp_path / "copies"
    with started(airflow, "copied", folder=tmp_path) as (task,):
        wait_for(task, "deferred")
        until(lambda: list(copies.glob("*/copy-*.tar")), task)
        container = task.container
        docker_client.remove_container(container, force=True)
        task.wait_until(lambda record: record["id"] != container, "container")
        assert f"Training resumes from the copy of the lost job's checkpoint in file://{copies}" in task.log(2)
        wait_for(task, "deferred")
        open_gates(docker_client, task.container, "finish")
        wait_for(task, "success", "failed")
        assert task.instance()["state"] == "success", task.log(2)
        assert list(copies.rglob("*.tar")) == []
