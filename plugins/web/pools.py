"""Routes that return the pools with an arbiter or with shared jobs, and what the page of one pool shows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta, timezone

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel, ConfigDict
from sqlalchemy import and_, func, not_, select, true, tuple_
from sqlalchemy.orm import Session

from paceline.contract import HISTORY, PACE, StoredHistory, Unit, unit_of
from paceline.control import CPU_QUANTUM

from ._allocations import Period, samples_of
from ._arbiters import PoolArbiter, find_arbiter
from ._shares import PoolShare, load_ended, load_shares
from .access import ReadableDags, can_read_tasks
from .airflow_internals import Pool, SessionDep, Stored, TaskInstance
from .jobs import TaskKey, TrainingJob, parse, same_task, to_job
from .lease import read_lease, read_leases
from .pool import has_job

router = APIRouter(tags=["Pools"])
_MAX_JOBS = 500
_MAX_HISTORIES = 100  # of at most 500 samples each
_NOT_STARTED = ("scheduled", "queued")


class PoolSummary(BaseModel):
    """A pool at the time ``at``, its arbiter, and the totals of all its jobs, also of those hidden from the caller.

    ``unit`` is what the numbers of devices count. ``held`` and ``training`` leave out jobs whose task has ended.
    """

    name: str
    at: datetime
    unit: Unit
    arbiter: PoolArbiter | None
    held: float
    committed: float
    training: int
    waiting: int


class SharedJob(BaseModel):
    """A job of a pool."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    job: TrainingJob
    lost: bool
    """Whether the task has ended without removing the job, so that its devices stay reserved."""
    held: float
    """The allocation by its newest sample."""
    granted: float | None
    """The largest allocation that the arbiter allows; ``null`` before the first grant."""
    committed: float
    """The upper bound on the allocation: no other job can get these devices."""
    reason: str | None
    promised: bool | None
    """Whether the arbiter has promised the deadline; ``null`` if it has not checked this deadline."""
    history: list[float] | None
    """Mean allocation in each interval; ``null`` if not read, because the pool has many jobs."""


class OtherJobs(BaseModel):
    """The totals of the jobs that the caller may not read, that publish no valid sample, or that exceed 500."""

    number: int
    waiting: int
    held: float
    committed: float
    history: list[float]


