"""Routes that check or change the deadline of running training jobs, and reject what the jobs would reject."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Depends, HTTPException
from pydantic import AwareDatetime, BaseModel, Field
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from paceline.contract import DEADLINE, PACE, PaceSample, StoredDeadline, finite
from paceline.errors import InvalidInputError

from .access import can_edit_tasks
from .airflow_internals import GetUserDep, SessionDep, Stored, action_logging
from .jobs import parse

router = APIRouter(tags=["Deadline"])


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TargetTask(BaseModel):
    """A task whose deadline is to be changed.

    ``seen`` is the ``updated_at`` of the deadline that the user has read. Without it, the change replaces any other.
    """

    task_id: str
    map_index: int = Field(-1, ge=-1, lt=2**31)
    seen: AwareDatetime | None = Field(None, ge=_EPOCH)


class DeadlineChange(BaseModel):
    """A new deadline for one training job, or for all jobs of a distributed training; see ``StoredDeadline``."""

    deadline: Any
    jobs: list[TargetTask] = Field(min_length=1, max_length=1000)


_ERRORS: dict[int | str, dict[str, Any]] = {
    409: {"description": "The deadline has changed since the user read it, or the training job has ended"},
    422: {"description": "The deadline is invalid"},
}


@router.post("/dags/{dag_id}/dagRuns/{run_id}/deadline/check", dependencies=[can_edit_tasks], responses=_ERRORS)
def check_deadline(dag_id: str, run_id: str, change: DeadlineChange, session: SessionDep) -> float | None:
    """Check a new deadline for all given jobs, without a change.

    Return the latest deadline of a job, in seconds from the earliest time from which one of the jobs counts; ``None``
    for no deadline.
    """
    deadline = StoredDeadline.read(change.deadline)
    accepted = [_accept(session, dag_id, run_id, target, deadline)[1:] for target in change.jobs]
    first = min(origin for _, origin in accepted)
    return finite(max(seconds + (origin - first).total_seconds() for seconds, origin in accepted))


@router.put(
    "/dags/{dag_id}/dagRuns/{run_id}/deadline",
    status_code=204,
    dependencies=[can_edit_tasks, Depends(action_logging("paceline.deadline"))],
    responses=_ERRORS,
)
def change_deadline(dag_id: str, run_id: str, change: DeadlineChange, session: SessionDep, user: GetUserDep) -> None:
    """Set a new deadline for all given jobs, or for none of them if a check fails. Store the user's name too."""
    deadline = replace(StoredDeadline.read(change.deadline), by=user.get_name())
    for target in change.jobs:
        current, *_ = _accept(session, dag_id, run_id, target, deadline)
        _replace_deadline(session, current, target, json.dumps(deadline.to_json()))


def _accept(
    session: Session, dag_id: str, run_id: str, target: TargetTask, deadline: StoredDeadline
) -> tuple[Stored, float, datetime]:
    """Return the stored deadline of a job, the new deadline in seconds, and the time from which they count.

    Raise an HTTP error if the training task would reject the new deadline.
    """
    try:
        deadline.parse(optional=True)
        rows = _stored_rows(session, dag_id, run_id, target)
        pace = PaceSample.read(parse(rows[PACE].value)) if PACE in rows else None
        if DEADLINE not in rows or pace is None:
            raise HTTPException(409, f"{target.task_id} is not training")
        # Add the age of the sample to the task's own time: a clock may have been set since the start.
        passed_s = pace.t_s + (datetime.now(timezone.utc) - rows[PACE].updated_at).total_seconds()
        return rows[DEADLINE], deadline.accept(pace.origin, passed_s, pace.deadline_in_force_s), pace.origin
    except InvalidInputError as error:
        raise HTTPException(422, str(error)) from None


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


def _replace_deadline(session: Session, row: Stored, target: TargetTask, value: str) -> None:
    """Replace the deadline in one atomic update, unless the deadline has changed since the user read it."""
    written = session.execute(
        update(Stored)
        .where(Stored.id == row.id, Stored.updated_at == (target.seen or Stored.updated_at))
        .values(value=value, updated_at=datetime.now(timezone.utc))
        .execution_options(synchronize_session=False)
    )
    if written.rowcount:  # type: ignore[attr-defined]
        return
    newest = StoredDeadline.read(parse(row.value))
    author = f" by {newest.by}" if newest.by else ""
    raise HTTPException(
        409, f"The deadline of {target.task_id} has since been changed to {newest.value or 'none'}{author}"
    )
