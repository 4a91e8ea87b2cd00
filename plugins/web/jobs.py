"""Routes that return the training jobs of a DAG run, and all jobs that are running or have recently ended."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel
from sqlalchemy import ColumnElement, Row, Select, and_, or_, select
from sqlalchemy.orm import Session, aliased

from paceline.contract import (
    CONTAINER,
    DEADLINE,
    NOT_STARTED,
    OUTPUT,
    PACE,
    CollectedOutput,
    PaceSample,
    StartFailure,
    StoredDeadline,
)

from .access import ReadableDags, can_change, can_read_tasks
from .airflow_internals import DagRun, GetUserDep, SessionDep, Stored, TaskInstance

if TYPE_CHECKING:
    from typing_extensions import Unpack

router = APIRouter(tags=["Jobs"])
_MAX_RECENT = 500
_APPLIED_WITHIN = timedelta(seconds=5)  # later, a job that keeps another deadline has rejected it
_LEAST_UNSTARTED = 50
_STARTED_SINCE = 500  # jobs that may have started after one that has just ended
_MAX_ROWS = 8000  # four rows for each job
TaskKey = tuple[str, str, str, int]
# The states of a task whose last try may have started no job: failed, or before its next try.
_UNSTARTED_STATES = ("failed", "up_for_retry", "scheduled", "queued")
# The states of a task between two of its processes: before its next try, or before it leaves the triggerer.
_BETWEEN_STATES = ("up_for_retry", "restarting", "scheduled", "queued")
FINAL_STATES = ("success", "failed", "skipped", "upstream_failed", "removed")


class CurrentDeadline(BaseModel):
    """A deadline as the user wrote it. Changes contain ``updated_at``, so that the server detects stale changes.

    ``pending`` is whether the job is about to apply it, so that its samples still have the deadline before.
    """

    value: Any
    by: str | None
    updated_at: datetime
    pending: bool


class TrainingJob(BaseModel):
    """A training job: the data of its Airflow task instance, and the newest ``pace`` that the task published.

    ``warning`` is what is wrong with the output of a successful job: that it is empty.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    operator: str | None
    state: str | None
    try_number: int
    started_at: datetime | None
    ended_at: datetime | None
    deadline: CurrentDeadline | None
    pace: PaceSample
    warning: str | None


class UnstartedJob(BaseModel):
    """A training task whose last try has ended at the time ``at`` without starting its job, and the ``reason``.

    If the task's state is not ``"failed"``, another try follows.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    state: str
    at: datetime
    reason: str


class RunJobs(BaseModel):
    """The jobs of a DAG run, and the run's state. ``may_change`` is whether the caller may change deadlines."""

    state: str | None
    jobs: list[TrainingJob]
    unstarted: list[UnstartedJob]
    may_change: bool


class AllJobs(BaseModel):
    """The running jobs, the most recently ended jobs, and the trainings that did not start, newest first."""

    running: list[TrainingJob]
    recent: list[TrainingJob]
    unstarted: list[UnstartedJob]


