"""Route with which the jobs of a triggerer write and read their live state, many of them in one request.

A trigger has no access to its task's state store, and no login. The process that steers a task's job proves itself by a
secret whose hash it has stored as an XCom of the task, which Airflow lets a trigger do. The newest hash counts, so that
a process whose job another process has taken over can no longer write. After the end of the task's try, the process
can still delete the keys of the job that it has removed, and store its last sample.
"""

from __future__ import annotations

import hmac
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_core import from_json
from sqlalchemy import ColumnElement, Select, and_, delete, insert, select, tuple_, update
from sqlalchemy.orm import Session

from paceline.contract import HISTORY, PACE, STEERING_XCOM, TASK_STATES, hash_secret

from .airflow_internals import SessionDep, Stored, TaskInstance, TaskInstanceState, XComModel
from .jobs import FINAL_STATES, same_task

router = APIRouter(tags=["Steering"])
_MOST_JOBS = 1_000
_MOST_TASKS = 1_000  # those of a fleet
_MOST_BYTES = 32 * 2**20  # 100 jobs with long histories have less than a quarter
_PLACE = ("dag_run_id", "dag_id", "run_id", "task_id", "map_index", "expires_at")
_Task = tuple[str, str, str, int]  # DAG, run, task and map index


def _check_json(text: str) -> str:
    from_json(text, allow_inf_nan=False)
    return text


class SteeredJob(BaseModel):
    """What the process that steers a job writes, as JSON texts, and reads. ``None`` deletes a key.

    ``task_instance_id`` is Airflow's identifier of the task's try, ``secret`` the text whose hash is the task's XCom.
    ``tasks`` are other tasks of the run, whose states are the value ``TASK_STATES`` of the answer.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    task_instance_id: UUID
    secret: str
    write: dict[str, Annotated[str, AfterValidator(_check_json)] | None] = Field(default_factory=dict)
    read: list[str] = Field(default_factory=list)
    tasks: list[str] = Field(default_factory=list, max_length=_MOST_TASKS)

    @property
    def task(self) -> _Task:
        """The task of the job."""
        return (self.dag_id, self.run_id, self.task_id, self.map_index)

    @property
    def keys(self) -> list[str]:
        """The keys of the answer."""
        return [*self.read, TASK_STATES] if self.tasks else self.read


class SteeredJobs(BaseModel):
    """The jobs that one process steers."""

    jobs: list[SteeredJob] = Field(max_length=_MOST_JOBS)


class JobAnswer(BaseModel):
    """The values of a job that were to be read, as JSON texts; ``None`` if the process no longer steers the job.

    ``over`` says whether the task's try has ended. If not, another process steers the job or continues the try.
    """

    values: dict[str, str | None] | None
    over: bool = False


async def _read_body(request: Request) -> bytes:
    """Return the body. Nobody has to log in here, so that its size is limited."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, f"expected at most {_MOST_BYTES} bytes")
    return bytes(body)


def _parse(body: Annotated[bytes, Depends(_read_body)]) -> SteeredJobs:
    """Parse the body in a thread: FastAPI would do it in the server's event loop, and several times as slowly."""
    try:
        return SteeredJobs.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False, include_context=False)) from error


@router.post("/steering")
def steer(batch: Annotated[SteeredJobs, Depends(_parse)], session: SessionDep) -> list[JobAnswer]:
    """Write and read the live state of several jobs, in one transaction, as far as their secrets are right.

    The answers are in the order of the jobs. A new key is stored only beside other keys of its job.
    """
    tasks = _load_tasks(session, batch.jobs)
    rights = [_check(job, tasks.get(job.task)) for job in batch.jobs]
    for job, right in zip(batch.jobs, rights, strict=True):
        if right.over:
            job.write = {key: value for key, value in job.write.items() if value is None or key in (PACE, HISTORY)}
    _write(session, [job for job, right in zip(batch.jobs, rights, strict=True) if right.writes], tasks)
    steered = [job for job, right in zip(batch.jobs, rights, strict=True) if right.steers]
    found = _read(session, steered, tasks) | _read_states(session, steered)
    return [
        JobAnswer(
            values={key: found.get((job.task, key)) for key in job.keys} if right.steers else None, over=right.over
        )
        for job, right in zip(batch.jobs, rights, strict=True)
    ]


@dataclass(frozen=True)
class _Right:
    """What a process may do with its job."""

    over: bool
    steers: bool = False
    writes: bool = False


def _check(job: SteeredJob, task: Any) -> _Right:
    if task is None:
        return _Right(over=True)
    over = str(task.id) != str(job.task_instance_id) or task.state in FINAL_STATES
    if not _is_right(job.secret, task.hash):
        return _Right(over)
    is_deferred = task.state == TaskInstanceState.DEFERRED
    # A new try writes keys of its own. It deletes the hash soon after its start.
    has_begun = is_deferred or task.state == TaskInstanceState.RUNNING
    return _Right(over, steers=is_deferred and not over, writes=not has_begun if over else is_deferred)


