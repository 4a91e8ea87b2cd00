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

from paceline.contract import DRIFT_XCOM, EVALUATION_XCOM, PROMOTION_XCOM, SCHEDULE_XCOM
from paceline.operators import PromoteOperator
from paceline.plugins.web.overview import overview, select_results
from paceline.registry import FileRegistry

MARKS = [EVALUATION_XCOM, PROMOTION_XCOM, DRIFT_XCOM, SCHEDULE_XCOM]
FIRST_VERSION = {
    "model": "flights", "version": 1, "metric": "auc", "challenger": 0.7, "champion": None, "champion_version": None,
    "better": True, "improvement": None,
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
    assert found.value == result


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
    shown = {"promoted": False, "note": '{"__classname__": "is text here"}'}
    runs = {"oldest": ("retrain", shown), "newer": (dag_id, value), "newest": (dag_id, value)}
    for run_id, (owner, result) in runs.items():
        push = start_task(session, promote_task(owner), run_id)
        push(key=PROMOTION_XCOM, value=True)
        push(key=XCOM_RETURN_KEY, value=result)
    found = overview(session, {"retrain"}, limit=1).promotions
    assert [(one.run_id, one.value) for one in found] == [("oldest", shown)]


def test_newest_results_come_first_and_other_kinds_are_separate(session: Session) -> None:
    for number, key in enumerate([*MARKS, PROMOTION_XCOM, "return_value_of_another_operator"]):
        push = start_task(session, promote_task("retrain"), f"run-{number}")
        push(key=key, value=True)
        push(key=XCOM_RETURN_KEY, value={"number": number})
    found = overview(session, {"retrain"}, limit=2)
    numbers = {kind: [one["value"]["number"] for one in results] for kind, results in found.model_dump().items()}
    assert numbers == {"evaluations": [0], "promotions": [4, 1], "drift": [2], "schedules": [3]}


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
