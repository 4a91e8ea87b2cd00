"""A job that waits for its first devices waits in the triggerer of a real Airflow, and then trains in a container.

The test writes the grants of the arbiter itself, so that they come when it wants.
"""

from __future__ import annotations

import docker
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training.gates import TrainingTask, open_gates, temporary_dag
from tests.waiting import LONG_S, until

from paceline.contract import Ceiling

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(600)]

DAG = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG({dag_id!r}, schedule=None):
    DeadlineTrainingOperator(
        task_id="train", script={script!r}, arguments=["40"], deadline="2h", deadline_from="task", max_devices=0.2,
        shared=True, deferrable=True,
    )
"""


def grant(task: TrainingTask, devices: float, number: int) -> None:
    task.airflow.put_task_state(task.dag_id, task.run_id, "train", "ceiling", Ceiling(devices, number).to_json())


def test_deferred_job_waits_without_a_slot_and_then_trains(
    airflow: AirflowProcess, docker_client: docker.APIClient
) -> None:
    from tests.integration.test_arbiter import SCRIPT

    with temporary_dag(airflow, "deferred_wait", DAG.format(dag_id="deferred_wait", script=str(SCRIPT))):
        task = TrainingTask(airflow, "deferred_wait", airflow.run_dag("deferred_wait"))
        until(lambda: task.instance()["state"] == "deferred", task)
        first = task.wait_until(lambda pace: pace["state"] == "waiting")
        task.wait_until(lambda pace: pace["updated_at"] > first["updated_at"])
        airflow.set_task_state(task.dag_id, task.run_id, "train", "deadline", "3h")
        task.wait_until(lambda pace: pace["deadline_s"] == 10_800)
        grant(task, 0.2, 1)
        trains = task.wait_until(lambda pace: pace["state"] == "training")
        assert (first["deadline_s"], trains["deadline_s"]) == (7200, 10_800)
        assert trains["t_s"] > first["t_s"], "the deadline counts from the start of the task"
        open_gates(docker_client, task.container, "finish")
        assert airflow.wait(task.dag_id, task.run_id, LONG_S) == "success"
    assert task.instance()["try_number"] == 1