@router.get("/dags/{dag_id}/dagRuns/{run_id}/jobs", dependencies=[can_read_tasks])
def run_jobs(dag_id: str, run_id: str, session: SessionDep, user: GetUserDep) -> RunJobs:
    """Return the jobs of one DAG run, sorted by start time."""
    rows = session.execute(_select_samples().where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id))
    jobs = sorted(_to_jobs(rows), key=lambda job: (job.started_at is None, job.started_at, job.task_id))
    state = session.scalar(select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    unstarted = _unstarted(session, and_(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id))
    return RunJobs(state=state, jobs=jobs, unstarted=unstarted, may_change=can_change(user, dag_id))


@router.get("/jobs", dependencies=[can_read_tasks])
def all_jobs(session: SessionDep, readable: ReadableDags, recent: int = Query(50, ge=0, le=_MAX_RECENT)) -> AllJobs:
    """Return the running jobs and the last ``recent`` ended jobs of the DAGs that the caller may read.

    And at least the last 50 trainings that did not start. The running jobs include those that wait for the next try.
    """
    is_readable = TaskInstance.dag_id.in_(readable)
    active = TaskInstance.state.in_(("running", "deferred", *_BETWEEN_STATES))
    rows = session.execute(
        select_stored(PACE, DEADLINE, OUTPUT, CONTAINER).where(is_readable, active).limit(_MAX_ROWS)
    ).all()
    unstarted = _unstarted(session, is_readable, max(recent, _LEAST_UNSTARTED))
    ended = _recently_ended(session, is_readable, recent)
    # The last sample of such a task is that of an earlier job.
    places = {_place(one) for one in unstarted}
    started, recently = ([job for job in jobs if _place(job) not in places] for jobs in (_to_jobs(rows), ended))
    # Without a container, the output of a finished job has been collected: its task was cleared.
    held = {_place(row) for row in rows if row.key == CONTAINER}
    running = [
        job
        for job in started
        if job.state not in _BETWEEN_STATES or job.pace.state != "finished" or _place(job) in held
    ]
    return AllJobs(running=running, recent=recently, unstarted=unstarted)


def _recently_ended(session: Session, is_readable: ColumnElement[bool], number: int) -> list[TrainingJob]:
    # Row ids increase with the start of the jobs, so in descending order of ids the query need not read older rows.
    output = aliased(Stored)
    newest = (
        select(Stored.updated_at, Stored.id, output.id)
        .join(TaskInstance, same_task())
        .outerjoin(output, and_(same_task(output), output.key == OUTPUT))
        .where(Stored.key == PACE, is_readable, TaskInstance.state.in_(FINAL_STATES))
        .order_by(Stored.id.desc())
        .limit(max(number, _STARTED_SINCE) if number else 0)
    )
    last = sorted(session.execute(newest), key=lambda row: row.updated_at, reverse=True)[:number]
    ids = [row_id for _, *row_ids in last for row_id in row_ids if row_id is not None]
    rows = session.execute(_select_samples().where(Stored.id.in_(ids)))
    return sorted(_to_jobs(rows), key=lambda job: job.pace.updated_at, reverse=True)


def _unstarted(session: Session, condition: ColumnElement[bool], limit: int = _MAX_RECENT) -> list[UnstartedJob]:
    """Return the newest trainings that did not start, newest first. A later sample shows that a later try has."""
    sample, ti = aliased(Stored), TaskInstance
    query = (
        select(ti.dag_id, ti.run_id, ti.task_id, ti.map_index, ti.state, Stored.value)
        .join(Stored, same_task())
        .outerjoin(sample, and_(same_task(sample), sample.key == PACE))
        .where(Stored.key == NOT_STARTED, ti.state.in_(_UNSTARTED_STATES), condition)
        .where(or_(sample.id.is_(None), sample.updated_at <= Stored.updated_at))
        .order_by(Stored.id.desc())
        .limit(limit)
    )
    found = [(row, StartFailure.read(parse(row.value))) for row in session.execute(query)]
    jobs = [
        UnstartedJob(
            dag_id=row.dag_id,
            run_id=row.run_id,
            task_id=row.task_id,
            map_index=row.map_index,
            state=row.state,
            at=failure.at,
            reason=failure.reason,
        )
        for row, failure in found
        if failure is not None
    ]
    return sorted(jobs, key=lambda job: job.at, reverse=True)


def _place(job: TrainingJob | UnstartedJob | Row[Any]) -> TaskKey:
    return (job.dag_id, job.run_id, job.task_id, job.map_index)


def same_task(stored: Any = Stored) -> ColumnElement[bool]:
    """Return the join condition between a value in the state store and its task instance."""
    return and_(
        stored.dag_id == TaskInstance.dag_id,
        stored.run_id == TaskInstance.run_id,
        stored.task_id == TaskInstance.task_id,
        stored.map_index == TaskInstance.map_index,
    )


def _select_samples() -> Select[Unpack[tuple[Any, ...]]]:
    return select_stored(PACE, DEADLINE, OUTPUT)


def select_stored(*keys: str) -> Select[Unpack[tuple[Any, ...]]]:
    """Return the query for stored values, each with its task instance."""
    return (
        select(
            TaskInstance.dag_id,
            TaskInstance.run_id,
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.operator,
            TaskInstance.state,
            TaskInstance.try_number,
            TaskInstance.start_date,
            TaskInstance.end_date,
            Stored.key,
            Stored.value,
            Stored.updated_at,
        )
        .join(Stored, same_task())
        .where(Stored.key.in_(keys))
        .order_by(TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index)
    )


def _to_jobs(rows: Iterable[Row[Any]]) -> list[TrainingJob]:
    """Group rows by task instance. Omit tasks without a sample, which do not train or have not started training."""
    tasks: dict[TaskKey, dict[str, Row[Any]]] = {}
    for row in rows:
        tasks.setdefault((row.dag_id, row.run_id, row.task_id, row.map_index), {})[row.key] = row
    started = [keys for keys in tasks.values() if PACE in keys]
    stored = ((keys, PaceSample.read(parse(keys[PACE].value))) for keys in started)
    return [to_job(keys[PACE], pace, keys.get(DEADLINE), keys.get(OUTPUT)) for keys, pace in stored if pace is not None]


def to_job(row: Row[Any], pace: PaceSample, deadline: Row[Any] | None, output: Row[Any] | None = None) -> TrainingJob:
    """Return the job of a row with the columns of a task instance, and of the rows with its deadline and its output."""
    current = None
    if deadline is not None:
        stored = StoredDeadline.read(parse(deadline.value))
        pending = row.updated_at < deadline.updated_at + _APPLIED_WITHIN and not stored.is_in_force(
            pace.origin, pace.deadline_in_force_s
        )
        current = CurrentDeadline(value=stored.value, by=stored.by, updated_at=deadline.updated_at, pending=pending)
    collected = None if output is None else CollectedOutput.read(parse(output.value))
    return TrainingJob(
        dag_id=row.dag_id,
        run_id=row.run_id,
        task_id=row.task_id,
        map_index=row.map_index,
        operator=row.operator,
        state=row.state,
        try_number=row.try_number,
        started_at=row.start_date,
        ended_at=row.end_date,
        deadline=current,
        pace=pace,
        warning=None if collected is None or pace.state != "finished" else collected.warning,
    )


def parse(value: str) -> Any:
    """Return a stored value, which any user may have written; ``None`` if no response can contain it."""
    try:
        parsed = json.loads(value)
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()  # fails for a lone surrogate, and for NaN
    except (ValueError, RecursionError):
        return None
    return parsed
