"""The history of a model's drift contains what sensors, triggers, jobs, evaluations and promotions have stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowSkipException
from airflow.utils.types import DagRunType
from pydantic import ValidationError
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.orm import Session

from paceline.contract import DRIFT_XCOM, EVALUATION_XCOM, PACE, PROMOTION_XCOM, JointDrift
from paceline.drift import DriftReport, DriftSettings, FeatureDrift, FeatureSettings, compare
from paceline.plugins.web._cells import MAX_FEATURES
from paceline.plugins.web._checks import select_checks, select_events
from paceline.plugins.web.history import DriftHistory, HistoryQuery, history, subjects
from paceline.sensors import DriftEventTrigger, DriftSensor
from paceline.sensors._decision import TriggerState

NOW = datetime.now(timezone.utc)
DAY = timedelta(days=1)
Push = Callable[..., Any]


def start_task(
    session: Session,
    run_after: datetime,
    task_id: str = "drift",
    dag_id: str = "retrain",
    started: datetime | None = None,
) -> Push:
    """Store a task instance in the run of its DAG at a time, and return a function that stores the instance's XComs."""
    run_id = f"scheduled__{run_after.isoformat()}"
    with DAG(dag_id, schedule=None):
        task = BaseOperator(task_id=task_id)
    if session.query(DagRun).filter_by(dag_id=dag_id, run_id=run_id).first() is None:
        run = DagRun(
            dag_id=dag_id, run_id=run_id, run_type=DagRunType.SCHEDULED, run_after=run_after, start_date=run_after
        )
        session.add(run)
    instance = TaskInstance(task, dag_version_id=None, run_id=run_id)
    instance.start_date, instance.state = started, "success"
    session.add(instance)
    session.flush()
    keys = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id}
    return partial(XComModel.set, **keys, serialize=False, session=session)


def write(path: Path, shift: float, seed: int = 1) -> str:
    random = np.random.default_rng(seed)
    pd.DataFrame({"temp": random.normal(shift, 1, 300), "wind": random.normal(0, 1, 300)}).to_csv(path, index=False)
    return str(path)


def check_drift(session: Session, folder: Path, run_after: datetime, shift: float, **options: Any) -> None:
    """Run a real sensor in a run of its DAG, and store its XComs."""
    push = start_task(session, run_after)
    sensor = DriftSensor(
        task_id="drift", reference=write(folder / "reference.csv", 0.0, seed=2),
        current=write(folder / "current.csv", shift), on_no_drift="skip", **options,
    )  # fmt: skip
    ti = SimpleNamespace(dag_id="retrain", run_id="r", task_id="drift", map_index=-1, xcom_push=push)
    try:
        result = sensor.poke({"ti": ti, "dag_run": SimpleNamespace(run_after=run_after)})  # type: ignore[typeddict-item]
    except AirflowSkipException:
        return
    push(key=XCOM_RETURN_KEY, value=result.xcom_value)


def store_check(session: Session, run_after: datetime, report: DriftReport | None = None, **summary: Any) -> None:
    push = start_task(session, run_after)
    push(key=DRIFT_XCOM, value=True)
    push(key=XCOM_RETURN_KEY, value={**(report.summary().to_json() if report else {}), **summary})
    if report:
        push(key="report", value=report.to_dict())


def ask(session: Session, **query: Any) -> DriftHistory:
    return history(session, {"retrain", "nightly"}, HistoryQuery(**query))


def test_checks_training_and_versions_of_a_model_are_on_one_time_axis(any_session: Session, tmp_path: Path) -> None:
    session = any_session
    days = [NOW - number * DAY for number in (3, 2, 1)]
    for day, shift in zip(days, (0.0, 2.0, 0.0), strict=True):
        check_drift(session, tmp_path, day, shift, model="churn", registry="models")
    start_task(session, days[1], "train", started=days[1])
    session.add(
        TaskStateStoreModel(
            dag_id="retrain", run_id=f"scheduled__{days[1].isoformat()}", task_id="train", map_index=-1, key=PACE,
            value="{}", dag_run_id=session.query(DagRun.id).filter_by(run_after=days[1]).scalar(),
        )
    )  # fmt: skip
    version = {"model": "churn", "registry": "models", "version": 2}
    scores = {"metric": "auc", "challenger": 0.8, "champion": None, "champion_version": None, "improvement": None}
    decision = {"promoted": True, "verdict": "better", "reason": "better by 0.1"}
    champions = {"champion_version": 2, "previous_version": 1}
    for task_id, mark, result in (
        ("evaluate", EVALUATION_XCOM, version | scores),
        ("promote", PROMOTION_XCOM, version | decision | champions),
        ("other", EVALUATION_XCOM, version | scores | {"model": "price"}),
        ("subclass", EVALUATION_XCOM, version | {"version": 7, "score": 0.8}),
        ("registry", EVALUATION_XCOM, version | scores | {"registry": "other"}),
    ):
        push = start_task(session, days[1], task_id)
        push(key=mark, value=True)
        push(key=XCOM_RETURN_KEY, value=result)

    found = ask(session, model="churn", registry="models")
    assert [(check.at, check.verdict, check.retrain) for check in found.checks] == [
        (days[0], "no drift", False),
        (days[1], "drift", True),
        (days[2], "no drift", False),
    ]
    temp = found.rows[0]
    assert (temp.name, [cell and cell.verdict for cell in temp.cells]) == ("temp", ["no drift", "drift", "no drift"])
    assert temp.cells[1] is not None
    assert (temp.cells[1].effect or 0) > 0.5
    assert temp.cells[1].threshold == DriftSettings().effect_threshold
    assert [(one.started_at, one.state) for one in found.trainings] == [(days[1], "success")]
    assert [(one.version, one.outcome, one.reason) for one in found.versions] == [(2, "promoted", "better by 0.1")]
    (watched,) = subjects(session, {"retrain"})
    assert watched.model_dump(exclude={"newest_at"}) == {
        "subject": {"model": "churn", "registry": "models", "dag_id": None, "task_id": None, "asset": None},
        "checks": 3,
    }


