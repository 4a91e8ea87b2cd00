"""The lease of an Airflow pool: which arbiter allocates the pool's devices, and how many times grants were written.

The lease is an Airflow variable, ``paceline_arbiter_POOL``, in the same database as the grants. It also has the status
that the arbiter publishes. The first statement of each transaction that changes grants locks the variable's row. So
grants are written one batch after another, and only by an arbiter that has read the result of the batch before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from hashlib import md5
from typing import Any
from uuid import UUID

from fastapi import HTTPException
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from .airflow_internals import TaskInstance, TaskInstanceState, Variable

_DESCRIPTION = "The Paceline arbiter that allocates the devices of this Airflow pool"
_PREFIX = "paceline_arbiter_"
_MAX_KEY_LENGTH = 250  # of Airflow's variables


class PoolLease(BaseModel):
    """The arbiter of a pool, and the number of batches of grants written so far.

    ``arbiter`` is the id of a task instance, which Airflow changes with each try. The names of the pool and of the task
    are those of ``taken_at``, when the arbiter took the lease. ``status`` is what it has published since, see
    ``ArbiterStatus``.
    """

    arbiter: UUID | None = None
    pool: str = ""
    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: int = -1
    taken_at: datetime | None = None
    version: int = Field(default_factory=time.time_ns)  # newer than earlier ones, even if a user has deleted the lease
    status: Any = None


def read_leases(session: Session) -> list[PoolLease]:
    """Return the leases of all pools that have had an arbiter."""
    stored = session.scalars(select(Variable).where(Variable.key.startswith(_PREFIX, autoescape=True)))
    return [lease for one in stored if (lease := _parse(one.get_val())).pool]  # type: ignore[no-untyped-call]


def read_lease(session: Session, pool: str) -> PoolLease:
    """Return the lease of a pool; it has no holder if no arbiter has taken it yet."""
    stored = session.scalar(select(Variable).where(Variable.key == _key(pool)))
    return _parse(None if stored is None else stored.get_val())


def take_lease(session: Session, pool: str, arbiter: UUID, status: Any = None) -> None:
    """Give the lease to a running task instance, unless another one has the lease and still runs; store its status.

    Airflow decides whether a task instance runs. If Airflow has lost an arbiter, it gives the task's next try another
    id, so that try takes the lease, and the lost process can no longer write grants.
    """
    task = _running_task(session, arbiter)
    if task is None:
        raise HTTPException(410, f"Airflow is not running the task instance {arbiter}")
    stored = _locked(session, pool)
    if stored is None:
        stored = Variable(key=_key(pool), val=PoolLease().model_dump_json(), description=_DESCRIPTION)  # type: ignore[no-untyped-call]
        session.add(stored)
        try:
            session.flush()
        except IntegrityError:
            raise HTTPException(409, f"Another arbiter is taking the lease of the pool {pool}") from None
    lease = _parse(stored.get_val())  # type: ignore[no-untyped-call]
    if lease.arbiter == arbiter:
        if status is not None:  # an older version has stored no names
            _store(stored, lease.model_copy(update={"pool": pool, **task, "status": status}))
        return
    if lease.arbiter not in (None, arbiter) and (holder := _running_task(session, lease.arbiter)) is not None:
        raise HTTPException(409, f"The arbiter {_name(holder)} allocates the pool {pool}")
    now, version = datetime.now(timezone.utc), lease.version + 1
    _store(stored, PoolLease(arbiter=arbiter, pool=pool, taken_at=now, version=version, status=status, **task))


def next_version(session: Session, pool: str, arbiter: UUID, version: int) -> None:
    """Lock the lease until the end of the transaction and count a batch of grants, if the batch may be written.

    An arbiter may write if it has the lease and has read the jobs at the current ``version``.
    """
    stored = _locked(session, pool)
    lease = _parse(None if stored is None else stored.get_val())  # type: ignore[no-untyped-call]
    if stored is None or lease.arbiter != arbiter:
        holder = _name(lease.model_dump()) or "of another run"
        raise HTTPException(409, f"The arbiter {holder} has taken the pool {pool}")
    if lease.version != version:
        raise HTTPException(412, f"The grants of the pool {pool} have changed since they were read")
    _store(stored, lease.model_copy(update={"version": version + 1}))


def _key(pool: str) -> str:
    key = f"{_PREFIX}{pool}"
    if len(key) <= _MAX_KEY_LENGTH:
        return key
    return f"{key[: _MAX_KEY_LENGTH - 33]}_{md5(pool.encode(), usedforsecurity=False).hexdigest()}"


def _locked(session: Session, pool: str) -> Variable | None:
    """Return the variable; other transactions wait here until this one ends, on any database that Airflow supports."""
    session.execute(update(Variable).where(Variable.key == _key(pool)).values(description=_DESCRIPTION))
    return session.scalar(select(Variable).where(Variable.key == _key(pool)).execution_options(populate_existing=True))


def _parse(value: str | None) -> PoolLease:
    """Return the stored lease; a lease that a user has deleted or damaged has no holder."""
    try:
        return PoolLease.model_validate_json(value or "{}")
    except ValidationError:
        return PoolLease()


def _store(stored: Variable, lease: PoolLease) -> None:
    stored.set_val(lease.model_dump_json())  # type: ignore[no-untyped-call]


def _running_task(session: Session, arbiter: UUID | None) -> dict[str, Any] | None:
    """Return the names of a task instance if it is running, else ``None``."""
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)
    row = session.execute(
        select(*columns).where(TaskInstance.id == arbiter, TaskInstance.state == TaskInstanceState.RUNNING)
    ).one_or_none()
    return None if row is None else dict(row._mapping)


def _name(task: Mapping[str, Any]) -> str:
    return " ".join(task[name] for name in ("dag_id", "run_id", "task_id")).strip()