class PoolView(BaseModel):
    """A pool from ``begin`` to ``end``, with the jobs that have not ended, and those that have ended since."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    begin: datetime
    end: datetime
    interval_s: float
    unit: Unit
    """What the numbers of devices count."""
    slots: int | None
    """The slots of the Airflow pool, which limit its running and waiting tasks; ``null`` if it does not exist."""
    queued: int
    """Number of tasks that wait for a slot or for a worker."""
    arbiter: PoolArbiter | None
    jobs: list[SharedJob]
    others: OtherJobs
    histories_left_out: int
    """Number of jobs whose allocations over time are missing, because the pool has many."""


@router.get("/pools", dependencies=[can_read_tasks])
def pools(session: SessionDep, readable: ReadableDags) -> list[PoolSummary]:
    """Return the pools with an arbiter or with shared jobs, by name, that a DAG uses that the caller may read."""
    leases = {lease.pool: lease for lease in read_leases(session)}
    shares: dict[str, list[PoolShare]] = {name: [] for name in leases}
    for share in load_shares(session, true()):
        if share.task.pool in leases or (share.pace is not None and share.pace.shared):
            shares.setdefault(share.task.pool, []).append(share)
    used = _used_pools(session, shares, readable)
    found = []
    for name, jobs in sorted(shares.items()):
        arbiter = find_arbiter(session, leases[name], readable) if name in leases else None
        if name in used or (arbiter and arbiter.readable):
            found.append(
                PoolSummary(
                    name=name,
                    at=datetime.now(timezone.utc),
                    unit=_unit(arbiter, jobs),
                    arbiter=arbiter,
                    held=_sum(one.held for one in jobs if not one.lost),
                    committed=_sum(one.committed for one in jobs),
                    training=sum(one.held > 0 for one in jobs if not one.lost),
                    waiting=sum(one.waits for one in jobs),
                )
            )
    return found


@router.get(
    "/pools/{pool}",
    dependencies=[can_read_tasks],
    responses={404: {"description": "No such pool with an arbiter or with jobs, or none that the caller may read"}},
)
def pool_view(
    pool: str, session: SessionDep, readable: ReadableDags, hours: float = Query(6, gt=0, le=24 * 31)
) -> PoolView:
    """Return the arbiter of a pool, its jobs, and their allocations in the last ``hours``."""
    end = datetime.now(timezone.utc)
    period = Period(end - timedelta(hours=hours), end)
    in_pool = TaskInstance.pool == pool
    recent = and_(in_pool, TaskInstance.end_date >= period.begin)
    live, ended = load_shares(session, in_pool), load_ended(session, recent, _MAX_HISTORIES)
    arbiter = find_arbiter(session, read_lease(session, pool), readable)
    if not (_used_pools(session, [pool], readable) or (arbiter and arbiter.readable)):
        raise HTTPException(404, f"No DAG that you may read uses the pool {pool} for training jobs")
    live.sort(key=lambda share: (share.committed == 0, share.task.start_date is None, share.task.start_date))
    shares = [*live, *ended[: max(_MAX_HISTORIES - len(live), 0)]]
    histories = _read_histories(session, shares[:_MAX_HISTORIES], period)
    shown = [share for share in shares if share.task.dag_id in readable and share.pace is not None][:_MAX_JOBS]
    names = {share.key for share in shown}
    others = [share for share in shares if share.key not in names]
    stored = select(func.count()).select_from(Stored).join(TaskInstance, same_task()).where(Stored.key == PACE)
    number = len(live) + (session.scalar(stored.where(recent, not_(has_job()))) or 0)
    not_started = select(func.count()).where(in_pool, TaskInstance.state.in_(_NOT_STARTED))
    return PoolView(
        name=pool,
        begin=period.begin,
        end=end,
        interval_s=period.interval_s,
        unit=_unit(arbiter, shares),
        slots=session.scalar(select(Pool.slots).where(Pool.pool == pool)),
        queued=session.scalar(not_started) or 0,
        arbiter=arbiter,
        jobs=[_to_shared_job(share, histories.get(share.key)) for share in shown],
        others=_sum_up(others, [histories[share.key] for share in others if share.key in histories]),
        histories_left_out=max(number - _MAX_HISTORIES, 0),
    )


def _unit(arbiter: PoolArbiter | None, shares: Iterable[PoolShare]) -> Unit:
    """Return what the devices of a pool are. Only the jobs tell a share of GPUs from cores."""
    paces = [share.pace for share in shares if share.pace is not None]
    quanta = [pace.quantum for pace in paces]
    if arbiter is not None and arbiter.status is not None:
        quanta = [arbiter.status.quantum]
    return unit_of(min(quanta, default=CPU_QUANTUM), shares_gpus=any(pace.shares_gpus for pace in paces))


def _used_pools(session: Session, names: Iterable[str], readable: Collection[str]) -> set[str]:
    """Return those of the pools in which a job of a readable DAG has published a sample."""
    used = select(TaskInstance.pool).join(Stored, same_task()).where(Stored.key == PACE, TaskInstance.pool.in_(names))
    return set(session.scalars(used.where(TaskInstance.dag_id.in_(readable)).distinct()))


def _read_histories(session: Session, shares: Sequence[PoolShare], period: Period) -> dict[TaskKey, list[float]]:
    """Return the mean allocations of jobs."""
    task = (Stored.dag_id, Stored.run_id, Stored.task_id, Stored.map_index)
    is_of_job = tuple_(*task).in_([share.key for share in shares])  # a run may have thousands of other tasks
    query = select(*task, Stored.value).where(Stored.key == HISTORY, is_of_job)
    stored = {tuple(row[:4]): row.value for row in session.execute(query)}
    return {share.key: _history(share, stored.get(share.key), period) for share in shares if share.pace is not None}


def _history(share: PoolShare, stored: str | None, period: Period) -> list[float]:
    assert share.pace is not None
    samples = samples_of(share.pace, None if stored is None else StoredHistory.read(parse(stored)))
    if share.lost and not share.ended:
        samples = [*samples, (max(share.task.end_date or samples[-1][0], samples[-1][0]), share.committed)]
    return period.means(samples, until=share.pace.updated_at if share.ended else period.end)


def _to_shared_job(share: PoolShare, history: list[float] | None) -> SharedJob:
    assert share.pace is not None
    ceiling, deadline_s = share.ceiling, share.pace.deadline_s
    checked = ceiling is not None and deadline_s is not None and ceiling.has_result_for(deadline_s)
    return SharedJob(
        job=to_job(share.task, share.pace, share.deadline),
        lost=share.lost and not share.ended,
        held=share.held,
        granted=share.granted,
        committed=share.committed,
        reason=None if ceiling is None or ceiling.reason is None else ceiling.reason.text,
        promised=bool(ceiling.fits) if ceiling is not None and checked else None,
        history=history,
    )


def _sum_up(shares: Sequence[PoolShare], histories: Sequence[Sequence[float]]) -> OtherJobs:
    active = [share for share in shares if not share.ended]
    return OtherJobs(
        number=len(active),
        waiting=sum(share.waits for share in active),
        held=_sum(share.held for share in active if not share.lost),
        committed=_sum(share.committed for share in active),
        history=[_sum(values) for values in zip(*histories, strict=True)],
    )


def _sum(values: Iterable[float]) -> float:
    return round(sum(values), 4)
