"""A job that waits for its first devices waits in the triggerer of a real Airflow, and then trains in a container.

The test writes the grants of the arbiter itself, so that they come when it wants.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from urllib.parse import quote

import docker
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training.gates import TrainingTask, open_gates, temporary_dag
from tests.waiting import LONG_S, until

from paceline.contract import Ceiling

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "training" / "endless.py"
DAG_ID = "deferred_wait"
DAG = f"""
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG({DAG_ID!r}, schedule=None):
    DeadlineTrainingOperator(
        task_id="train", script={str(SCRIPT)!r}, arguments=["400000"],
        deadline="2h", deadline_from="task", max_devices=0.2, pool="deferred_pool", shared=True, deferrable=True,
    )
"""


def grant(task: TrainingTask, devices: float, number: int) -> None:
    task.airflow.put_task_state(task.dag_id, task.run_id, "train", "ceiling", Ceiling(devices, number).to_json())


def test_deferred_job_waits_without_a_slot_and_then_trains(
    airflow: AirflowProcess, docker_client: docker.APIClient
) -> None:
    """Meanwhile its deadline is moved, the triggerer is killed, and a second job is marked as failed."""
    airflow.api("POST", "/pools", {"name": "deferred_pool", "slots": 1})
    with temporary_dag(airflow, DAG_ID, DAG):
        task, other = (TrainingTask(airflow, DAG_ID, airflow.run_dag(DAG_ID)) for _ in range(2))
        for one in (task, other):
            until(lambda one=one: one.instance()["state"] == "deferred", one)
        first = task.wait_until(lambda pace: pace["state"] == "waiting")
        airflow.set_task_state(DAG_ID, task.run_id, "train", "deadline", "3h")
        task.wait_until(lambda pace: pace["deadline_s"] == 10_800)

        airflow.api("PATCH", f"/dags/{DAG_ID}/dagRuns/{quote(other.run_id)}", {"state": "failed"})
        until(lambda: other.instance()["state"] == "failed", other)
        assert [job["run_id"] for job in airflow.pages("/pools/deferred_pool/jobs")["jobs"]] == [task.run_id]

        triggerer = airflow.processes["triggerer"]
        os.killpg(triggerer.pid, signal.SIGKILL)
        triggerer.wait(LONG_S)
        killed = task.stored_value("pace")
        airflow.start_component("triggerer")
        task.wait_until(lambda pace: pace["updated_at"] > killed["updated_at"])

        grant(task, 0.2, 1)
        trains = task.wait_until(lambda pace: pace["state"] == "training")
        assert (first["deadline_s"], trains["deadline_s"]) == (7200, 10_800)
        assert trains["t_s"] > killed["t_s"], "the deadline still counts from the start of the task"
        open_gates(docker_client, task.container, "finish")
        assert airflow.wait(DAG_ID, task.run_id, LONG_S) == "success"
    assert task.instance()["try_number"] == 1
    assert other.stored_value("container") is None
