"""Route that returns the results of past trainings, from which ``paceline simulate --from-airflow`` makes its jobs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from fastapi import APIRouter, Query
from pydantic import BaseModel
from sqlalchemy import and_, select, true
from sqlalchemy.orm import aliased

from paceline.contract import PACE, RESULT, PaceSample, StoredResult, TrainingResult

from .access import ReadableDags, can_read_results, can_read_tasks
from .airflow_internals import SessionDep, Stored, TaskInstance, TaskInstanceState
from .jobs import parse, same_task

router = APIRouter(tags=["Jobs"])


class PastTraining(BaseModel):
    """A training that has succeeded: its task instance, its result, and the last sample of its job."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    pool: str
    priority_weight: int | None
    started_at: datetime
    result: TrainingResult
    pace: PaceSample


class PastTrainings(BaseModel):
    """The newest trainings of a period, oldest first. ``older``: whether the period has more than were returned."""

    trainings: list[PastTraining]
    older: bool


@router.get("/jobs/results", dependencies=[can_read_tasks, can_read_results])
def past_trainings(
    session: SessionDep,
    readable: ReadableDags,
    days: float = Query(7, gt=0, le=366),
    pool: str | None = None,
    limit: int = Query(1000, ge=1, le=5000),
) -> PastTrainings:
    """Return the trainings that have succeeded in the last ``days``, of one Airflow pool or of all.

    Airflow deletes the state of tasks after its ``[state_store] default_retention_days``.
    """
    sample = aliased(Stored)
    rows = session.execute(
        select(
            TaskInstance.dag_id,
            TaskInstance.run_id,
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.pool,
            TaskInstance.priority_weight,
            TaskInstance.start_date,
            Stored.value.label("result"),
            sample.value.label("pace"),
        )
        .join(Stored, and_(same_task(), Stored.key == RESULT))
        .join(sample, and_(same_task(sample), sample.key == PACE))
        .where(
            TaskInstance.dag_id.in_(readable),
            TaskInstance.state == TaskInstanceState.SUCCESS,
            TaskInstance.start_date.is_not(None),
            TaskInstance.end_date >= datetime.now(timezone.utc) - timedelta(days=days),
            true() if pool is None else TaskInstance.pool == pool,
        )
        .order_by(TaskInstance.end_date.desc(), TaskInstance.id)
        .limit(limit + 1)
    ).all()
    trainings = []
    for row in rows[:limit]:
        result, pace = StoredResult.read(parse(row.result)), PaceSample.read(parse(row.pace))
        if result is not None and pace is not None:  # else a user has edited the task's state
            trainings.append(
                PastTraining(
                    dag_id=row.dag_id,
                    run_id=row.run_id,
                    task_id=row.task_id,
                    map_index=row.map_index,
                    pool=row.pool,
                    priority_weight=row.priority_weight,
                    started_at=row.start_date,
                    result=result.result,
                    pace=pace,
                )
            )
    return PastTrainings(trainings=trainings[::-1], older=len(rows) > limit)
