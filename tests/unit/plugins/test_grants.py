"""An arbiter's grants are stored only if no other grants were stored since the arbiter read the pool's jobs."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import UUID, uuid4

import pytest
from airflow.api_fastapi.core_api import security
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from airflow.models.variable import Variable
from airflow.sdk import DAG, BaseOperator
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunType
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, event, select
from sqlalchemy.orm import Session
from tests.samples import a_sample

from paceline.contract import CEILING, PACE, ArbiterStatus, Ceiling
from paceline.plugins.web import grants
from paceline.plugins.web.grants import NewGrant, NewGrants, NewLease, put_grants, set_arbiter
from paceline.plugins.web.lease import read_lease
from paceline.plugins.web.pool import PoolJobs, pool_jobs

POOL = "training"
STATUS = {
    "at": "2030-01-01T12:00:00+00:00", "devices": 2.0, "quantum": 0.05, "policy": "on_time_promises", "every_s": 180.0,
    "ends_at": "2030-01-01T13:00:00+00:00", "decisions": 1,
}  # fmt: skip
FORBIDDEN = "forbidden"


class AnyText:
    """Equal to every text that contains this text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return self.text in str(other)

    __hash__ = None  # type: ignore[assignment]


class Database:
    """Airflow's tables in a SQLite file, with a pool of jobs and the tasks of arbiters."""

    def __init__(self, path: Path) -> None:
        self.engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 60})

    def add_task(self, dag_id: str, pool: str = "default_pool") -> UUID:
        """Store a task instance that runs; return the id of its try."""
        with DAG(dag_id, schedule=None):
            task = BaseOperator(task_id="task", pool=pool)
        with Session(self.engine) as session:
            session.add(DagRun(dag_id=dag_id, run_id="r", run_type=DagRunType.MANUAL))
            instance = TaskInstance(task, dag_version_id=None, run_id="r")
            instance.state = TaskInstanceState.RUNNING
            session.add(instance)
            session.commit()
            return instance.id

    def add_job(self, dag_id: str, **sample: Any) -> None:
        """Store the task of a training job that has published a sample."""
        self.add_task(dag_id, POOL)
        with Session(self.engine) as session:
            run = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id)).one()
            keys = {"dag_run_id": run.id, "dag_id": dag_id, "run_id": "r", "task_id": "task", "map_index": -1}
            session.add(Stored(**keys, key=PACE, value=json.dumps(a_sample(**sample).to_json())))
            session.commit()

    def begin_next_try(self, dag_id: str) -> UUID:
        """Give a task up, as the scheduler does after a missing heartbeat, and run its next try; return its id."""
        with Session(self.engine) as session:
            instance = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag_id)).one()
            instance.id = uuid4()
            session.commit()
            return instance.id

    def end_task(self, dag_id: str) -> None:
        with Session(self.engine) as session:
            instance = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag_id)).one()
            instance.state = TaskInstanceState.SUCCESS
            session.commit()

    def call(self, route: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a route in a transaction of its own, as the API server does."""
        with Session(self.engine) as session:
            result = route(*args, session=session, **kwargs)
            session.commit()
            return result

    def read(self) -> PoolJobs:
        return self.call(pool_jobs, POOL, readable={"a", "b", FORBIDDEN})

    def take(self, arbiter: UUID) -> None:
        self.call(set_arbiter, POOL, NewLease(arbiter=arbiter))

    def write(self, arbiter: UUID, version: int, *ceilings: tuple[str, float], before: Any = None) -> list[str]:
        """Store grants, as pairs of DAG id and devices; return the reason for each grant that was not stored."""
        made = [
            NewGrant(dag_id=dag_id, run_id="r", task_id="task", before=before, ceiling=Ceiling(devices, 1).to_json())
            for dag_id, devices in ceilings
        ]
        batch = NewGrants(arbiter=arbiter, version=version, grants=made)
        return [result.detail for result in self.call(put_grants, POOL, batch, user=None)]

    def ceilings(self) -> dict[str, float]:
        return {job.dag_id: job.ceiling["devices"] for job in self.read().jobs if job.ceiling is not None}


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a SQLite file with the tables that ``airflow db migrate`` creates."""
    path = tmp_path_factory.mktemp("database") / "airflow.db"
    import_all_models()
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()
    return path


@pytest.fixture
def database(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(grants, "can_change", lambda user, dag_id: dag_id != FORBIDDEN)
    database = Database(shutil.copy(empty_database, tmp_path / "airflow.db"))
    yield database
    database.engine.dispose()


def test_only_the_task_that_has_the_lease_stores_grants(database: Database) -> None:
    database.add_job("a")
    first, second = database.add_task("first"), database.add_task("second")
    database.take(first)
    database.take(first)
    with pytest.raises(HTTPException, match="The arbiter first r task allocates the pool training") as refused:
        database.take(second)
    assert refused.value.status_code == 409
    with pytest.raises(HTTPException, match="first r task has taken the pool"):
        database.write(second, database.read().version, ("a", 2.0))
    assert database.write(first, database.read().version, ("a", 1.0)) == [""]
    assert database.ceilings() == {"a": 1.0}
    database.end_task("first")
    database.take(second)
    assert database.write(second, database.read().version, ("a", 2.0), before=Ceiling(1.0, 1).to_json()) == [""]


def test_arbiter_whose_task_has_a_newer_try_can_neither_store_grants_nor_take_the_lease(database: Database) -> None:
    database.add_job("a")
    lost = database.add_task("arbiter")
    database.take(lost)
    version = database.read().version
    retry = database.begin_next_try("arbiter")
    database.take(retry)
    with pytest.raises(HTTPException) as refused:
        database.write(lost, version, ("a", 2.0))
    assert refused.value.status_code == 409
    with pytest.raises(HTTPException, match="Airflow is not running") as refused:
        database.take(lost)
    assert refused.value.status_code == 410
    assert database.ceilings() == {}


def test_only_the_arbiter_that_has_the_lease_stores_its_status(database: Database) -> None:
    first, second = database.add_task("first"), database.add_task("second")
    database.take(first)
    database.call(set_arbiter, POOL, NewLease(arbiter=first, status=STATUS))
    with pytest.raises(HTTPException):
        database.call(set_arbiter, POOL, NewLease(arbiter=second, status={**STATUS, "devices": 9.0}))
    database.take(first)
    database.call(set_arbiter, POOL, NewLease(arbiter=first, status={**STATUS, "devices": "many"}))
    lease = database.call(read_lease, pool=POOL)
    assert (lease.pool, lease.dag_id, lease.task_id, lease.map_index) == (POOL, "first", "task", -1)
    assert ArbiterStatus.read(lease.status) == ArbiterStatus.read(STATUS)
    database.end_task("first")
    database.take(second)
    assert database.call(read_lease, pool=POOL).status is None, "the status is of the first arbiter"


def test_status_of_a_newer_version_is_stored_without_its_unknown_fields(database: Database) -> None:
    arbiter = database.add_task("arbiter")
    database.call(set_arbiter, POOL, NewLease(arbiter=arbiter, status={**STATUS, "version": 9, "mood": "good"}))
    status = ArbiterStatus.read(database.call(read_lease, pool=POOL).status)
    assert status is not None
    assert (status.version, status.devices) == (9, 2.0)


def test_lease_that_an_older_version_has_stored_is_kept(database: Database) -> None:
    arbiter = database.add_task("arbiter")
    database.take(arbiter)
    with Session(database.engine) as session:
        stored = session.scalars(select(Variable).where(Variable.key == "paceline_arbiter_training")).one()
        stored.set_val(json.dumps({"arbiter": str(arbiter), "task": "arbiter r task", "version": 7}))
        session.commit()
    other = database.add_task("other")
    with pytest.raises(HTTPException, match="The arbiter arbiter r task allocates the pool training"):
        database.take(other)
    database.call(set_arbiter, POOL, NewLease(arbiter=arbiter, status=STATUS))
    lease = database.call(read_lease, pool=POOL)
    assert (lease.version, lease.status["devices"], lease.pool, lease.dag_id) == (7, 2.0, POOL, "arbiter")


def test_grants_older_than_the_stored_grants_are_not_stored(database: Database) -> None:
    database.add_job("a")
    database.add_job("b")
    arbiter = database.add_task("arbiter")
    database.take(arbiter)
    version = database.read().version
    assert database.write(arbiter, version, ("a", 2.0)) == [""]
    with pytest.raises(HTTPException) as refused:  # for example a request that was delayed on its way
        database.write(arbiter, version, ("b", 2.0))
    assert refused.value.status_code == 412
    assert database.ceilings() == {"a": 2.0}


def test_grant_is_not_stored_after_another_change_or_without_permission(database: Database) -> None:
    for dag_id in ("a", "b", FORBIDDEN):
        database.add_job(dag_id)
    arbiter = database.add_task("arbiter")
    database.take(arbiter)
    database.write(arbiter, database.read().version, ("a", 2.0))
    reasons = database.write(arbiter, database.read().version, ("a", 1.0), ("b", 1.0), (FORBIDDEN, 1.0), ("gone", 1.0))
    assert reasons == [
        "its ceiling has changed since the arbiter read it",
        "",
        "this user may not edit the task instances of forbidden",
        "the job no longer exists",
    ]
    assert database.ceilings() == {"a": 2.0, "b": 1.0}


def test_grant_is_not_stored_after_the_end_of_its_job(database: Database) -> None:
    database.add_job("a")
    database.add_job("b", state="failed")  # its task waits for its next try
    arbiter = database.add_task("arbiter")
    database.take(arbiter)
    version = database.read().version
    database.end_task("a")
    reasons = database.write(arbiter, version, ("a", 1.0), ("b", 1.0))
    assert reasons == ["the job no longer exists", "the job has ended"]
    with Session(database.engine) as session:
        assert session.scalars(select(Stored.key)).all() == [PACE, PACE]


def test_ended_jobs_are_not_loaded_to_store_grants(database: Database) -> None:
    for dag_id in ("ended", "a", "b"):
        database.add_job(dag_id)
    database.end_task("ended")
    arbiter = database.add_task("arbiter")
    database.take(arbiter)
    loaded = []

    def note(stored: Stored, _: object) -> None:
        loaded.append(stored.dag_id)

    event.listen(Stored, "load", note)
    try:
        assert database.write(arbiter, database.read().version, ("a", 1.0)) == [""]
    finally:
        event.remove(Stored, "load", note)
    assert sorted(loaded) == ["a", "b"]


def test_invalid_grant_does_not_keep_the_others_from_being_stored(database: Database) -> None:
    for dag_id in ("a", "b"):
        database.add_job(dag_id)
    arbiter = database.add_task("arbiter")
    database.take(arbiter)
    reasons = database.write(arbiter, database.read().version, ("a", math.inf), ("b", 1.0))
    assert reasons == [AnyText("ceiling: got"), ""]
    assert database.ceilings() == {"b": 1.0}


@pytest.mark.parametrize("value", ['"\\ud800"', "[" * 5000 + "]" * 5000, "not JSON"])
def test_value_that_json_cannot_encode_counts_as_missing(database: Database, value: str) -> None:
    for dag_id in ("a", "b"):
        database.add_job(dag_id)
    arbiter = database.add_task("arbiter")
    database.take(arbiter)
    database.write(arbiter, database.read().version, ("a", 1.0))
    with Session(database.engine) as session:
        session.scalars(select(Stored).where(Stored.key == CEILING)).one().value = value
        session.commit()
    assert [job.ceiling for job in database.read().jobs] == [None, None]
    assert database.write(arbiter, database.read().version, ("a", 0.5), ("b", 1.0)) == ["", ""]


def test_pools_with_long_similar_names_have_separate_leases(database: Database) -> None:
    first, second = database.add_task("first"), database.add_task("second")
    names = ["p" * 249 + end for end in "12"]
    for name, arbiter in zip(names, (first, second), strict=True):
        database.call(set_arbiter, name, NewLease(arbiter=arbiter))
    assert [database.call(read_lease, pool=name).arbiter for name in names] == [first, second]


def test_only_users_who_may_edit_the_pool_take_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Manager:
        def is_authorized_pool(self, *, method, details, user):
            asked.append((method, details.name))
            return False

    monkeypatch.setattr(security, "get_auth_manager", Manager)
    app = FastAPI()
    app.include_router(grants.router)
    app.dependency_overrides[security.get_user] = lambda: None
    client = TestClient(app)
    for path in ("arbiter", "grants"):
        body = {"arbiter": str(uuid4()), "version": 1, "grants": []}
        assert client.put(f"/pools/{POOL}/{path}", json=body).status_code == 403
    assert asked == [("PUT", POOL)] * 2


@pytest.mark.parametrize("value", ["", "[]", '{"version": "x"}', None])
def test_deleted_or_damaged_lease_is_taken_again(database: Database, value: str | None) -> None:
    database.add_job("a")
    arbiter = database.add_task("arbiter")
    database.take(arbiter)
    with Session(database.engine) as session:
        stored = session.scalars(select(Variable).where(Variable.key == "paceline_arbiter_training")).one()
        if value is None:
            session.delete(stored)
        else:
            stored.set_val(value)
        session.commit()
    with pytest.raises(HTTPException) as refused:
        database.write(arbiter, database.read().version, ("a", 1.0))
    assert refused.value.status_code == 409
    database.take(arbiter)
    assert database.write(arbiter, database.read().version, ("a", 1.0)) == [""]


def test_of_many_concurrent_writers_exactly_one_stores_its_grants(database: Database) -> None:
    names = ["a", "b"]
    for dag_id in names:
        database.add_job(dag_id)
    arbiter = database.add_task("arbiter")
    database.take(arbiter)
    version = database.read().version
    ready = Barrier(4)

    def write(number: int) -> int:
        """Return the HTTP status of the response."""
        ready.wait(60)
        try:
            return 200 if database.write(arbiter, version, (names[number % 2], 2.0)) == [""] else 0
        except HTTPException as error:
            return error.status_code

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(write, range(4))) == [200, 412, 412, 412]
    assert sum(database.ceilings().values()) == 2.0
