"""The live state of a deferred task is written and read only with the secret whose hash is the task's XCom."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select
from sqlalchemy.orm import Session

from paceline.contract import CEILING, PACE, STEERING_XCOM, hash_secret
from paceline.plugins.web.steering import SteeredJob, SteeredJobs, steer

from .test_grants import Database, empty_database  # noqa: F401


@pytest.fixture
def database(empty_database: Path, tmp_path: Path) -> Iterator[Database]:  # noqa: F811
    database = Database(shutil.copy(empty_database, tmp_path / "airflow.db"))
    for dag_id in ("a", "b"):
        database.add_job(dag_id)
        set_state(database, dag_id, TaskInstanceState.DEFERRED)
        set_secret(database, dag_id, dag_id)
    yield database
    database.engine.dispose()


def set_state(database: Database, dag_id: str, state: TaskInstanceState) -> None:
    with Session(database.engine) as session:
        session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag_id)).one().state = state
        session.commit()


def set_secret(database: Database, dag_id: str, secret: str) -> None:
    with Session(database.engine) as session:
        place = {"dag_id": dag_id, "task_id": "task", "run_id": "r"}
        XComModel.set(STEERING_XCOM, hash_secret(secret), **place, serialize=False, session=session)
        session.commit()


def send(database: Database, *jobs: SteeredJob) -> list[Any]:
    answers = database.call(steer, SteeredJobs(jobs=list(jobs)))
    return [answer.values for answer in answers]


def a_job(dag_id: str, secret: str | None = None, **values: Any) -> SteeredJob:
    return SteeredJob(dag_id=dag_id, run_id="r", task_id="task", secret=secret or dag_id, **values)


def stored(database: Database, dag_id: str) -> dict[str, Any]:
    with Session(database.engine) as session:
        rows = session.scalars(select(Stored).where(Stored.dag_id == dag_id))
        return {row.key: json.loads(row.value) for row in rows}


def test_jobs_write_and_read_their_own_state(database: Database) -> None:
    first = a_job("a", write={PACE: {"devices": 1}, CEILING: {"devices": 2}}, read=["deadline"])
    second = a_job("b", write={CEILING: {"devices": 3}}, read=[CEILING, "deadline"])
    assert send(database, first, second) == [{"deadline": None}, {CEILING: {"devices": 3}, "deadline": None}]
    assert stored(database, "a") == {PACE: {"devices": 1}, CEILING: {"devices": 2}}
    assert stored(database, "b").keys() == {PACE, CEILING}


@pytest.mark.parametrize("secret", ["b", "", hash_secret("a")])
def test_wrong_secret_neither_writes_nor_reads(database: Database, secret: str) -> None:
    before = stored(database, "a")
    job = SteeredJob(dag_id="a", run_id="r", task_id="task", secret=secret, write={PACE: 1}, read=[PACE])
    assert send(database, job, a_job("b", read=[])) == [None, {}]
    assert stored(database, "a") == before


def test_process_whose_job_another_one_has_taken_over_cannot_write(database: Database) -> None:
    assert send(database, a_job("a", write={CEILING: 1})) == [{}]
    set_secret(database, "a", "new")
    assert send(database, a_job("a", write={CEILING: 2}), a_job("a", "new", read=[CEILING])) == [None, {CEILING: 1}]


@pytest.mark.parametrize("state", [TaskInstanceState.RUNNING, TaskInstanceState.SUCCESS, None])
def test_task_that_is_not_deferred_is_not_steered(database: Database, state: TaskInstanceState) -> None:
    set_state(database, "a", state)
    assert send(database, a_job("a", write={PACE: 1})) == [None]


def test_unknown_task_is_not_steered(database: Database) -> None:
    assert send(database, a_job("c", write={PACE: 1})) == [None]
