"""Route that returns the training jobs of an Airflow pool to the arbiter, which allocates the pool's devices."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import aliased

from paceline.contract import CEILING, CONTAINER, PACE

from .access import ReadableDags, can_read_tasks
from .airflow_internals import SessionDep, Stored, TaskInstance
from .jobs import FINAL_STATES, parse, same_task
from .lease import read_lease

router = APIRouter(tags=["Arbiter"])


class PoolJob(BaseModel):
    """A training job that uses or waits for devices from a pool, with its newest ``pace`` and its ``ceiling``.

    ``priority_weight`` is the weight of the Airflow task. ``lost`` is true if the task has ended without removing the
    job, which may still use devices.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    state: str | None
    started_at: datetime | None
    priority_weight: int | None = None
    lost: bool = False
    pace: Any = None
    ceiling: Any = None


class PoolJobs(BaseModel):
    """The jobs of a pool that have not ended, sorted by start time, and the version of the pool's grants."""

    version: int
    jobs: list[PoolJob]


@router.get("/pools/{pool}/jobs", dependencies=[can_read_tasks])
def pool_jobs(pool: str, session: SessionDep, readable: ReadableDags) -> PoolJobs:
    """Return all jobs of a pool that have not ended, sorted by start time."""
    version = read_lease(session, pool).version  # read first: grants that are written after this have a newer version
    rows = session.execute(
        select(
            TaskInstance.dag_id,
            TaskInstance.run_id,
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.state,
            TaskInstance.start_date.label("started_at"),
            TaskInstance.priority_weight,
            Stored.key,
            Stored.value,
        )
        .join(Stored, same_task())
        .where(TaskInstance.pool == pool, TaskInstance.dag_id.in_(readable), Stored.key.in_((PACE, CEILING)), has_job())
    )
    jobs: dict[tuple[str, str, str, int], PoolJob] = {}
    for row in rows:
        key = (row.dag_id, row.run_id, row.task_id, row.map_index)
        job = jobs.setdefault(key, PoolJob.model_validate(row, from_attributes=True))
        job.lost = job.state in FINAL_STATES
        setattr(job, row.key, parse(row.value))
    by_name = sorted(jobs.values(), key=lambda job: (job.dag_id, job.run_id, job.task_id, job.map_index))
    by_start = sorted(by_name, key=lambda job: job.started_at.timestamp() if job.started_at else float("inf"))
    return PoolJobs(version=version, jobs=by_start)


def has_job() -> ColumnElement[bool]:
    """Return the condition that a task instance has not ended, or has ended without removing its job."""
    container = aliased(Stored)
    left_job = exists().where(container.key == CONTAINER, same_task(container))
    return or_(TaskInstance.state.is_(None), TaskInstance.state.not_in(FINAL_STATES), left_job)
