"""Route that changes the deadline of running training jobs. The route rejects invalid deadlines and stale changes."""

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

from .access import can_edit_tasks
from .jobs import parse

router = APIRouter(tags=["Deadline"])


class TargetTask(BaseModel):
    """A task whose deadline is to be changed. ``seen`` is the ``updated_at`` of the deadline that the user has read."""

    task_id: str
    map_index: int = -1
    seen: AwareDatetime


class DeadlineChange(BaseModel):
    """A new deadline for one training job, or for all jobs of a distributed training."""

    deadline: Annotated[str, Field(max_length=100)] | float
    jobs: list[TargetTask] = Field(min_length=1, max_length=1000)


@router.put(
    "/dags/{dag_id}/dagRuns/{run_id}/deadline",
    status_code=204,
    dependencies=[can_edit_tasks, Depends(action_logging("paceline.deadline"))],
    responses={
        409: {"description": "The deadline has changed since the user read it, or the training job has ended"},
        422: {"description": "The deadline is invalid"},
    },
)
def change_deadline(dag_id: str, run_id: str, change: DeadlineChange, session: SessionDep, user: GetUserDep) -> None:
    """Set a new deadline for all given jobs, or for none of them if a check fails. Store the user's name too."""
    try:
        deadline = Deadline.parse(change.deadline)
    except InvalidInputError as error:
        raise HTTPException(422, str(error)) from None
    value = json.dumps(StoredDeadline(change.deadline, user.get_name()).to_json())
    for target in change.jobs:
        rows = _stored_rows(session, dag_id, run_id, target)
        pace = PaceSample.read(parse(rows[PACE].value)) if PACE in rows else None
        if DEADLINE not in rows or pace is None:
            raise HTTPException(409, f"{target.task_id} is not training")
        _check_is_future(deadline, change.deadline, pace, rows[PACE].updated_at)
        _replace_deadline(session, rows[DEADLINE], target, value)


def _stored_rows(session: Session, dag_id: str, run_id: str, target: TargetTask) -> Mapping[str, Stored]:
    rows: Sequence[Stored] = session.scalars(
        select(Stored).where(
            Stored.dag_id == dag_id,
            Stored.run_id == run_id,
            Stored.task_id == target.task_id,
            Stored.map_index == target.map_index,
            Stored.key.in_((PACE, DEADLINE)),
        )
    ).all()
    return {row.key: row for row in rows}


def _check_is_future(deadline: Deadline, value: object, pace: PaceSample, stored: datetime) -> None:
    """Reject a deadline that has passed, because the training task would reject it too."""
    # Add the age of the sample to the task's own time: a clock may have been set since the start.
    passed_s = pace.t_s + (datetime.now(timezone.utc) - stored).total_seconds()
    if deadline.seconds_after(pace.origin) <= passed_s:
        accepted = f"a time in the future ({passed_s:.0f} s have passed)"
        raise HTTPException(422, str(InvalidInputError("deadline", value, accepted)))


def _replace_deadline(session: Session, row: Stored, target: TargetTask, value: str) -> None:
    """Replace the deadline in one atomic update, unless the deadline has changed since the user read it."""
    written = session.execute(
        update(Stored)
        .where(Stored.id == row.id, Stored.updated_at == target.seen)
        .values(value=value, updated_at=datetime.now(timezone.utc))
        .execution_options(synchronize_session=False)
    )
    if written.rowcount:  # type: ignore[attr-defined]
        return
    newest = StoredDeadline.read(parse(row.value))
    author = f" by {newest.by}" if newest.by else ""
    raise HTTPException(409, f"The deadline of {target.task_id} has since been changed to {newest.value}{author}")
