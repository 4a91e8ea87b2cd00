"""The lists of training jobs, from the tables that Airflow creates in a new database."""

from __future__ import annotations

import json

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import DAG, BaseOperator
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunType
from sqlalchemy.orm import Session
from tests.samples import a_sample

from paceline.contract import DEADLINE, PACE
from paceline.plugins.web.jobs import all_jobs


def add_running_job(
    session: Session, dag_id: str, deadline: str, state: TaskInstanceState = TaskInstanceState.RUNNING
) -> None:
    """Store the task of a training job, with the stored form of its deadline."""
    with DAG(dag_id, schedule=None):
        task = BaseOperator(task_id="train")
    run = DagRun(dag_id=dag_id, run_id="r", run_type=DagRunType.MANUAL)
    instance = TaskInstance(task, dag_version_id=None, run_id="r")
    instance.state = state
    session.add_all((run, instance))
    session.flush()
    keys = {"dag_run_id": run.id, "dag_id": dag_id, "run_id": "r", "task_id": "train", "map_index": -1}
    for key, value in ((PACE, json.dumps(a_sample().to_json())), (DEADLINE, deadline)):
        session.add(Stored(**keys, key=key, value=value))
    session.flush()


@pytest.mark.parametrize("value", ['"\\ud800"', '{"deadline": "20m", "by": "\\ud800"}', "[" * 5000 + "]" * 5000])
def test_deadline_that_json_cannot_encode_does_not_hide_the_jobs(session: Session, value: str) -> None:
    add_running_job(session, "a", value)
    add_running_job(session, "b", '"20m"')
    listed = json.loads(all_jobs(session, {"a", "b"}, recent=0).model_dump_json())
    assert [(job["dag_id"], job["deadline"]["value"]) for job in listed["running"]] == [("a", None), ("b", "20m")]


def test_job_that_waits_in_the_triggerer_is_running(session: Session) -> None:
    add_running_job(session, "a", '"20m"', TaskInstanceState.DEFERRED)
    assert [job.dag_id for job in all_jobs(session, {"a"}, recent=0).running] == ["a"]
