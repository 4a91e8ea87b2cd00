"""Reads which task instance is the arbiter of a pool, and what the arbiter publishes, for ``.pools``."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from pydantic import BaseModel, ConfigDict
from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from paceline.contract import ArbiterStatus

from .airflow_internals import DagModel, TaskInstance
from .lease import PoolLease


class ArbiterTaskInstance(BaseModel):
    """The task instance of an arbiter. ``state`` is ``null`` before Airflow schedules its next try."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    state: str | None
    ended_at: datetime | None
    paused: bool
    """Whether its DAG is paused, so that no next run continues."""


class PoolArbiter(BaseModel):
    """The arbiter that has, or had last, the lease of a pool."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    task: ArbiterTaskInstance | None
    """``null`` if Airflow has deleted the task instance."""
    readable: bool
    """Whether the caller may read its DAG; the names of ``task`` are empty otherwise."""
    has_lease: bool
    """Whether the current try of the task has the lease; false for a try that has not begun to allocate."""
    taken_at: datetime | None
    """When the lease was taken; ``null`` if unknown."""
    status: ArbiterStatus | None
    """What the arbiter has published; ``null`` if nothing yet, or by an older version."""


def find_arbiter(session: Session, lease: PoolLease, readable: Collection[str]) -> PoolArbiter | None:
    """Return the arbiter of a pool; ``None`` if no arbiter has taken its lease."""
    if lease.arbiter is None:
        return None
    names = {name: getattr(lease, name) for name in ("dag_id", "run_id", "task_id", "map_index")}
    # A retry has another id. A lease of an older version has no names.
    same = and_(*(getattr(TaskInstance, name) == value for name, value in names.items()))
    row = session.execute(
        select(
            TaskInstance.id,
            TaskInstance.dag_id,
            TaskInstance.run_id,
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.try_number,
            TaskInstance.state,
            TaskInstance.end_date.label("ended_at"),
            DagModel.is_paused.label("paused"),
        )
        .outerjoin(DagModel, DagModel.dag_id == TaskInstance.dag_id)
        .where(same if lease.dag_id else TaskInstance.id == lease.arbiter)
    ).one_or_none()
    status = ArbiterStatus.read(lease.status)
    if status is not None:
        starts = [start for start in status.starts if start.dag_id in readable]
        status = status.model_copy(update={"starts": starts})
    may_read = row is not None and row.dag_id in readable
    task = None
    if row is not None:
        shown = dict(row._mapping) | {"paused": bool(row.paused)}
        hidden = {} if may_read else {"dag_id": "", "run_id": "", "task_id": "", "map_index": -1}
        task = ArbiterTaskInstance.model_validate(shown | hidden)
    has_lease = row is not None and row.id == lease.arbiter
    return PoolArbiter(task=task, readable=may_read, has_lease=has_lease, taken_at=lease.taken_at, status=status)
