"""Reads drift checks from Airflow's tables: XComs of sensors, and asset events of event triggers.

``paceline.plugins.web.history`` calls these functions. Checks are ordered by the time of their run: a backfill checks
old data today.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import ColumnElement, Select, String, and_, cast, literal, null, or_, select, tuple_
from sqlalchemy.orm import Session

from paceline.contract import DRIFT_XCOM, DriftReport, DriftSummary
from paceline.errors import InvalidInputError

from .airflow_internals import XCOM_RETURN_KEY, AssetEvent, AssetModel, DagRun, XComModel, created_runs
from .overview import select_marked

if TYPE_CHECKING:
    from typing_extensions import Unpack

_REPORT_KEY = "report"
_NOTHING = cast(null(), String)


class Subject(BaseModel):
    """What a history is about: a model; a task whose sensor names no model; or the asset of such an event trigger."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)

    model: str | None = None
    registry: str | None = None
    dag_id: str | None = None
    task_id: str | None = None
    asset: str | None = None

    def only_model(self) -> Subject:
        """Return the model without the places of its checks; for checks without a model, return the subject."""
        return Subject(model=self.model, registry=self.registry) if self.model else self


@dataclass(frozen=True)
class CheckKey:
    """Place of a stored check: a task instance, or an asset event. ``time`` is the time of the run or of the event."""

    time: datetime
    dag_run_id: int = 0
    task_id: str = ""
    map_index: int = -1
    event_id: int | None = None


@dataclass(frozen=True)
class StoredCheck:
    """A check as Airflow has stored it at ``stored_at``; it refers to the time ``at``.

    Its ``summary`` and ``report`` are ``None`` if they are not stored, or a user has stored another value.
    ``run_ids`` are its DAG runs by DAG: the sensor's run, or the runs that the event has started.
    """

    at: datetime
    stored_at: datetime
    run_ids: dict[str, str]
    task_id: str | None
    map_index: int
    summary: DriftSummary | None
    report: DriftReport | None = None


def select_checks(readable: Collection[str]) -> Select[Unpack[tuple[Any, ...]]]:
    """Return the query for the checks of sensors in the ``readable`` DAGs, with the columns of ``Subject``."""
    query, marked, result = select_marked(readable, DRIFT_XCOM)
    return query.with_only_columns(
        marked.dag_run_id,
        marked.dag_id,
        marked.task_id,
        marked.map_index,
        marked.timestamp,
        _NOTHING.label("asset"),
        result.value["model"].as_string().label("model"),
        result.value["registry"].as_string().label("registry"),
    )


def select_events(readable: Collection[str]) -> Select[Unpack[tuple[Any, ...]]]:
    """Return the query for the events of triggers that started a run of a ``readable`` DAG, as ``select_checks``."""
    started = (
        select(DagRun.id)
        .join(created_runs, created_runs.c.dag_run_id == DagRun.id)
        .where(created_runs.c.event_id == AssetEvent.id, DagRun.dag_id.in_(readable))
        .exists()
    )
    return (
        select(
            AssetEvent.id,
            _NOTHING.label("dag_id"),
            _NOTHING.label("task_id"),
            AssetEvent.timestamp,
            AssetModel.name.label("asset"),
            _payload("model").label("model"),
            _payload("registry").label("registry"),
        )
        .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        .where(_payload("verdict").is_not(None), started)
    )


def newest_checks(
    session: Session, readable: Collection[str], subject: Subject, offset: int, limit: int
) -> tuple[list[CheckKey], datetime | None, bool]:
    """Return the keys of ``limit`` checks after the newest ``offset``, newest first.

    Also return the time of the next newer check (``None`` without one), and whether there are older checks.
    """
    number = offset + limit + 1
    checks, events = select_checks(readable).subquery(), select_events(readable).subquery()
    of_tasks = (
        select(checks, DagRun.run_after)
        .join(DagRun, DagRun.id == checks.c.dag_run_id)
        .where(_matches(subject, checks.c))
        .order_by(DagRun.run_after.desc(), checks.c.timestamp.desc())
        .limit(number)
    )
    of_events = select(events).where(_matches(subject, events.c)).order_by(events.c.timestamp.desc()).limit(number)
    found = [CheckKey(row.run_after, row.dag_run_id, row.task_id, row.map_index) for row in session.execute(of_tasks)]
    found += [CheckKey(row.timestamp, event_id=row.id) for row in session.execute(of_events)]
    found.sort(key=lambda key: key.time, reverse=True)
    newer = found[offset - 1].time if offset and offset <= len(found) else None
    return found[offset : offset + limit], newer, len(found) > offset + limit


