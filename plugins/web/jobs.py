"""Routes that return the training jobs of a DAG run, and all jobs that are running or have recently ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel
from sqlalchemy import ColumnElement, Row, Select, and_, select
from sqlalchemy.orm import Session

from paceline.contract import DEADLINE, PACE, PaceSample, StoredDeadline

from .access import ReadableDags, can_change, can_read_tasks
from .airflow_internals import DagRun, GetUserDep, SessionDep, Stored, TaskInstance

if TYPE_CHECKING:
    from typing_extensions import Unpack

router = APIRouter(tags=["Jobs"])
_MAX_RECENT = 500
_MAX_ROWS = 4000  # two rows for each job
TaskKey = tuple[str, str, str, int]
FINAL_STATES = ("success", "failed", "skipped", "upstream_failed", "removed")


class CurrentDeadline(BaseModel):
    """A deadline as the user wrote it. Changes contain ``updated_at``, so that the server detects stale changes."""

    value: Any
    by: str | None
    updated_at: datetime


class TrainingJob(BaseModel):
    """A training job: the data of its Airflow task instance, and the newest ``pace`` that the task published."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    operator: str | None
    state: str | None
    try_number: int
    started_at: datetime | None
    ended_at: datetime | None
    deadline: CurrentDeadline | None
    pace: PaceSample


class RunJobs(BaseModel):
    """The jobs of a DAG run, and the run's state. ``may_change`` is whether the caller may change deadlines."""

    state: str | None
    jobs: list[TrainingJob]
    may_change: bool


class AllJobs(BaseModel):
    """The running jobs, and the most recently ended jobs, newest first."""

    running: list[TrainingJob]
    recent: list[TrainingJob]


@router.get("/dags/{dag_id}/dagRuns/{run_id}/jobs", dependencies=[can_read_tasks])
def run_jobs(dag_id: str, run_id: str, session: SessionDep, user: GetUserDep) -> RunJobs:
    """Return the jobs of one DAG run, sorted by start time."""
    rows = session.execute(_select_samples().where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id))
    jobs = sorted(_to_jobs(rows), key=lambda job: (job.started_at is None, job.started_at, job.task_id))
    state = session.scalar(select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    return RunJobs(state=state, jobs=jobs, may_change=can_change(user, dag_id))


@router.get("/jobs", dependencies=[can_read_tasks])
def all_jobs(session: SessionDep, readable: ReadableDags, recent: int = Query(50, ge=0, le=_MAX_RECENT)) -> AllJobs:
    """Return the running jobs and the last ``recent`` ended jobs of the DAGs that the caller may read."""
    is_readable = TaskInstance.dag_id.in_(readable)
    running = session.execute(
        _select_samples().where(is_readable, TaskInstance.state.in_(("running", "deferred"))).limit(_MAX_ROWS)
    )
    return AllJobs(running=_to_jobs(running), recent=_recently_ended(session, is_readable, recent))


def _recently_ended(session: Session, is_readable: ColumnElement[bool], number: int) -> list[TrainingJob]:
    # Row ids increase with time, so in descending order of ids the query need not read older rows.
    newest = (
        select(Stored.id)
        .join(TaskInstance, same_task())
        .where(Stored.key == PACE, is_readable, TaskInstance.state.in_(FINAL_STATES))
        .order_by(Stored.id.desc())
        .limit(number)
    )
    ids = list(session.scalars(newest))
    rows = session.execute(_select_samples().where(Stored.id.in_(ids)))
    return sorted(_to_jobs(rows), key=lambda job: job.pace.updated_at, reverse=True)


def same_task(stored: Any = Stored) -> ColumnElement[bool]:
    """Return the join condition between a value in the state store and its task instance."""
    return and_(
        stored.dag_id == TaskInstance.dag_id,
        stored.run_id == TaskInstance.run_id,
        stored.task_id == TaskInstance.task_id,
        stored.map_index == TaskInstance.map_index,
    )


def _select_samples() -> Select[Unpack[tuple[Any, ...]]]:
    return select_stored(PACE, DEADLINE)


def select_stored(*keys: str) -> Select[Unpack[tuple[Any, ...]]]:
    """Return the query for stored values, each with its task instance."""
    return (
        select(
            TaskInstance.dag_id,
            TaskInstance.run_id,
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.operator,
            TaskInstance.state,
            TaskInstance.try_number,
            TaskInstance.start_date,
            TaskInstance.end_date,
            Stored.key,
            Stored.value,
            Stored.updated_at,
        )
        .join(Stored, same_task())
        .where(Stored.key.in_(keys))
        .order_by(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)
    )


def _to_jobs(rows: Iterable[Row[Any]]) -> list[TrainingJob]:
    """Group rows by task instance. Omit tasks without a sample, which do not train or have not started training."""
    tasks: dict[TaskKey, dict[str, Row[Any]]] = {}
    for row in rows:
        tasks.setdefault((row.dag_id, row.run_id, row.task_id, row.map_index), {})[row.key] = row
    started = [keys for keys in tasks.values() if PACE in keys]
    stored = ((keys[PACE], PaceSample.read(parse(keys[PACE].value)), keys.get(DEADLINE)) for keys in started)
    return [to_job(row, pace, deadline) for row, pace, deadline in stored if pace is not None]


def to_job(row: Row[Any], pace: PaceSample, deadline: Row[Any] | None) -> TrainingJob:
    """Return the job of a row with the columns of a task instance, and of the row with its stored deadline."""
    current = None
    if deadline is not None:
        stored = StoredDeadline.read(parse(deadline.value))
        current = CurrentDeadline(value=stored.value, by=stored.by, updated_at=deadline.updated_at)
    return TrainingJob(
        dag_id=row.dag_id,
        run_id=row.run_id,
        task_id=row.task_id,
        map_index=row.map_index,
        operator=row.operator,
        state=row.state,
        try_number=row.try_number,
        started_at=row.start_date,
        ended_at=row.end_date,
        deadline=current,
        pace=pace,
    )


def parse(value: str) -> Any:
    """Return a stored value, which any user may have written; ``None`` if no response can contain it."""
    try:
        parsed = json.loads(value)
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()  # fails for a lone surrogate, and for NaN
    except (ValueError, RecursionError):
        return None
    return parsed
