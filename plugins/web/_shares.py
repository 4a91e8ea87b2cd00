"""Reads the jobs of a pool with what each has, may have and waits for, for ``.pools``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Row, Select, not_
from sqlalchemy.orm import Session

from paceline.contract import CEILING, CONTAINER, DEADLINE, PACE, Ceiling, PaceSample
from paceline.errors import InvalidInputError

from .airflow_internals import TaskInstance
from .jobs import FINAL_STATES, TaskKey, parse, select_stored
from .pool import has_job

if TYPE_CHECKING:
    from typing_extensions import Unpack

ENDED = ("finished", "failed")
_WAITING = ("waiting", "preempted")


@dataclass(frozen=True)
class PoolShare:
    """The task of a job in a pool, with its newest sample and its ceiling, if it has valid ones.

    ``lost`` is whether the task has ended without removing the job.
    """

    task: Row[Any]
    pace: PaceSample | None
    ceiling: Ceiling | None
    deadline: Row[Any] | None
    lost: bool

    @property
    def key(self) -> TaskKey:
        """The names of the task instance."""
        return (self.task.dag_id, self.task.run_id, self.task.task_id, self.task.map_index)

    @property
    def ended(self) -> bool:
        """Whether the job needs no devices any more."""
        over = self.task.state in FINAL_STATES and not self.lost
        return over or (self.pace is not None and self.pace.state in ENDED)

    @property
    def held(self) -> float:
        """The allocation by the newest sample."""
        if self.ended or self.pace is None:
            return 0.0
        in_force = 0 if self.pace.state == "preempted" else self.pace.devices_in_force or 0
        return max(self.pace.devices, in_force)

    @property
    def granted(self) -> float | None:
        """The largest allocation that the job may use from now on; ``None`` before its first grant."""
        ceiling = self._ceiling
        if ceiling is not None:
            return ceiling.devices
        return None if self.pace is None or self.pace.shared else self.pace.max_devices

    @property
    def committed(self) -> float:
        """The upper bound on the allocation, as the arbiter counts it: no other job can get these devices."""
        ceiling = self._ceiling
        if self.ended:
            return 0.0
        if ceiling is None:
            return max(self.granted or 0.0, self.held)
        if self.lost or self.pace is None:
            return ceiling.committed_devices(self.held, 0.0, applied_grant=-1, applied_ceiling=None)
        return ceiling.committed_devices(self.held, self.pace.max_devices, self.pace.grant, self.pace.ceiling)

    @property
    def waits(self) -> bool:
        """Whether the job waits for devices."""
        return self.pace is not None and not self.lost and not self.ended and self.pace.state in _WAITING

    @property
    def _ceiling(self) -> Ceiling | None:
        pace, ceiling = self.pace, self.ceiling
        if pace is not None and pace.shared and (ceiling is None or ceiling.grant == 0):
            # The ceiling was deleted or set by a user: the last grant of the arbiter remains in effect.
            return None if pace.ceiling is None else Ceiling(pace.ceiling, pace.grant)
        return None if pace is None and ceiling is not None and ceiling.grant == 0 else ceiling


def load_shares(session: Session, condition: ColumnElement[bool]) -> list[PoolShare]:
    """Return the jobs that have not ended, or have lost their task, and whose task instances meet a condition."""
    return _load(session, select_stored(PACE, CEILING, DEADLINE, CONTAINER).where(has_job(), condition))


def load_ended(session: Session, condition: ColumnElement[bool], limit: int) -> list[PoolShare]:
    """Return the jobs that have ended last, of those whose task instances meet a condition."""
    query = select_stored(PACE).where(not_(has_job()), condition)
    return _load(session, query.order_by(None).order_by(TaskInstance.end_date.desc()).limit(limit))


def _load(session: Session, query: Select[Unpack[tuple[Any, ...]]]) -> list[PoolShare]:
    tasks: dict[TaskKey, dict[str, Row[Any]]] = {}
    for row in session.execute(query.add_columns(TaskInstance.pool)):
        tasks.setdefault((row.dag_id, row.run_id, row.task_id, row.map_index), {})[row.key] = row
    return list(_shares(tasks.values()))


def _shares(tasks: Iterable[dict[str, Row[Any]]]) -> Iterable[PoolShare]:
    for rows in tasks:
        task = next(iter(rows.values()))
        pace = PaceSample.read(parse(rows[PACE].value)) if PACE in rows else None
        lost = task.state in FINAL_STATES and CONTAINER in rows
        yield PoolShare(task, pace, _read_ceiling(rows.get(CEILING)), rows.get(DEADLINE), lost)


def _read_ceiling(row: Row[Any] | None) -> Ceiling | None:
    try:
        return None if row is None else Ceiling.read(parse(row.value))
    except InvalidInputError:
        return None
