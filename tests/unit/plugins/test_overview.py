"""The overview finds results by their marks, through indices, in the tables that Airflow creates in a new database."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
from airflow.sdk import DAG, BaseOperator
from airflow.utils.types import DagRunType
from sqlalchemy.orm import Session

from paceline.contract import DRIFT_XCOM, EVALUATION_XCOM, PROMOTION_XCOM, SCHEDULE_XCOM, DriftReport
from paceline.operators import PromoteOperator
from paceline.plugins.web.overview import overview, select_results
from paceline.registry import FileRegistry

MARKS = [EVALUATION_XCOM, PROMOTION_XCOM, DRIFT_XCOM, SCHEDULE_XCOM]
FIRST_VERSION = {
    "model": "flights", "version": 1, "metric": "auc", "challenger": 0.7, "champion": None, "champion_version": None,
    "better": True, "improvement": None,
}  # fmt: skip
REJECTED = {
    "promoted": False, "verdict": "not better", "reason": "not better", "model": "flights", "registry": "/models",
    "version": 2, "champion_version": 1, "previous_version": 1,
}  # fmt: skip
DRIFT = DriftReport("no drift", "No drift in 3 features.", 500, 500).summary().to_json()
SCHEDULE = {
    "workers": {"gate-1": {"samples": 600, "batch_size": 32, "sample_s": 0.1, "epoch_s": 60.0}}, "excluded": {},
    "epoch_s": 60.0, "total_s": 60.0, "states": {"gate-1": {"cpu": 0.5, "memory": 0.1}},
}  # fmt: skip


class ReviewedPromotion(PromoteOperator):
    """A subclass, as a user may write it."""


def start_task(session: Session, task: BaseOperator, run_id: str) -> Any:
    """Store a task instance in a new run of its DAG, and return a function that stores the instance's XComs."""
    session.add(DagRun(dag_id=task.dag_id, run_id=run_id, run_type=DagRunType.MANUAL))
    session.add(TaskInstance(task, dag_version_id=None, run_id=run_id))
    session.flush()
    keys = {"dag_id": task.dag_id, "run_id": run_id, "task_id": task.task_id}
    return partial(XComModel.set, **keys, serialize=False, session=session)


def promote_task(dag_id: str, registry: object = "/models", operator: type[PromoteOperator] = PromoteOperator) -> Any:
    with DAG(dag_id, schedule=None):
        return operator(task_id="promote", evaluation=FIRST_VERSION, registry=str(registry))


@pytest.mark.parametrize("operator", [PromoteOperator, ReviewedPromotion])
def test_results_of_operators_and_of_their_subclasses_are_found(
    session: Session, tmp_path: Path, operator: type[PromoteOperator]
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    registry = FileRegistry(tmp_path / "models")
    registry.register(tmp_path / "model", name="flights")
    task = promote_task("retrain", registry.root, operator)
    push = start_task(session, task, "monday")
    result = task.execute({"ti": SimpleNamespace(xcom_push=push)})
    push(key=XCOM_RETURN_KEY, value=result)
    (found,) = overview(session, {"retrain"}, limit=10).promotions
    assert (found.dag_id, found.run_id, found.task_id, found.map_index) == ("retrain", "monday", "promote", -1)
    assert found.value.to_json() == result


@pytest.mark.parametrize(
    ("dag_id", "value"),
    [
        ("secret", {"promoted": True}),
        ("retrain", "s3://xcoms/1.json"),  # the reference of a custom XCom backend
        ("retrain", {"__classname__": "builtins.tuple", "__version__": 1, "__data__": []}),
        ("retrain", {"__data__": [], "__version__": 1, "__classname__": "builtins.tuple"}),  # order of PostgreSQL
    ],
    ids=["of a DAG that the user may not read", "reference", "serialized class", "serialized class with sorted keys"],
)
def test_results_that_are_not_shown_do_not_count_towards_the_limit(
    session: Session, dag_id: str, value: object
) -> None:
    shown = {**REJECTED, "reason": '{"__classname__": "is text here"}'}
    runs = {"oldest": ("retrain", shown), "newer": (dag_id, value), "newest": (dag_id, value)}
    for run_id, (owner, result) in runs.items():
        push = start_task(session, promote_task(owner), run_id)
        push(key=PROMOTION_XCOM, value=True)
        push(key=XCOM_RETURN_KEY, value=result)
    found = overview(session, {"retrain"}, limit=1).promotions
    assert [(one.run_id, one.value.to_json()) for one in found] == [("oldest", shown)]


def test_newest_results_come_first_and_other_kinds_are_separate(session: Session) -> None:
    values: list[dict[str, Any]] = [FIRST_VERSION, REJECTED, DRIFT, SCHEDULE, REJECTED, {"score": 0.8}, FIRST_VERSION]
    marks = [*MARKS, PROMOTION_XCOM, EVALUATION_XCOM, "return_value_of_another_operator"]
    for number, (key, value) in enumerate(zip(marks, values, strict=True)):
        push = start_task(session, promote_task("retrain"), f"run-{number}")
        push(key=key, value=True)
        push(key=XCOM_RETURN_KEY, value=value)
    found = overview(session, {"retrain"}, limit=2).model_dump(mode="json")
    runs = {kind: [one["run_id"] for one in results] for kind, results in found.items()}
    assert runs == {
        "evaluations": ["run-0"],
        "promotions": ["run-4", "run-1"],
        "drift": ["run-2"],
        "schedules": ["run-3"],
    }
    assert found["evaluations"][0]["value"].items() >= FIRST_VERSION.items(), "the page gets all fields"
    assert (found["drift"][0]["value"]["reason"], found["schedules"][0]["value"]) == (DRIFT["reason"], SCHEDULE)


def test_task_with_many_results_leaves_those_of_others_in(session: Session) -> None:
    for run_id, dag_id in {"weekly": "other", **{f"run-{number}": "busy" for number in range(5)}}.items():
        push = start_task(session, promote_task(dag_id), run_id)
        push(key=PROMOTION_XCOM, value=True)
        push(key=XCOM_RETURN_KEY, value=REJECTED)
    found = overview(session, {"busy", "other"}, limit=3).promotions
    assert [one.run_id for one in found] == ["run-4", "run-3", "weekly"]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize(
    ("dags", "condition"),
    # With one DAG, SQLite, which has no statistics, may as well choose the index on `dag_id`.
    [(0, r"idx_xcom_key \(key=\?\)"), (1, r"idx_xcom_\w+ \((key|dag_id)=\?\)"), (300, r"idx_xcom_key \(key=\?\)")],
)
def test_query_uses_indices_of_the_xcom_table(session: Session, mark: str, dags: int, condition: str) -> None:
    query = select_results({f"dag-{number}" for number in range(dags)}, mark, limit=100)
    text = query.compile(session.get_bind(), compile_kwargs={"literal_binds": True})
    plan = [row.detail for row in session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]
    marks, results = (step for step in plan if "xcom" in step)
    assert re.fullmatch(f"SEARCH xcom_1 USING INDEX {condition}", marks)
    primary_key = r"\(dag_run_id=\? AND task_id=\? AND map_index=\? AND key=\?\)"
    assert re.fullmatch(rf"SEARCH xcom_2 USING INDEX \w+ {primary_key}", results)