def test_run_whose_job_is_no_longer_stored_has_trained_if_its_check_started_training(session: Session) -> None:
    store_check(session, NOW, DriftReport("drift", "", 9, 9), retrain=True)
    (training,) = ask(session, dag_id="retrain", task_id="drift").trainings
    assert (training.run_id, training.state) == (f"scheduled__{NOW.isoformat()}", "queued")


def test_sensors_without_a_model_are_grouped_by_task_with_the_versions_of_their_dag(session: Session) -> None:
    store_check(session, NOW, DriftReport("no drift", "", 9, 9), model=None)
    store_check(session, NOW - DAY, DriftReport("no drift", "", 9, 9), model="churn", registry=None)
    push = start_task(session, NOW, "evaluate")
    push(key=EVALUATION_XCOM, value=True)
    scores = {"metric": "auc", "challenger": 0.8, "champion": None, "champion_version": None, "improvement": None}
    push(key=XCOM_RETURN_KEY, value={"model": "price", "registry": "models", "version": 4, **scores})
    found = ask(session, dag_id="retrain", task_id="drift")
    assert len(found.checks) == 1
    assert [(one.model, one.version, one.outcome) for one in found.versions] == [("price", 4, "evaluated")]
    assert {watched.subject.model for watched in subjects(session, {"retrain"})} == {None, "churn"}
    with pytest.raises(ValidationError, match="expected a model, a dag_id with a task_id, or an asset"):
        HistoryQuery(dag_id="retrain")


def test_checks_of_a_dag_that_the_user_may_not_read_are_absent(session: Session) -> None:
    store_check(session, NOW, DriftReport("drift", "", 9, 9), model="churn", retrain=True)
    assert subjects(session, {"nightly"}) == []
    assert history(session, {"nightly"}, HistoryQuery(model="churn")).checks == []


def test_history_has_pages_in_the_order_of_the_runs_and_states_what_is_left_out(any_session: Session) -> None:
    session = any_session
    features = tuple(FeatureDrift(f"f{n}", "numeric", "no drift", effect=n / 100) for n in range(MAX_FEATURES + 5))
    drifted = FeatureDrift("small", "numeric", "drift", effect=0.001)
    days = [NOW - number * DAY for number in (1, 4, 2, 3)]  # as parallel runs of a backfill end
    for day in days:
        report = DriftReport("drift", "", 9, 9, (drifted, *features))
        store_check(session, day, report, model="churn", at=day.isoformat())
    newest, oldest = (ask(session, model="churn", offset=offset, limit=2) for offset in (0, 2))
    assert [check.at for check in newest.checks] == [days[2], days[0]]
    assert [check.at for check in oldest.checks] == [days[1], days[3]]
    assert (newest.older, oldest.older) == (True, False)
    assert [row.name for row in newest.rows[:2]] == ["small", f"f{MAX_FEATURES + 4}"]
    assert (len(newest.rows), newest.features_left_out) == (MAX_FEATURES, 6)


def test_joint_drift_is_below_the_features(session: Session) -> None:
    features = (FeatureDrift("wind", "numeric", "no drift"), FeatureDrift("temp", "numeric", "drift", effect=0.4))
    joint = JointDrift("drift", "", auc=0.9, p_value=0.0, rows=100)
    store_check(session, NOW, DriftReport("drift", "", 9, 9, features, joint=joint), model="churn")
    assert [row.name for row in ask(session, model="churn").rows] == ["temp", "wind", "All features together"]


DRIFTED = DriftReport("drift", "", 9, 9, (FeatureDrift("temp", "numeric", "drift", effect=0.4),))
OTHER = DriftReport("drift", "", 9, 9, (FeatureDrift("wind", "numeric", "drift"),))


