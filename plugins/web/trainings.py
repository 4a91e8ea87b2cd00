"""Trainings of one DAG run, and all trainings that are running or have ended recently."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from fastapi import APIRouter, Query
from pydantic import BaseModel
from sqlalchemy import ColumnElement, Row, Select, and_, select
from sqlalchemy.orm import Session

from paceline.contract import DEADLINE, PACE, PaceSample, StoredDeadline

from .access import ReadableDags, can_change, can_read_tasks

if TYPE_CHECKING:
    from typing_extensions import Unpack

router = APIRouter(tags=["Trainings"])
_MAX_RECENT = 500
_MAX_ROWS = 4000  # two for each training
FINAL_STATES = ("success", "failed", "skipped", "upstream_failed", "removed")


class CurrentDeadline(BaseModel):
    """A deadline as the user wrote it. A change has to quote its ``updated_at``, so a stale change is detected."""

    value: Any
    by: str | None
    updated_at: datetime


class TrainingRow(BaseModel):
    """A task instance that trains or has trained: Airflow's data, and the newest ``pace`` that it published."""

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


class RunTrainings(BaseModel):
    """The trainings of a DAG run, and its state. ``may_change``: whether the caller may change their deadlines."""

    state: str | None
    trainings: list[TrainingRow]
    may_change: bool


class AllTrainings(BaseModel):
    """The running trainings, and the ones that ended last, newest first."""

    running: list[TrainingRow]
    recent: list[TrainingRow]


@router.get("/dags/{dag_id}/dagRuns/{run_id}/trainings", dependencies=[can_read_tasks])
def run_trainings(dag_id: str, run_id: str, session: SessionDep, user: GetUserDep) -> RunTrainings:
    """Return the trainings of one DAG run, by start time."""
    rows = session.execute(_published().where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id))
    trainings = sorted(_read(rows), key=lambda one: (one.started_at is None, one.started_at, one.task_id))
    state = session.scalar(select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    return RunTrainings(state=state, trainings=trainings, may_change=can_change(user, dag_id))


@router.get("/trainings", dependencies=[can_read_tasks])
def all_trainings(
    session: SessionDep, readable: ReadableDags, recent: int = Query(50, ge=0, le=_MAX_RECENT)
) -> AllTrainings:
    """Return all running trainings and the ``recent`` newest that have ended, of the DAGs that the caller may read."""
    is_readable = TaskInstance.dag_id.in_(readable)
    running = session.execute(_published().where(is_readable, TaskInstance.state == "running").limit(_MAX_ROWS))
    return AllTrainings(running=_read(running), recent=_recently_ended(session, is_readable, recent))


def _recently_ended(session: Session, is_readable: ColumnElement[bool], number: int) -> list[TrainingRow]:
    # Row ids increase with time. Descending from the newest id, the query reads no older rows than it needs.
    newest = (
        select(Stored.id)
        .join(TaskInstance, same_task())
        .where(Stored.key == PACE, is_readable, TaskInstance.state.in_(FINAL_STATES))
        .order_by(Stored.id.desc())
        .limit(number)
    )
    ids = list(session.scalars(newest))
    rows = session.execute(_published().where(Stored.id.in_(ids)))
    return sorted(_read(rows), key=lambda one: one.pace.updated_at, reverse=True)


def same_task(stored: Any = Stored) -> ColumnElement[bool]:
    """Return the join condition between a value in the state store and its task instance."""
    return and_(
        stored.dag_id == TaskInstance.dag_id,
        stored.run_id == TaskInstance.run_id,
        stored.task_id == TaskInstance.task_id,
        stored.map_index == TaskInstance.map_index,
    )


def _published() -> Select[Unpack[tuple[Any, ...]]]:
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
        .where(Stored.key.in_((PACE, DEADLINE)))
        .order_by(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)
    )


def _read(rows: Iterable[Row[Any]]) -> list[TrainingRow]:
    """Group rows by task instance. One without a sample is not a training or has not started, and is left out."""
    tasks: dict[tuple[str, str, str, int], dict[str, Row[Any]]] = {}
    for row in rows:
        tasks.setdefault((row.dag_id, row.run_id, row.task_id, row.map_index), {})[row.key] = row
    started = [keys for keys in tasks.values() if PACE in keys]
    found = ((keys[PACE], PaceSample.read(json.loads(keys[PACE].value)), keys.get(DEADLINE)) for keys in started)
    return [_training(row, pace, deadline) for row, pace, deadline in found if pace is not None]


def _training(row: Row[Any], pace: PaceSample, deadline: Row[Any] | None) -> TrainingRow:
    current = None
    if deadline is not None:
        stored = StoredDeadline.read(json.loads(deadline.value))
        current = CurrentDeadline(value=stored.value, by=stored.by, updated_at=deadline.updated_at)
    return TrainingRow(
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
