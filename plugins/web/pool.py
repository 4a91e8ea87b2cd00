"""The trainings of an Airflow pool, for the arbiter that shares its devices among them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from airflow.models.taskinstance import TaskInstance
from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy import exists, or_, select
from sqlalchemy.orm import aliased

from paceline.contract import CEILING, CONTAINER, PACE

from .access import ReadableDags, can_read_tasks
from .trainings import FINAL_STATES, same_task

router = APIRouter(tags=["Arbiter"])


class PoolTraining(BaseModel):
    """A training that has devices of a pool or waits for some, with its newest ``pace`` and its ``ceiling``.

    ``priority_weight`` is Airflow's, of the task. ``lost``: the task has ended without removing its job, which may
    still use its devices.
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


@router.get("/pools/{pool}/trainings", dependencies=[can_read_tasks])
def pool_trainings(pool: str, session: SessionDep, readable: ReadableDags) -> list[PoolTraining]:
    """Return all trainings of a pool that have not ended, by start time."""
    container = aliased(Stored)
    has_job = exists().where(container.key == CONTAINER, same_task(container))
    not_ended = or_(TaskInstance.state.is_(None), TaskInstance.state.not_in(FINAL_STATES), has_job)
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
        .where(TaskInstance.pool == pool, TaskInstance.dag_id.in_(readable), Stored.key.in_((PACE, CEILING)), not_ended)
    )
    found: dict[tuple[str, str, str, int], PoolTraining] = {}
    for row in rows:
        key = (row.dag_id, row.run_id, row.task_id, row.map_index)
        one = found.setdefault(key, PoolTraining.model_validate(row, from_attributes=True))
        one.lost = one.state in FINAL_STATES
        setattr(one, row.key, json.loads(row.value))
    order = sorted(found.values(), key=lambda one: (one.dag_id, one.run_id, one.task_id, one.map_index))
    return sorted(order, key=lambda one: one.started_at.timestamp() if one.started_at else float("inf"))
