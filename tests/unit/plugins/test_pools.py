"""The routes of pools: what jobs hold and wait for, and the arbiter, from the tables of a new database."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from airflow.sdk import DAG, BaseOperator
from airflow.utils.types import DagRunType
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event, true
from sqlalchemy.orm import Session
from tests.samples import a_sample

from paceline.arbiter import DeviceRequest
from paceline.contract import CEILING, CONTAINER, HISTORY, PACE, Ceiling, Reason, StoredHistory
from paceline.operators.arbitrate import _to_request
from paceline.plugins.web._allocations import INTERVALS, Period
from paceline.plugins.web._shares import PoolShare, load_shares
from paceline.plugins.web.lease import take_lease
from paceline.plugins.web.pools import PoolView, _read_histories, pool_view, pools

POOL = "training"
NOW = datetime.now(timezone.utc)


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set ``NOW``: a test may run hours after the import of its module."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", datetime.now(timezone.utc))


def add_task(session: Session, dag_id: str, pool: str = POOL, state: str = "running", ended: Any = None) -> UUID:
    """Store a task instance with a run of its own."""
    with DAG(dag_id, schedule=None):
        task = BaseOperator(task_id="train", pool=pool)
    instance = TaskInstance(task, dag_version_id=None, run_id="r")
    instance.state, instance.start_date, instance.end_date = state, NOW - timedelta(hours=1), ended
    session.add_all((DagRun(dag_id=dag_id, run_id="r", run_type=DagRunType.MANUAL), instance))
    session.flush()
    return instance.id


def add_job(session: Session, dag_id: str, values: dict[str, Any], **task: Any) -> None:
    """Store the task of a job, and its live state."""
    add_task(session, dag_id, **task)
    run = session.query(DagRun).filter_by(dag_id=dag_id).one()
    keys = {"dag_run_id": run.id, "dag_id": dag_id, "run_id": "r", "task_id": "train", "map_index": -1}
    session.add_all(Stored(**keys, key=key, value=json.dumps(value)) for key, value in values.items())
    session.flush()


def training(devices: float, **changed: Any) -> dict[str, Any]:
    """Return the sample of a job that began half an hour ago."""
    sample = a_sample(t_s=1800.0, updated_at=NOW.isoformat(), devices=devices, shared=True, grant=1, **changed)
    return sample.to_json()


def granted(devices: float, **changed: Any) -> dict[str, Any]:
    return Ceiling(devices, 1, **changed).to_json()


def status(**changed: Any) -> dict[str, Any]:
    return {
        "at": NOW.isoformat(), "devices": 4.0, "quantum": 0.05, "policy": "fifo", "every_s": 180.0, "decisions": 1,
        "ends_at": NOW.isoformat(), **changed,
    }  # fmt: skip


def view(session: Session, readable: set[str], hours: float = 1.0) -> PoolView:
    return pool_view(POOL, session, readable, hours=hours)


def test_page_has_the_arbiter_its_capacity_and_planned_starts(session: Session) -> None:
    session.add(Pool(pool=POOL, slots=8, include_deferred=False))
    session.add(DagBundleModel(name="dags"))
    session.add(DagModel(dag_id="arbiter", bundle_name="dags", is_paused=True))
    starts = [{"dag_id": name, "run_id": "r", "task_id": "train", "at": NOW.isoformat()} for name in ("a", "secret")]
    task = add_task(session, "arbiter", pool="default_pool")
    take_lease(session, POOL, task, status(starts=starts))
    add_task(session, "queued", state="queued")
    seen = view(session, {"arbiter", "a"})
    assert (seen.slots, seen.queued, seen.jobs, seen.others.number) == (8, 1, [], 0)
    arbiter = seen.arbiter
    assert arbiter is not None
    assert arbiter.task is not None
    assert arbiter.status is not None
    assert (arbiter.task.dag_id, arbiter.task.state, arbiter.task.paused) == ("arbiter", "running", True)
    assert (arbiter.has_lease, arbiter.readable, arbiter.status.devices) == (True, True, 4.0)
    assert [start.dag_id for start in arbiter.status.starts] == ["a"], "only of jobs that the user may read"


@pytest.mark.parametrize(
    ("sample", "quantum", "unit"),
    [({}, 0.05, "cores"), ({}, 1.0, "devices"), ({"shares_gpus": True}, 0.05, "GPUs")],
)
def test_pool_names_what_its_numbers_count_also_if_the_user_may_not_read_its_jobs(
    session: Session, sample: dict[str, Any], quantum: float, unit: str
) -> None:
    take_lease(session, POOL, add_task(session, "arbiter", pool="default_pool"), status(quantum=quantum))
    add_job(session, "secret", {PACE: training(1.0, **sample)})
    assert view(session, {"arbiter"}).unit == unit
    assert [one.unit for one in pools(session, {"arbiter"})] == [unit]


def test_pool_without_an_arbiter_counts_what_its_jobs_count(session: Session) -> None:
    add_job(session, "a", {PACE: training(1.0, quantum=1.0)})
    assert view(session, {"a"}).unit == "devices"


def test_names_of_an_arbiter_are_hidden_from_users_who_may_not_read_its_dag(session: Session) -> None:
    take_lease(session, POOL, add_task(session, "arbiter", pool="default_pool"), status())
    add_job(session, "a", {PACE: training(1.0)})
    shown = view(session, {"a"}).model_dump_json()
    assert '"arbiter":{' in shown
    assert '"dag_id":"arbiter"' not in shown
    assert '"devices":4.0' in shown


def test_retry_of_an_arbiter_does_not_have_the_lease_yet(session: Session) -> None:
    task = add_task(session, "arbiter", pool="default_pool")
    take_lease(session, POOL, task, status())
    instance = session.query(TaskInstance).filter_by(id=task).one()
    instance.id, instance.state = UUID(int=1), "up_for_retry"
    session.flush()
    arbiter = view(session, {"arbiter"}).arbiter
    assert arbiter is not None
    assert arbiter.task is not None
    assert (arbiter.task.state, arbiter.has_lease) == ("up_for_retry", False)


def test_jobs_have_what_they_hold_are_granted_and_wait_for(session: Session) -> None:
    reason = Reason("can_wait", "can wait and still meet its deadline")
    waits = training(0.0, state="waiting", deadline_s=3600.0, remaining=None)
    add_job(session, "holds", {PACE: training(1.5), CEILING: granted(2.0)})
    add_job(session, "waits", {PACE: waits, CEILING: granted(0.0, reason=reason, deadline_s=3600.0, fits=True)})
    add_job(session, "new", {PACE: {**waits, "grant": 0}})
    add_job(session, "free", {PACE: {**training(0.5), "shared": False}})
    jobs = {one.job.dag_id: one for one in view(session, {"holds", "waits", "new", "free"}).jobs}
    amounts = {name: (one.held, one.granted, one.committed) for name, one in jobs.items()}
    assert amounts == {
        "holds": (1.5, 2.0, 2.0), "waits": (0.0, 0.0, 0.0), "new": (0.0, None, 0.0), "free": (0.5, 2.0, 2.0)
    }  # fmt: skip
    assert {name: (one.reason, one.promised) for name, one in jobs.items() if one.reason} == {
        "waits": (reason.text, True)
    }


def test_job_of_an_ended_task_that_was_not_removed_keeps_its_devices_reserved(session: Session) -> None:
    ended = NOW - timedelta(minutes=10)
    pace = training(1.0) | {"updated_at": ended.isoformat(), "t_s": 1200.0}
    values = {PACE: pace, CEILING: granted(2.0), CONTAINER: {"id": "4f0c"}}
    add_job(session, "lost", values, state="failed", ended=ended)
    history = StoredHistory(samples=[[0.0, 0, 0, 1.0, 3600, None, None]]).to_json()
    add_job(session, "done", {PACE: {**pace, "state": "finished"}, HISTORY: history}, state="success", ended=ended)
    lost, done = sorted(view(session, {"lost", "done"}).jobs, key=lambda one: not one.lost)
    assert (lost.lost, lost.committed, done.lost, done.committed) == (True, 2.0, False, 0.0)
    assert lost.history is not None
    assert done.history is not None
    assert (lost.history[-1], done.history[-1]) == (2.0, 0.0)
    (listed,) = pools(session, {"lost", "done"})
    assert (listed.held, listed.training, listed.committed) == (0.0, 0, 2.0), "as on the page of the pool"
    assert max(done.history) == 1.0


def test_allocations_over_time_are_those_of_the_history_and_of_the_newest_sample(session: Session) -> None:
    # 2 devices in the first quarter of an hour of the job, 4 in the second, and now 1.
    rows = [[0.0, 0, 0, 2.0, 3600, None, None], [900.0, 25, 25, 4.0, 3600, None, None]]
    add_job(session, "a", {PACE: training(1.0), HISTORY: StoredHistory(samples=rows).to_json()})
    seen = view(session, {"a"})
    (job,) = seen.jobs
    assert job.history is not None
    assert len(job.history) == INTERVALS
    assert seen.interval_s == 3600 / INTERVALS
    assert [job.history[int(INTERVALS * part)] for part in (0.25, 0.6, 0.9)] == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("history", [{"samples": [[1]]}, "x", None])
def test_job_with_an_invalid_history_is_shown_with_its_newest_sample(session: Session, history: object) -> None:
    add_job(session, "a", {PACE: training(1.0), HISTORY: history})
    (job,) = view(session, {"a"}).jobs
    assert job.held == 1.0


def test_jobs_that_the_user_may_not_read_are_summed_up(session: Session) -> None:
    add_job(session, "mine", {PACE: training(1.0), CEILING: granted(1.0)})
    for name in ("secret-1", "secret-2"):
        rows = [[0.0, 0, 0, 0.5, 3600, None, None]]
        history = StoredHistory(samples=rows).to_json()
        add_job(session, name, {PACE: training(0.5), CEILING: granted(0.75), HISTORY: history})
    seen = view(session, {"mine"})
    assert [one.job.dag_id for one in seen.jobs] == ["mine"]
    others = seen.others
    assert (others.number, others.waiting, others.held, others.committed) == (2, 0, 1.0, 1.5)
    assert others.history[int(INTERVALS * 0.75)] == 1.0
    assert "secret" not in seen.model_dump_json()


def test_job_without_a_valid_sample_reserves_its_grant_among_the_others(session: Session) -> None:
    add_job(session, "a", {PACE: {"state": "?"}, CEILING: granted(1.5)})
    seen = view(session, {"a"})
    assert (seen.jobs, seen.others.number, seen.others.committed) == ([], 1, 1.5)


def test_pool_is_unknown_to_users_who_may_read_none_of_its_dags(session: Session) -> None:
    take_lease(session, POOL, add_task(session, "arbiter", pool="default_pool"), status())
    add_job(session, "secret", {PACE: training(1.0)})
    with pytest.raises(HTTPException) as refused:
        view(session, {"other"})
    assert refused.value.status_code == 404
    assert pools(session, {"other"}) == []
    assert [pool.name for pool in pools(session, {"arbiter"})] == [POOL]
    assert [pool.name for pool in pools(session, {"secret"})] == [POOL]


def test_list_has_pools_with_an_arbiter_or_with_shared_jobs(session: Session) -> None:
    take_lease(session, POOL, add_task(session, "arbiter", pool="default_pool"), status())
    add_job(session, "a", {PACE: training(1.0), CEILING: granted(2.0)})
    add_job(session, "b", {PACE: training(0.0, state="waiting")}, pool="no arbiter")
    add_job(session, "c", {PACE: {**training(1.0), "shared": False}}, pool="no sharing")
    listed = pools(session, {"a", "b", "c", "arbiter"})
    shown = {one.name: (one.arbiter is not None, one.held, one.committed, one.training, one.waiting) for one in listed}
    assert shown == {POOL: (True, 1.0, 2.0, 1, 0), "no arbiter": (False, 0.0, 0.0, 0, 1)}


def test_of_many_jobs_the_histories_of_a_limited_number_are_read(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.plugins.web.pools._MAX_HISTORIES", 2)
    for minutes, name in ((3, "a"), (2, "b"), (1, "c")):
        values = {PACE: training(0.0, state="finished"), HISTORY: StoredHistory().to_json()}
        add_job(session, name, values, state="success", ended=NOW - timedelta(minutes=minutes))
    add_job(session, "runs", {PACE: training(1.0), HISTORY: StoredHistory().to_json()})
    read: list[str] = []
    event.listen(session.get_bind(), "before_cursor_execute", lambda *call: read.append(call[2]))
    seen = view(session, {*"abc", "runs"})
    assert [(one.job.dag_id, one.history is not None) for one in seen.jobs] == [("runs", True), ("c", True)]
    assert (seen.histories_left_out, seen.others.number) == (2, 0)
    assert len(read) < 10, "the number of queries does not depend on the number of jobs"


def test_histories_of_other_tasks_of_a_run_are_not_read(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    add_job(session, "a", {PACE: training(1.0), HISTORY: StoredHistory().to_json()})
    run = session.query(DagRun).one()
    other = {"dag_run_id": run.id, "dag_id": "a", "run_id": "r", "task_id": "other", "map_index": -1}
    session.add(Stored(**other, key=HISTORY, value=json.dumps(StoredHistory().to_json())))
    session.flush()
    execute, read = session.execute, []

    def record(query: Any) -> Any:
        read.extend(rows := execute(query).all())
        return rows

    shares = load_shares(session, true())
    monkeypatch.setattr(session, "execute", record)
    histories = _read_histories(session, shares, Period(NOW - timedelta(hours=1), NOW))
    assert list(histories) == [("a", "r", "train", -1)]
    assert [row.task_id for row in read] == ["train"]


def test_jobs_beyond_the_limit_are_summed_up_so_that_the_totals_are_those_of_all(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.plugins.web.pools._MAX_JOBS", 2)
    for name in "abc":
        add_job(session, name, {PACE: training(1.0), CEILING: granted(1.5)})
    seen = view(session, set("abc"))
    assert (len(seen.jobs), seen.others.number, seen.others.held, seen.others.committed) == (2, 1, 1.0, 1.5)


amounts = st.sampled_from([0.0, 0.5, 1.0, 2.0])


@given(
    state=st.sampled_from(["waiting", "starting", "training", "preempted", "finished", "detached"]),
    devices=amounts, in_force=st.none() | st.integers(0, 2), shared=st.booleans(), grant=st.integers(0, 2),
    applied=st.none() | amounts, ceiling=st.none() | st.builds(Ceiling, amounts, st.integers(0, 2), amounts),
    lost=st.booleans(), valid=st.booleans(),
)  # fmt: skip
def test_devices_are_counted_as_the_arbiter_counts_them(
    state: Any, devices: Any, in_force: Any, shared: Any, grant: Any, applied: Any, ceiling: Any, lost: Any, valid: Any
) -> None:
    pace = a_sample(
        state=state, devices=devices, devices_in_force=in_force, shared=shared, grant=grant, ceiling=applied
    )
    task: Any = type("Task", (), {"state": "failed" if lost else "running"})
    share = PoolShare(task, pace if valid else None, ceiling, None, lost)
    row = {
        "pace": pace.to_json() if valid else None, "ceiling": ceiling and ceiling.to_json(), "lost": lost,
        "started_at": None,
    }  # fmt: skip
    request: DeviceRequest | None = _to_request("a", row, uses_priority=False)
    assert share.committed == (0.0 if request is None else request.committed)