@pytest.mark.parametrize(
    ("changed", "report", "verdict", "cell"),
    [
        ({}, None, "drift", ("drift", 0.4)),
        (
            {},
            OTHER.to_dict(),
            "drift",
            ("drift", 0.4),
        ),
        ({}, {"format": 1, "features": "none"}, "drift", ("drift", 0.4)),
        ({"statistics": {}}, ["no report"], "drift", ("drift", None)),
        ({"verdict": 3}, DRIFTED.to_dict(), "unknown", ("drift", 0.4)),
        ({"drifted_features": {"temp": 1}}, None, "unknown", None),
    ],
    ids=["no report", "report without it", "invalid report", "no report but a list", "invalid summary", "both invalid"],
)
def test_incomplete_checks_are_shown_as_far_as_they_are_known(
    session: Session, changed: dict[str, Any], report: Any, verdict: str, cell: Any
) -> None:
    push = start_task(session, NOW)
    push(key=DRIFT_XCOM, value=True)
    push(key=XCOM_RETURN_KEY, value={**DRIFTED.summary().to_json(), **changed})
    if report is not None:
        push(key="report", value=report)
    found = ask(session, dag_id="retrain", task_id="drift")
    assert [check.verdict for check in found.checks] == [verdict]
    cells = [row.cells[0] for row in found.rows if row.name == "temp"]
    assert [(one.verdict, one.effect) for one in cells if one] == ([cell] if cell else [])


@pytest.mark.parametrize(
    ("feature", "settings", "threshold"),
    [
        ({}, DriftSettings().to_dict(), 0.1),
        ({}, DriftSettings(features={"temp": FeatureSettings(effect_threshold=0.3)}).to_dict(), 0.3),
        ({}, DriftSettings(features={"temp": FeatureSettings(importance=2)}).to_dict(), 0.1),
        ({"test": "domain classifier"}, DriftSettings(joint_threshold=0.6).to_dict(), 0.2),
        ({}, {"effect_threshold": "large", "features": []}, None),
    ],
)
def test_cells_have_the_threshold_of_their_feature(
    session: Session, feature: dict[str, Any], settings: dict[str, Any], threshold: float | None
) -> None:
    tested = FeatureDrift("temp", "numeric", "drift", effect=0.4, **feature)
    report = DriftReport("drift", "", 500, 500, features=(tested,), settings=settings)
    store_check(session, NOW, report, model="churn")
    (row,) = ask(session, model="churn").rows
    assert row.cells[0] is not None
    assert row.cells[0].threshold == pytest.approx(threshold)


def test_errors_of_the_model_have_rows_of_their_own(session: Session) -> None:
    random = np.random.default_rng(0)
    rows = pd.DataFrame({"x": random.normal(size=1200), "actual": random.integers(0, 2, 1200)})
    wrong = np.where(np.arange(1200) < 600, random.random(1200) < 0.1, random.random(1200) < 0.5)
    rows["predicted"] = np.where(wrong, 1 - rows.actual, rows.actual)
    report = compare(rows[:600], rows[600:], prediction="predicted", actual="actual")
    assert report.concept is not None
    store_check(session, NOW, report, model="churn")
    (row,) = [row for row in ask(session, model="churn").rows if row.kind == "model error"]
    (cell,) = row.cells
    assert cell is not None
    assert (cell.before, cell.now) == (report.concept.error_reference, report.concept.error_current)


@pytest.mark.parametrize("model", ["churn", None])
def test_alarm_of_an_event_trigger_is_a_check_if_it_started_a_readable_dag(
    any_session: Session, tmp_path: Path, model: str | None
) -> None:
    session = any_session
    reference, current = write(tmp_path / "a.csv", 0.0), write(tmp_path / "b.csv", 3.0)
    trigger = DriftEventTrigger(reference=reference, current=current, model=model)
    is_new, _, payload = asyncio.run(trigger._check_once(TriggerState()))
    assert is_new
    asset = AssetModel(name="churn_drift", uri="churn_drift", group="asset")
    session.add(asset)
    session.flush()
    start_task(session, NOW, "train", "nightly")
    run = session.query(DagRun).one()
    for created in ([run], []):  # the second event has started no run
        extra = {"from_trigger": True, "payload": payload}
        session.add(AssetEvent(asset_id=asset.id, extra=extra, timestamp=NOW - DAY, created_dagruns=created))
    session.flush()
    query = {"model": model} if model else {"asset": "churn_drift"}
    found = ask(session, **query)
    assert [(check.dag_id, check.run_id, check.verdict) for check in found.checks] == [("nightly", run.run_id, "drift")]
    assert [row.name for row in found.rows] == ["temp"]
    assert [watched.checks for watched in subjects(session, {"nightly"})] == [1]
    assert subjects(session, {"retrain"}) == []
    assert history(session, {"retrain"}, HistoryQuery(**query)).checks == []


@pytest.mark.parametrize("dialect", [postgresql.dialect(), mysql.dialect()])
def test_queries_compile_for_the_databases_that_airflow_supports(dialect: Any) -> None:
    for query in (select_checks({"retrain"}), select_events({"retrain"})):
        assert "registry" in str(query.compile(dialect=dialect))
