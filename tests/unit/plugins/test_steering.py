"""The live state of a deferred task is written and read only with the secret whose hash is the task's XCom."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.state import TaskInstanceState
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from paceline.contract import CEILING, PACE, STEERING_XCOM, TASK_STATES, hash_secret
from paceline.plugins.web import steering
from paceline.plugins.web.steering import SteeredJob, SteeredJobs, _parse, steer

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


def set_state(database: Database, dag_id: str, state: TaskInstanceState | None) -> None:
    with Session(database.engine) as session:
        session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag_id)).one().state = state
        session.commit()


def set_secret(database: Database, dag_id: str, secret: str) -> None:
    with Session(database.engine) as session:
        place = {"dag_id": dag_id, "task_id": "task", "run_id": "r"}
        XComModel.set(STEERING_XCOM, hash_secret(secret), **place, serialize=False, session=session)
        session.commit()


def instance_id(database: Database, dag_id: str) -> UUID:
    with Session(database.engine) as session:
        found = session.scalars(select(TaskInstance.id).where(TaskInstance.dag_id == dag_id)).one_or_none()
    return UUID(str(found)) if found is not None else uuid4()


def send(database: Database, *jobs: SteeredJob) -> list[Any]:
    """Send the jobs; return the values of each, or whether the try of a refused one is over."""
    answers = database.call(steer, SteeredJobs(jobs=list(jobs)))
    assert not any(answer.over for answer in answers if answer.values is not None)
    return [answer.over if answer.values is None else values(answer.values) for answer in answers]


def values(texts: Mapping[str, str | None]) -> dict[str, Any]:
    return {key: None if text is None else json.loads(text) for key, text in texts.items()}


def a_job(
    database: Database, dag_id: str, secret: str | None = None, *, write: Mapping[str, Any] | None = None, **values: Any
) -> SteeredJob:
    place = {"dag_id": dag_id, "run_id": "r", "task_id": "task", "task_instance_id": instance_id(database, dag_id)}
    texts = {key: None if value is None else json.dumps(value) for key, value in (write or {}).items()}
    return SteeredJob(**{"secret": dag_id if secret is None else secret, **place, "write": texts, **values})


def stored(database: Database, dag_id: str) -> dict[str, Any]:
    with Session(database.engine) as session:
        rows = session.scalars(select(Stored).where(Stored.dag_id == dag_id))
        return {row.key: json.loads(row.value) for row in rows}


def test_jobs_write_and_read_their_own_state(database: Database) -> None:
    first = a_job(database, "a", write={PACE: {"devices": 1}, CEILING: {"devices": 2}}, read=["deadline"])
    second = a_job(database, "b", write={CEILING: {"devices": 3}}, read=[CEILING, "deadline"])
    assert send(database, first, second) == [{"deadline": None}, {CEILING: {"devices": 3}, "deadline": None}]
    assert stored(database, "a") == {PACE: {"devices": 1}, CEILING: {"devices": 2}}
    assert stored(database, "b").keys() == {PACE, CEILING}


@pytest.mark.parametrize("text", ["", "{", "NaN", "1 2", '"\\ud800"'])
def test_text_that_is_no_json_is_refused(database: Database, text: str) -> None:
    place = {"dag_id": "a", "run_id": "r", "task_id": "task", "task_instance_id": str(instance_id(database, "a"))}
    body = json.dumps({"jobs": [{**place, "secret": "a", "write": {PACE: text}}]}).encode()
    with pytest.raises(RequestValidationError):
        _parse(body)


def test_body_that_is_too_long_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_MOST_BYTES", 10)
    app, chunks = FastAPI(), iter([b"x" * 6] * 100)
    app.include_router(steering.router)
    assert TestClient(app).post("/steering", content=chunks).status_code == 413


def test_none_deletes_a_key(database: Database) -> None:
    assert send(database, a_job(database, "a", write={CEILING: 1})) == [{}]
    assert send(database, a_job(database, "a", write={CEILING: None, "deadline": None}, read=[CEILING])) == [
        {CEILING: None}
    ]
    assert stored(database, "a").keys() == {PACE}


@pytest.mark.parametrize("secret", ["b", "", hash_secret("a")])
def test_wrong_secret_neither_writes_nor_reads(database: Database, secret: str) -> None:
    before = stored(database, "a")
    job = a_job(database, "a", secret, write={PACE: 1}, read=[PACE])
    assert send(database, job, a_job(database, "b", read=[])) == [False, {}]
    assert stored(database, "a") == before


def test_process_whose_job_another_one_has_taken_over_cannot_write(database: Database) -> None:
    assert send(database, a_job(database, "a", write={CEILING: 1})) == [{}]
    set_secret(database, "a", "new")
    old, new = a_job(database, "a", write={CEILING: 2}), a_job(database, "a", "new", read=[CEILING])
    assert send(database, old, new) == [False, {CEILING: 1}]


@pytest.mark.parametrize("state", [TaskInstanceState.SCHEDULED, TaskInstanceState.QUEUED, TaskInstanceState.RUNNING])
def test_try_that_a_worker_process_continues_is_neither_steered_nor_over(
    database: Database, state: TaskInstanceState
) -> None:
    set_state(database, "a", state)
    before = stored(database, "a")
    assert send(database, a_job(database, "a", write={PACE: 1}, read=[PACE])) == [False]
    assert stored(database, "a") == before


@pytest.mark.parametrize("secret", ["a", "new"])
@pytest.mark.parametrize("state", [TaskInstanceState.SUCCESS, TaskInstanceState.FAILED])
def test_process_that_has_steered_a_marked_task_deletes_its_keys(
    database: Database, state: TaskInstanceState, secret: str
) -> None:
    set_state(database, "a", state)
    before = stored(database, "a")
    assert send(database, a_job(database, "a", secret, write={PACE: None}, read=[PACE])) == [True]
    assert stored(database, "a") == ({} if secret == "a" else before)


@pytest.mark.parametrize(
    "state", [None, TaskInstanceState.QUEUED, TaskInstanceState.RUNNING, TaskInstanceState.DEFERRED]
)
def test_process_of_an_earlier_try_writes_only_until_the_next_one_runs(
    database: Database, state: TaskInstanceState | None
) -> None:
    """Airflow gives a task that is cleared or tried again another identifier."""
    set_state(database, "a", state)
    before = stored(database, "a")
    job = a_job(database, "a", task_instance_id=uuid4(), write={PACE: None}, read=[PACE])
    assert send(database, job) == [True]
    assert stored(database, "a") == ({} if state in (None, TaskInstanceState.QUEUED) else before)


def test_identifier_of_another_task_is_that_of_no_try(database: Database) -> None:
    before = stored(database, "a"), stored(database, "b")
    jobs = [a_job(database, "a", task_instance_id=instance_id(database, "b"), write={PACE: 1}, read=[PACE])]
    jobs.append(a_job(database, "b", read=["deadline"]))
    assert send(database, *jobs) == [True, {"deadline": None}]
    assert (stored(database, "a"), stored(database, "b")) == before


def test_process_of_a_task_that_is_over_only_deletes_and_stores_its_last_sample(database: Database) -> None:
    assert send(database, a_job(database, "a", write={CEILING: 1})) == [{}]
    set_state(database, "a", TaskInstanceState.FAILED)
    job = a_job(database, "a", write={CEILING: None, PACE: {"devices": 0}, "deadline": "1h", "result": {}})
    assert send(database, job) == [True]
    assert stored(database, "a") == {PACE: {"devices": 0}}


def test_deleted_task_is_over(database: Database) -> None:
    assert send(database, a_job(database, "c", write={PACE: 1})) == [True]


def test_states_of_other_tasks_of_the_run_are_read_with_the_values(database: Database) -> None:
    set_state(database, "b", TaskInstanceState.RUNNING)
    jobs = [
        a_job(database, "a", read=["deadline"], tasks=["task", "missing"]),
        a_job(database, "a", "wrong", tasks=["task"]),
        a_job(database, "b", tasks=["task"]),
    ]
    assert send(database, *jobs) == [{"deadline": None, TASK_STATES: {"task": "deferred"}}, False, False]
