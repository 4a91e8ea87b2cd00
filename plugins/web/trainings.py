"""Trainings: those of one DAG run, and all that run now or ended lately."""

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

from .access import ReadableDags, can_change, may_see

if TYPE_CHECKING:
    from typing_extensions import Unpack

router = APIRouter(tags=["Trainings"])
_MOST = 500
_MOST_ROWS = 4000  # two for each training
OVER = ("success", "failed", "skipped", "upstream_failed", "removed")


class Asked(BaseModel):
    """The deadline as somebody wrote it. ``updated_at`` is when: whoever changes it says which one they have seen."""

    value: Any
    by: str | None
    updated_at: datetime


class TrainingRow(BaseModel):
    """A task that trains, or has trained: Airflow's view of it, and the newest ``pace`` that it published."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    operator: str | None
    state: str | None
    try_number: int
    started_at: datetime | None
    ended_at: datetime | None
    deadline: Asked | None
    pace: PaceSample


class RunTrainings(BaseModel):
    """The trainings of a DAG run, and its state. ``may_change``: whether who asks may change their deadlines."""

    state: str | None
    trainings: list[TrainingRow]
    may_change: bool


class AllTrainings(BaseModel):
    """What runs now, and what ended last, the newest first."""

    running: list[TrainingRow]
    recent: list[TrainingRow]


@router.get("/dags/{dag_id}/dagRuns/{run_id}/trainings", dependencies=[may_see])
def of_run(dag_id: str, run_id: str, session: SessionDep, user: GetUserDep) -> RunTrainings:
    """The trainings of one DAG run, in the order in which they began."""
    rows = session.execute(_published().where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id))
    trainings = sorted(_read(rows), key=lambda one: (one.started_at is None, one.started_at, one.task_id))
    state = session.scalar(select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    return RunTrainings(state=state, trainings=trainings, may_change=can_change(user, dag_id))


@router.get("/trainings", dependencies=[may_see])
def of_all(session: SessionDep, readable: ReadableDags, recent: int = Query(50, ge=0, le=_MOST)) -> AllTrainings:
    """All trainings that run now, and so many that ended lately, of the DAGs that whoever asks may see."""
    mine = TaskInstance.dag_id.in_(readable)
    running = session.execute(_published().where(mine, TaskInstance.state == "running").limit(_MOST_ROWS))
    return AllTrainings(running=_read(running), recent=_ended_lately(session, mine, recent))


def _ended_lately(session: Session, mine: ColumnElement[bool], number: int) -> list[TrainingRow]:
    # Rows are numbered as they are made: walked from the newest, nothing older than these is looked at.
    newest = (
        select(Stored.id)
        .join(TaskInstance, same_task())
        .where(Stored.key == PACE, mine, TaskInstance.state.in_(OVER))
        .order_by(Stored.id.desc())
        .limit(number)
    )
    ids = list(session.scalars(newest))
    rows = session.execute(_published().where(Stored.id.in_(ids)))
    return sorted(_read(rows), key=lambda one: one.pace.updated_at, reverse=True)


def same_task(stored: Any = Stored) -> ColumnElement[bool]:
    """That a value of the state store is of a task instance."""
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
    """Put the rows of each task together; a task without a sample is no training, or has not begun."""
    tasks: dict[tuple[str, str, str, int], dict[str, Row[Any]]] = {}
    for row in rows:
        tasks.setdefault((row.dag_id, row.run_id, row.task_id, row.map_index), {})[row.key] = row
    started = [keys for keys in tasks.values() if PACE in keys]
    found = ((keys[PACE], PaceSample.read(json.loads(keys[PACE].value)), keys.get(DEADLINE)) for keys in started)
    return [_training(row, pace, deadline) for row, pace, deadline in found if pace is not None]


def _training(row: Row[Any], pace: PaceSample, deadline: Row[Any] | None) -> TrainingRow:
    asked = None
    if deadline is not None:
        said = StoredDeadline.read(json.loads(deadline.value))
        asked = Asked(value=said.value, by=said.by, updated_at=deadline.updated_at)
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
        deadline=asked,
        pace=pace,
    )
