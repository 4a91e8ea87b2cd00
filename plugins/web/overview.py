"""Route that returns the newest results of evaluations, promotions, drift checks and schedules from Airflow's XComs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from fastapi import APIRouter, Query
from pydantic import BaseModel
from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from .access import ReadableDags, can_read_results

router = APIRouter(tags=["Overview"])


class TaskResult(BaseModel):
    """A task instance and its return value."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    at: datetime
    value: dict[str, Any]


class Overview(BaseModel):
    """The newest results of each kind of task, newest first."""

    evaluations: list[TaskResult]
    promotions: list[TaskResult]
    drift: list[TaskResult]
    schedules: list[TaskResult]


_MAX_AGE = timedelta(days=90)
# Airflow stores the operator's class name with each task instance.
_OPERATORS = {
    "evaluations": "EvaluateOperator",
    "promotions": "PromoteOperator",
    "drift": "DriftSensor",
    "schedules": "ScheduleOperator",
}


@router.get("/overview", dependencies=[can_read_results])
def overview(session: SessionDep, readable: ReadableDags, limit: int = Query(100, ge=1, le=500)) -> Overview:
    """Return the newest results of evaluations, promotions, drift checks and schedules, up to ``limit`` of each."""
    return Overview(**{kind: _results(session, readable, name, limit) for kind, name in _OPERATORS.items()})


def _results(session: Session, readable: set[str], operator: str, limit: int) -> list[TaskResult]:
    same_task = and_(
        XComModel.dag_id == TaskInstance.dag_id,
        XComModel.run_id == TaskInstance.run_id,
        XComModel.task_id == TaskInstance.task_id,
        XComModel.map_index == TaskInstance.map_index,
    )
    rows = session.execute(
        select(
            XComModel.dag_id,
            XComModel.run_id,
            XComModel.task_id,
            XComModel.map_index,
            XComModel.timestamp,
            XComModel.value,
        )
        .join(TaskInstance, same_task)
        .where(
            XComModel.key == "return_value",
            XComModel.timestamp > datetime.now(timezone.utc) - _MAX_AGE,
            TaskInstance.operator == operator,
            XComModel.dag_id.in_(readable),
        )
        .order_by(XComModel.timestamp.desc())
        .limit(limit)
    )
    return [
        TaskResult(
            dag_id=row.dag_id,
            run_id=row.run_id,
            task_id=row.task_id,
            map_index=row.map_index,
            at=row.timestamp,
            value=row.value,
        )
        for row in rows
        # Paceline's tasks return plain JSON. Skip serialized classes, and references that custom XCom backends store.
        if isinstance(row.value, dict) and "__classname__" not in row.value
    ]
