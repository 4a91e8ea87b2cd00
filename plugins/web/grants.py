"""Routes with which the arbiter of an Airflow pool takes the pool's lease and stores its grants."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from paceline.contract import CEILING, PACE, ArbiterStatus, Ceiling, PaceSample
from paceline.errors import InvalidInputError

from ._shares import ENDED
from .access import can_change, can_edit_pool
from .airflow_internals import GetUserDep, SessionDep, Stored, TaskInstance
from .jobs import parse, same_task
from .lease import next_version, take_lease
from .pool import has_job

router = APIRouter(tags=["Arbiter"])


class ArbiterTask(BaseModel):
    """The task instance of an arbiter, by the id of its current try."""

    arbiter: UUID


class NewLease(ArbiterTask):
    """An arbiter that takes or keeps the lease, and its status."""

    status: Any = None


class NewGrant(BaseModel):
    """A new ceiling for a job. ``before`` is the stored ceiling that the arbiter has read."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    before: Any = None
    ceiling: dict[str, Any]


class NewGrants(ArbiterTask):
    """A batch of grants, and the version of the pool's grants that the arbiter has read."""

    version: int
    grants: list[NewGrant] = Field(max_length=10_000)


class GrantResult(BaseModel):
    """Whether a grant was stored and, if not, the reason."""

    stored: bool
    detail: str = ""


@router.put(
    "/pools/{pool_name}/arbiter",
    status_code=204,
    dependencies=[can_edit_pool],
    responses={
        409: {"description": "Another arbiter of this pool is running"},
        410: {"description": "Airflow is not running this task instance"},
    },
)
def set_arbiter(pool_name: str, lease: NewLease, session: SessionDep) -> None:
    """Give an arbiter the lease of the pool, unless another running arbiter has the lease; store its status."""
    status = ArbiterStatus.read(lease.status)
    take_lease(session, pool_name, lease.arbiter, status and status.to_json())


@router.put(
    "/pools/{pool_name}/grants",
    dependencies=[can_edit_pool],
    responses={
        409: {"description": "Another arbiter has taken the pool"},
        412: {"description": "The grants have changed since the arbiter read the jobs"},
    },
)
def put_grants(pool_name: str, batch: NewGrants, session: SessionDep, user: GetUserDep) -> list[GrantResult]:
    """Store a batch of grants, in one transaction.

    A grant is not stored if its job has ended, if the stored ceiling has changed since the arbiter read it, or if the
    user may not edit the job's task instance.
    """
    next_version(session, pool_name, batch.arbiter, batch.version)
    stored = _stored_rows(session, pool_name)
    may_change = {dag_id: can_change(user, dag_id) for dag_id in {grant.dag_id for grant in batch.grants}}
    return [_store_grant(session, grant, stored, may_change[grant.dag_id]) for grant in batch.grants]


_Rows = dict[tuple[str, str, str, int, str], Stored]


def _stored_rows(session: Session, pool: str) -> _Rows:
    """Return the stored samples and ceilings of the jobs of a pool that have not ended."""
    of_pool = select(Stored).join(TaskInstance, same_task()).where(TaskInstance.pool == pool)
    rows = session.scalars(of_pool.where(Stored.key.in_((PACE, CEILING)), has_job()))
    return {(row.dag_id, row.run_id, row.task_id, row.map_index, row.key): row for row in rows}


def _store_grant(session: Session, grant: NewGrant, stored: _Rows, may_change: bool) -> GrantResult:
    if not may_change:
        return GrantResult(stored=False, detail=f"this user may not edit the task instances of {grant.dag_id}")
    job = (grant.dag_id, grant.run_id, grant.task_id, grant.map_index)
    pace, ceiling = stored.get((*job, PACE)), stored.get((*job, CEILING))
    if pace is None:
        return GrantResult(stored=False, detail="the job no longer exists")
    sample = PaceSample.read(parse(pace.value))
    if sample is not None and sample.state in ENDED:  # its task may have another try
        return GrantResult(stored=False, detail="the job has ended")
    if grant.before != (None if ceiling is None else parse(ceiling.value)):
        return GrantResult(stored=False, detail="its ceiling has changed since the arbiter read it")
    try:
        value, now = json.dumps(Ceiling.read(grant.ceiling).to_json()), datetime.now(timezone.utc)
    except InvalidInputError as error:
        return GrantResult(stored=False, detail=str(error))
    if ceiling is not None:
        written = session.execute(
            update(Stored)
            .where(Stored.id == ceiling.id, Stored.value == ceiling.value)
            .values(value=value, updated_at=now)
            .execution_options(synchronize_session=False)
        )
        done = bool(written.rowcount)  # type: ignore[attr-defined]
    else:
        done = _insert(session, Stored(**_columns(pace), key=CEILING, value=value, updated_at=now))
    return GrantResult(stored=done, detail="" if done else "its ceiling has just changed")


def _columns(pace: Stored) -> dict[str, Any]:
    names = ("dag_run_id", "dag_id", "run_id", "task_id", "map_index", "expires_at")
    return {name: getattr(pace, name) for name in names}


def _insert(session: Session, row: Stored) -> bool:
    """Insert a row; return false if another transaction has inserted it first."""
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return False
    return True
