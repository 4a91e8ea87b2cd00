"""A new deadline for trainings that run: checked before it is written, and only over what its author has seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Annotated

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.models.task_state_store import TaskStateStoreModel as Stored
from fastapi import APIRouter, Depends, HTTPException
from pydantic import AwareDatetime, BaseModel, Field
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from paceline.contract import DEADLINE, PACE, Deadline, PaceSample, StoredDeadline
from paceline.errors import InvalidInputError

from .access import may_change

router = APIRouter(tags=["Deadline"])


class TargetTask(BaseModel):
    """A training, and which of its deadlines the author of the new one has seen."""

    task_id: str
    map_index: int = -1
    seen: AwareDatetime


class DeadlineChange(BaseModel):
    """A new deadline for one training, or for all workers of one."""

    deadline: Annotated[str, Field(max_length=100)] | float
    trainings: list[TargetTask] = Field(min_length=1, max_length=1000)


@router.put(
    "/dags/{dag_id}/dagRuns/{run_id}/deadline",
    status_code=204,
    dependencies=[may_change, Depends(action_logging("paceline.deadline"))],
    responses={
        409: {"description": "Changed by somebody else meanwhile, or over"},
        422: {"description": "No deadline"},
    },
)
def change(dag_id: str, run_id: str, change: DeadlineChange, session: SessionDep, user: GetUserDep) -> None:
    """Give trainings a new deadline: all of them, or none. It is written down with its author's name."""
    try:
        deadline = Deadline.parse(change.deadline)
    except InvalidInputError as error:
        raise HTTPException(422, str(error)) from None
    value = json.dumps(StoredDeadline(change.deadline, user.get_name()).to_json())
    for target in change.trainings:
        rows = _rows(session, dag_id, run_id, target)
        pace = PaceSample.read(json.loads(rows[PACE].value)) if PACE in rows else None
        if DEADLINE not in rows or pace is None:
            raise HTTPException(409, f"{target.task_id} does not train now")
        _must_be_ahead(deadline, change.deadline, pace)
        _write(session, rows[DEADLINE], target, value)


def _rows(session: Session, dag_id: str, run_id: str, target: TargetTask) -> Mapping[str, Stored]:
    found: Sequence[Stored] = session.scalars(
        select(Stored).where(
            Stored.dag_id == dag_id,
            Stored.run_id == run_id,
            Stored.task_id == target.task_id,
            Stored.map_index == target.map_index,
            Stored.key.in_((PACE, DEADLINE)),
        )
    ).all()
    return {row.key: row for row in found}


def _must_be_ahead(deadline: Deadline, said: object, pace: PaceSample) -> None:
    """Refuse what the training would refuse: a time that has passed."""
    passed_s = (datetime.now(timezone.utc) - pace.origin).total_seconds()
    if deadline.seconds_after(pace.origin) <= passed_s:
        accepted = f"a time that is still to come ({passed_s:.0f} s have passed)"
        raise HTTPException(422, str(InvalidInputError("deadline", said, accepted)))


def _write(session: Session, row: Stored, target: TargetTask, value: str) -> None:
    """Replace the deadline that the author has seen; the database sees to it that nothing came between."""
    written = session.execute(
        update(Stored)
        .where(Stored.id == row.id, Stored.updated_at == target.seen)
        .values(value=value, updated_at=datetime.now(timezone.utc))
        .execution_options(synchronize_session=False)
    )
    if written.rowcount:  # type: ignore[attr-defined]
        return
    now = StoredDeadline.read(json.loads(row.value))
    author = f" by {now.by}" if now.by else ""
    raise HTTPException(409, f"The deadline of {target.task_id} was changed meanwhile{author}: it is {now.value} now")