def _is_right(secret: str, stored: object) -> bool:
    return isinstance(stored, str) and hmac.compare_digest(
        hash_secret(secret).encode(), stored.encode(errors="replace")
    )


def _load_tasks(session: Session, jobs: Sequence[SteeredJob]) -> dict[_Task, Any]:
    """Return the identifier, the state and the stored hash of each job's task.

    Databases find many tasks faster by their identifiers than by their names. Only the tasks that have got another
    identifier since, because they were cleared, are looked for by their names.
    """
    ti, x = TaskInstance, XComModel
    query = select(ti.id, ti.dag_id, ti.run_id, ti.task_id, ti.map_index, ti.state, x.value.label("hash")).outerjoin(
        x, and_(same_task(x), x.key == STEERING_XCOM)
    )
    tasks = {_task(row): row for row in session.execute(query.where(ti.id.in_({job.task_instance_id for job in jobs})))}
    others = {job.task for job in jobs} - tasks.keys()
    if others:
        tasks |= {_task(row): row for row in session.execute(query.where(_is_of(ti, others)))}
    return tasks


def _select_stored(jobs: Sequence[SteeredJob], tasks: Mapping[_Task, Any], *columns: Any) -> Select[Any]:
    """Return the query for ``columns`` of the jobs' live states, which are stored at the jobs' tasks."""
    ids = {tasks[job.task].id for job in jobs}
    return select(*columns).join_from(TaskInstance, Stored, same_task()).where(TaskInstance.id.in_(ids))


def _write(session: Session, jobs: Sequence[SteeredJob], tasks: Mapping[_Task, Any]) -> None:
    now = datetime.now(timezone.utc)
    values = {(job.task, key): value for job in jobs for key, value in job.write.items()}
    if not values:
        return
    s = Stored
    columns = (s.id, s.dag_run_id, s.dag_id, s.run_id, s.task_id, s.map_index, s.key, s.expires_at)
    rows = session.execute(_select_stored([job for job in jobs if job.write], tasks, *columns)).all()
    ids = {(_task(row), row.key): row.id for row in rows}
    beside = {_task(row): row for row in rows}
    removed = {place for place, value in values.items() if value is None}
    if removed & ids.keys():
        session.execute(delete(s).where(s.id.in_([ids[place] for place in removed if place in ids])))
    values = {place: value for place, value in values.items() if place not in removed}
    changed = [{"id": ids[place], "value": value, "updated_at": now} for place, value in values.items() if place in ids]
    added = [
        {name: getattr(beside[task], name) for name in _PLACE} | {"key": key, "value": value, "updated_at": now}
        for (task, key), value in values.items()
        if (task, key) not in ids and task in beside
    ]
    if changed:
        session.execute(update(Stored), changed)
    if added:
        session.execute(insert(Stored), added)


def _read(session: Session, jobs: Sequence[SteeredJob], tasks: Mapping[_Task, Any]) -> dict[tuple[_Task, str], str]:
    of_keys: dict[frozenset[str], list[SteeredJob]] = defaultdict(list)
    found, s = {}, Stored
    for job in jobs:
        of_keys[frozenset(job.read)].append(job)  # a job that begins reads its history, the others a few words
    for keys in filter(None, of_keys):
        columns = (s.dag_id, s.run_id, s.task_id, s.map_index, s.key, s.value)
        rows = session.execute(_select_stored(of_keys[keys], tasks, *columns).where(s.key.in_(keys)))
        found.update({(_task(row), row.key): row.value for row in rows})
    return found


def _read_states(session: Session, jobs: Sequence[SteeredJob]) -> dict[tuple[_Task, str], str]:
    """Return the states of the jobs' other tasks, as one text for each job."""
    asking, ti = [job for job in jobs if job.tasks], TaskInstance
    if not asking:
        return {}
    others = {(job.dag_id, job.run_id, task_id, -1) for job in asking for task_id in job.tasks}
    rows = session.execute(select(ti.dag_id, ti.run_id, ti.task_id, ti.map_index, ti.state).where(_is_of(ti, others)))
    states = {_task(row): row.state for row in rows}
    places = {job.task: {task_id: (job.dag_id, job.run_id, task_id, -1) for task_id in job.tasks} for job in asking}
    return {
        (task, TASK_STATES): json.dumps({name: states[place] for name, place in those.items() if place in states})
        for task, those in places.items()
    }


def _is_of(table: Any, tasks: Collection[_Task]) -> ColumnElement[bool]:
    return tuple_(table.dag_id, table.run_id, table.task_id, table.map_index).in_(tasks)


def _task(row: Any) -> _Task:
    return (row.dag_id, row.run_id, row.task_id, row.map_index)
