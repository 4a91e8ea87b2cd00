"""Route that returns the newest results of evaluations, promotions, drift checks and schedules from Airflow's XComs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta, timezone
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel
from sqlalchemy import Select, Text, and_, cast, func, select
from sqlalchemy.orm import aliased

from paceline.contract import (
    DRIFT_XCOM,
    EVALUATION_XCOM,
    PROMOTION_XCOM,
    SCHEDULE_XCOM,
    DriftSummary,
    EvaluationResult,
    PromotionResult,
    Record,
    ScheduleResult,
)

from .access import ReadableDags, can_read_results
from .airflow_internals import XCOM_RETURN_KEY, SessionDep, XComModel

if TYPE_CHECKING:
    from typing_extensions import Unpack

router = APIRouter(tags=["Overview"])


Value = TypeVar("Value", bound=Record)


class TaskResult(BaseModel, Generic[Value]):
    """A task instance and its return value."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    at: datetime
    value: Value


class Overview(BaseModel):
    """The newest results of each kind of task, newest first."""

    evaluations: list[TaskResult[EvaluationResult]]
    promotions: list[TaskResult[PromotionResult]]
    drift: list[TaskResult[DriftSummary]]
    schedules: list[TaskResult[ScheduleResult]]


MAX_AGE = timedelta(days=90)
_time = attrgetter("timestamp")


@router.get("/overview", dependencies=[can_read_results])
def overview(session: SessionDep, readable: ReadableDags, limit: int = Query(100, ge=1, le=500)) -> Overview:
    """Return results of evaluations, promotions, drift checks and schedules, newest first, up to ``limit`` of each.

    If there are more, they are the newest ones of each task.
    """

    def results(kind: type[Value], mark: str) -> list[TaskResult[Value]]:
        rows = sorted(session.execute(select_results(readable, mark, limit)), key=_time, reverse=True)
        return [
            TaskResult(
                dag_id=row.dag_id,
                run_id=row.run_id,
                task_id=row.task_id,
                map_index=row.map_index,
                at=row.timestamp,
                value=value,
            )
            for row in rows
            if (value := kind.read(row.value)) is not None  # else the result of a subclass
        ]

    return Overview(
        evaluations=results(EvaluationResult, EVALUATION_XCOM),
        promotions=results(PromotionResult, PROMOTION_XCOM),
        drift=results(DriftSummary, DRIFT_XCOM),
        schedules=results(ScheduleResult, SCHEDULE_XCOM),
    )


def select_results(readable: Collection[str], mark: str, limit: int) -> Select[Unpack[tuple[Any, ...]]]:
    """Return the query for the newest results that the XCom ``mark`` marks, in the ``readable`` DAGs.

    The newest result of each task comes first, then the second of each task, and so on, so that tasks with many results
    leave those of others in.
    """
    query, marked, _ = select_marked(readable, mark)
    recent, newest_first = marked.timestamp > datetime.now(timezone.utc) - MAX_AGE, marked.timestamp.desc()
    task = (marked.dag_id, marked.task_id, marked.map_index)
    number = func.row_number().over(partition_by=task, order_by=newest_first)
    return query.where(recent).order_by(number, newest_first).limit(limit)


def select_marked(
    readable: Collection[str] | None, mark: str
) -> tuple[Select[Unpack[tuple[Any, ...]]], type[XComModel], type[XComModel]]:
    """Return the query for all results that the XCom ``mark`` marks, with its two tables: the marks and the results.

    ``readable`` are the DAGs whose results it returns; ``None`` for all, which a response must not contain. The index
    on the key finds the marks, and the primary key finds the result of each mark.
    """
    marked, result = aliased(XComModel), aliased(XComModel)
    same_task = and_(
        result.dag_run_id == marked.dag_run_id,
        result.task_id == marked.task_id,
        result.map_index == marked.map_index,
        result.key == XCOM_RETURN_KEY,
    )
    # Paceline's tasks return JSON objects. Skip references that custom XCom backends store, and serialized classes,
    # whose keys all begin with "__" in whatever order the database stores them.
    text = cast(result.value, Text)
    is_object = and_(text.startswith("{"), ~text.startswith('{"__', autoescape=True))
    query = (
        select(
            marked.dag_id,
            marked.run_id,
            marked.task_id,
            marked.map_index,
            marked.timestamp,
            result.value,
        )
        .join(result, same_task)
        .where(marked.key == mark, is_object)
    )
    if readable is not None:
        query = query.where(marked.dag_id.in_(readable))
    return query, marked, result
