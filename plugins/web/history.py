"""Routes that return the history of a model's drift, from what Airflow has stored: XComs, asset events and jobs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, model_validator
from sqlalchemy import func, select

from ._cells import HistoryRow, rows_of
from ._checks import StoredCheck, Subject, load_checks, newest_checks, select_checks, select_events
from ._trainings import RunTraining, Span, Version, load_trainings, load_versions
from .access import ReadableDags, can_read_results
from .airflow_internals import SessionDep
from .overview import MAX_AGE

if TYPE_CHECKING:
    from typing_extensions import Self

router = APIRouter(tags=["Drift"])
_MAX_SUBJECTS = 500


class Watched(BaseModel):
    """A subject with drift checks, the number of its recent checks, and the time of the newest."""

    subject: Subject
    checks: int
    newest_at: datetime


class HistoryCheck(BaseModel):
    """A drift check that refers to the time ``at`` and ended at ``stored_at``. ``retrain``: whether training started.

    ``run_id`` is the run of the sensor, or a run that the alarm of an event trigger has started.
    """

    at: datetime
    stored_at: datetime
    dag_id: str
    run_id: str
    task_id: str | None
    map_index: int
    verdict: str
    reason: str
    retrain: bool


class DriftHistory(BaseModel):
    """Checks, oldest first; a row of cells for each feature; and the trainings and versions of the same period.

    ``features_left_out`` is the number of further features. ``older`` is whether there are older checks.
    """

    checks: list[HistoryCheck]
    rows: list[HistoryRow]
    features_left_out: int
    older: bool
    trainings: list[RunTraining]
    versions: list[Version]


@router.get("/drift/subjects", dependencies=[can_read_results])
def subjects(session: SessionDep, readable: ReadableDags) -> list[Watched]:
    """Return the models, tasks and assets with drift checks in the last 90 days, the most recently checked first."""
    found: dict[Subject, Watched] = {}
    for checks in (select_checks(readable).subquery(), select_events(readable).subquery()):
        keys = [checks.c[name] for name in Subject.model_fields]
        newest = func.max(checks.c.timestamp)
        query = (
            select(*keys, newest.label("newest_at"), func.count().label("number"))
            .where(checks.c.timestamp > datetime.now(timezone.utc) - MAX_AGE)
            .group_by(*keys)
            .order_by(newest.desc())
            .limit(_MAX_SUBJECTS)
        )
        for row in session.execute(query):
            subject = Subject.model_validate(row, from_attributes=True).only_model()
            other = found.get(subject, Watched(subject=subject, checks=0, newest_at=row.newest_at))
            newest_at = max(other.newest_at, row.newest_at)
            found[subject] = Watched(subject=subject, checks=other.checks + row.number, newest_at=newest_at)
    return sorted(found.values(), key=lambda watched: watched.newest_at, reverse=True)


class HistoryQuery(Subject):
    """The subject of a history, and which of its checks to return."""

    offset: int = Field(0, ge=0, le=2000)
    limit: int = Field(60, ge=1, le=200)

    @model_validator(mode="after")
    def _names_a_subject(self) -> Self:
        if not (self.model or self.asset or (self.dag_id and self.task_id)):
            raise ValueError("expected a model, a dag_id with a task_id, or an asset")
        return self


@router.get("/drift/history", dependencies=[can_read_results])
def history(session: SessionDep, readable: ReadableDags, query: Annotated[HistoryQuery, Query()]) -> DriftHistory:
    """Return ``limit`` checks of a subject, without the newest ``offset``; and the trainings and versions since."""
    keys, newer, older = newest_checks(session, readable, query, query.offset, query.limit)
    if not keys:
        return DriftHistory(checks=[], rows=[], features_left_out=0, older=False, trainings=[], versions=[])
    checks = load_checks(session, readable, keys)
    span = Span(keys[-1].time, newer)
    dags = {dag_id for check in checks for dag_id in check.run_ids}
    versions = load_versions(session, readable, query, dags, span)
    dags |= {version.dag_id for version in versions}
    trainings = load_trainings(session, dags, span, checks, versions)
    rows, left_out = rows_of(checks)
    return DriftHistory(
        checks=[_to_check(check) for check in checks],
        rows=rows,
        features_left_out=left_out,
        older=older,
        trainings=trainings,
        versions=versions,
    )


def _to_check(check: StoredCheck) -> HistoryCheck:
    dag_id, run_id = next(iter(check.run_ids.items()))
    summary = check.summary
    return HistoryCheck(
        at=check.at,
        stored_at=check.stored_at,
        dag_id=dag_id,
        run_id=run_id,
        task_id=check.task_id,
        map_index=check.map_index,
        verdict=summary.verdict if summary else "unknown",
        reason=summary.reason if summary else "",
        retrain=summary is not None and summary.retrain,
    )