def load_checks(session: Session, readable: Collection[str], keys: Sequence[CheckKey]) -> list[StoredCheck]:
    """Return the checks with these keys, oldest first."""
    tasks = [(key.dag_run_id, key.task_id, key.map_index) for key in keys if key.event_id is None]
    events = [key.event_id for key in keys if key.event_id is not None]
    checks = [*_load_task_checks(session, tasks), *_load_event_checks(session, readable, events)]
    return sorted(checks, key=lambda check: check.at)


def _load_task_checks(session: Session, keys: list[tuple[int, str, int]]) -> list[StoredCheck]:
    x = XComModel
    stored = session.execute(
        select(x.dag_run_id, x.dag_id, x.run_id, x.task_id, x.map_index, x.key, x.value, x.timestamp).where(
            x.key.in_((XCOM_RETURN_KEY, _REPORT_KEY)), tuple_(x.dag_run_id, x.task_id, x.map_index).in_(keys)
        )
    )
    rows: dict[tuple[int, str, int], dict[str, Any]] = {}
    for row in stored:
        rows.setdefault((row.dag_run_id, row.task_id, row.map_index), {})[row.key] = row
    checks = []
    for (_, task_id, map_index), one in rows.items():
        if (result := one.get(XCOM_RETURN_KEY)) is None:
            continue
        summary = DriftSummary.read(result.value)
        checks.append(
            StoredCheck(
                at=(summary and summary.at) or result.timestamp,
                stored_at=result.timestamp,
                run_ids={result.dag_id: result.run_id},
                task_id=task_id,
                map_index=map_index,
                summary=summary,
                report=_read_report(one[_REPORT_KEY].value) if _REPORT_KEY in one else None,
            )
        )
    return checks


def _load_event_checks(session: Session, readable: Collection[str], ids: list[int]) -> list[StoredCheck]:
    stored = session.execute(
        select(AssetEvent.id, AssetEvent.extra, AssetEvent.timestamp, DagRun.dag_id, DagRun.run_id)
        .join(created_runs, created_runs.c.event_id == AssetEvent.id)
        .join(DagRun, DagRun.id == created_runs.c.dag_run_id)
        .where(AssetEvent.id.in_(ids), DagRun.dag_id.in_(readable))
        .order_by(DagRun.id)
    )
    checks: dict[int, StoredCheck] = {}
    for row in stored:
        summary = DriftSummary.read(row.extra["payload"])
        check = checks.setdefault(row.id, StoredCheck(row.timestamp, row.timestamp, {}, None, -1, summary))
        check.run_ids[row.dag_id] = row.run_id
    return list(checks.values())


def _matches(subject: Subject, columns: Any) -> ColumnElement[bool]:
    if subject.model is None:
        place = {key: getattr(subject, key) for key in ("dag_id", "task_id", "asset")}
        return and_(columns.model.is_(None), *(columns[key] == value for key, value in place.items() if value))
    return and_(columns.model == subject.model, matches_registry(subject, columns.registry))


def matches_registry(subject: Subject, column: Any) -> ColumnElement[bool]:
    """Return the condition that a stored registry is that of the subject; either may be unknown."""
    return literal(True) if subject.registry is None else or_(column == subject.registry, column.is_(None))


def _payload(key: str) -> Any:
    return AssetEvent.extra[("payload", key)].as_string()


def _read_report(value: object) -> DriftReport | None:
    try:
        return DriftReport.from_dict(value)
    except InvalidInputError:
        return None
