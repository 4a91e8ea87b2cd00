"""Reads the trainings and model versions of a period from Airflow's tables, for ``paceline.plugins.web.history``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import ColumnElement, and_, literal, select
from sqlalchemy.orm import Session

from paceline.contract import EVALUATION_XCOM, PACE, PROMOTION_XCOM, EvaluationResult, PromotionResult

from ._checks import StoredCheck, Subject, matches_registry
from .airflow_internals import DagRun, Stored, TaskInstance
from .jobs import same_task
from .overview import select_marked

_MAX_RUNS = 500
Run = tuple[str, str]


class RunTraining(BaseModel):
    """The training of a DAG run. ``state`` is that of its training tasks, or of the run if no job is stored."""

    dag_id: str
    run_id: str
    started_at: datetime
    ended_at: datetime | None
    state: str


class Version(BaseModel):
    """An evaluated version of a model. ``outcome`` is ``"evaluated"`` until a task has decided on its promotion."""

    at: datetime
    dag_id: str
    run_id: str
    model: str
    version: int
    outcome: Literal["promoted", "rejected", "evaluated"]
    reason: str


@dataclass(frozen=True)
class Span:
    """The runs with ``run_after`` from ``start`` to before ``end``; ``None`` for an open end."""

    start: datetime
    end: datetime | None

    def contains(self, column: Any) -> ColumnElement[bool]:
        """Return the condition that the time in a column is in this span."""
        return and_(column >= self.start, literal(True) if self.end is None else column < self.end)


def load_versions(
    session: Session, readable: Collection[str], subject: Subject, dags: Collection[str], span: Span
) -> list[Version]:
    """Return the versions of a model, or of all models of some DAGs, that were evaluated in a span; oldest first."""
    versions: dict[tuple[str, str, int], Version] = {}
    kinds: tuple[tuple[str, type[EvaluationResult | PromotionResult]], ...] = (
        (EVALUATION_XCOM, EvaluationResult),
        (PROMOTION_XCOM, PromotionResult),
    )
    for mark, kind in kinds:
        query, marked, result = select_marked(readable, mark)
        stored = result.value
        if subject.model is None:
            concerned: Any = marked.dag_id.in_(dags)
        else:
            of_model = stored["model"].as_string() == subject.model
            concerned = and_(of_model, matches_registry(subject, stored["registry"].as_string()))
        query = query.join(DagRun, DagRun.id == marked.dag_run_id).where(concerned, span.contains(DagRun.run_after))
        for row in session.execute(query.order_by(marked.timestamp.desc()).limit(_MAX_RUNS)):
            if (value := kind.read(row.value)) is None:
                continue  # the result of a subclass
            key = (str(value.registry), value.model, value.version)
            outcome: Literal["promoted", "rejected", "evaluated"] = "evaluated"
            if isinstance(value, PromotionResult):
                outcome = "promoted" if value.promoted else "rejected"
                if key in versions and versions[key].outcome != "evaluated":
                    continue  # a later decision on the same version
            versions[key] = Version(
                at=row.timestamp, dag_id=row.dag_id, run_id=row.run_id, model=value.model, version=value.version,
                outcome=outcome, reason=value.reason if isinstance(value, PromotionResult) else "",
            )  # fmt: skip
    return sorted(versions.values(), key=lambda version: version.at)


def load_trainings(
    session: Session, dags: Collection[str], span: Span, checks: Sequence[StoredCheck], versions: Sequence[Version]
) -> list[RunTraining]:
    """Return the trainings of some DAGs in a span, oldest first, at most one for each run.

    A run has trained if a training job of it is stored, or a check has started its training, or it has evaluated a
    version. Airflow deletes the state of jobs after a while, and training may be a task of another kind.
    """
    trainings = {(one.dag_id, one.run_id): one for one in _load_jobs(session, dags, span)}
    starts = {
        run: check.stored_at
        for check in checks
        if check.summary is not None and check.summary.retrain
        for run in check.run_ids.items()
    }
    ends = {(version.dag_id, version.run_id): version.at for version in versions}
    others = sorted({*starts, *ends} - trainings.keys())
    query = select(DagRun.dag_id, DagRun.run_id, DagRun.state, DagRun.start_date, DagRun.end_date)
    in_dags = query.where(DagRun.dag_id.in_({dag_id for dag_id, _ in others}))
    for row in session.execute(in_dags.where(DagRun.run_id.in_({run_id for _, run_id in others}))):
        run: Run = (row.dag_id, row.run_id)
        started_at = starts.get(run) or row.start_date
        if run in others and started_at is not None:
            state = "success" if run in ends else str(row.state)
            trainings[run] = RunTraining(
                dag_id=run[0], run_id=run[1], started_at=started_at, ended_at=ends.get(run, row.end_date), state=state
            )
    return sorted(trainings.values(), key=lambda training: training.started_at)


def _load_jobs(session: Session, dags: Collection[str], span: Span) -> list[RunTraining]:
    query = (
        select(
            TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.state, TaskInstance.start_date, TaskInstance.end_date
        )
        .join(Stored, same_task())
        .join(DagRun, and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id))
        .where(Stored.key == PACE, TaskInstance.dag_id.in_(dags), span.contains(DagRun.run_after))
        .where(TaskInstance.start_date.is_not(None))
        .order_by(TaskInstance.start_date.desc())
        .limit(_MAX_RUNS)
    )
    runs: dict[Run, list[Any]] = {}
    for row in session.execute(query):
        runs.setdefault((row.dag_id, row.run_id), []).append(row)
    return [
        RunTraining(
            dag_id=dag_id,
            run_id=run_id,
            started_at=min(row.start_date for row in rows),
            ended_at=None if any(row.end_date is None for row in rows) else max(row.end_date for row in rows),
            state=_joint_state([str(row.state) for row in rows]),
        )
        for (dag_id, run_id), rows in runs.items()
    ]


def _joint_state(states: Sequence[str]) -> str:
    """Return the state of several training tasks: the least final one, then a failure."""
    for state in states:
        if state not in ("success", "failed", "skipped", "upstream_failed", "removed"):
            return state
    return "failed" if "failed" in states else states[0]
