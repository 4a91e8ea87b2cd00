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
from sqlalchemy import and_, select

from paceline.pace.live import CEILING, CONTAINER, PACE

from .access import ReadableDags, may_see

router = APIRouter(tags=["Arbiter"])
_OVER = ("success", "failed", "skipped", "upstream_failed", "removed")


class PoolTraining(BaseModel):
    """A training that holds devices of a pool or waits for some: what it says, and what has been said to it.

    ``lost``: its task has ended without tidying up, so it may still hold what it had.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    state: str | None
    started_at: datetime | None
    lost: bool
    pace: Any
    ceiling: Any


@router.get("/pools/{pool}/trainings", dependencies=[may_see])
def of_pool(pool: str, session: SessionDep, readable: ReadableDags) -> list[PoolTraining]:
    """All trainings of a pool that have not ended, in the order in which they began."""
    rows = session.execute(
        select(
            TaskInstance.dag_id,
            TaskInstance.run_id,
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.state,
            TaskInstance.start_date,
            Stored.key,
            Stored.value,
        )
        .join(
            Stored,
            and_(
                Stored.dag_id == TaskInstance.dag_id,
                Stored.run_id == TaskInstance.run_id,
                Stored.task_id == TaskInstance.task_id,
                Stored.map_index == TaskInstance.map_index,
            ),
        )
        .where(
            TaskInstance.pool == pool,
            TaskInstance.dag_id.in_(readable),
            Stored.key.in_((PACE, CEILING, CONTAINER)),
        )
    )
    found: dict[tuple[str, str, str, int], PoolTraining] = {}
    containers = set()
    for row in rows:
        key = (row.dag_id, row.run_id, row.task_id, row.map_index)
        one = found.setdefault(
            key,
            PoolTraining(
                dag_id=row.dag_id,
                run_id=row.run_id,
                task_id=row.task_id,
                map_index=row.map_index,
                state=row.state,
                started_at=row.start_date,
                lost=False,
                pace=None,
                ceiling=None,
            ),
        )
        if row.key == CONTAINER:
            containers.add(key)
        else:
            setattr(one, row.key, json.loads(row.value))
    for key, one in found.items():
        one.lost = one.state in _OVER and key in containers
    here = [one for one in found.values() if one.lost or one.state not in _OVER]
    return sorted(here, key=lambda one: (one.started_at is None, one.started_at, one.dag_id, one.run_id, one.task_id))
