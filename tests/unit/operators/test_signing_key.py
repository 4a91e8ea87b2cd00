"""``signing_conn_id``: tasks sign the versions that they register, and reject all other versions."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.sdk.exceptions import AirflowFailException

from paceline.errors import InvalidInputError
from paceline.operators import EvaluateOperator, PromoteOperator
from paceline.operators.improvement import ResampleCollector
from paceline.registry import FileRegistry
from paceline.sensors import DriftEventTrigger, DriftSensor

KEY = "k" * 32
REJECTED = r"signature of flights version 1: got None, expected the signature .* signing key"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the connection with the key, and score models without a job: the score is the content of the file."""
    for conn_id, password in (("model_key", f"{KEY}\n"), ("short", "secret"), ("empty", None)):
        connection = json.dumps({"conn_type": "generic", "password": password})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", connection)

    def score(self: EvaluateOperator, context: Any, runtime: Any, role: str, model: Path, *others: Any) -> Any:
        return {"auc": float((Path(model) / "weights").read_text())}, ResampleCollector(self.metric)

    monkeypatch.setattr(EvaluateOperator, "_score", score)
    monkeypatch.setattr(EvaluateOperator, "open_runtime", lambda self, settings: None)


@pytest.fixture
def unsigned(tmp_path: Path) -> FileRegistry:
    return FileRegistry(tmp_path / "registry")


@pytest.fixture
def signed(tmp_path: Path) -> FileRegistry:
    return FileRegistry(tmp_path / "registry", signing_key=KEY)


def evaluate(tmp_path: Path, score: float, conn_id: str | None = "model_key") -> Any:
    model = tmp_path / f"model-{score}"
    model.mkdir()
    (model / "weights").write_text(str(score))
    (tmp_path / "holdout.csv").write_text("x\n1\n")
    operator = EvaluateOperator(
        task_id="evaluate",
        model="flights",
        registry=str(tmp_path / "registry"),
        challenger=str(model),
        data={"holdout.csv": str(tmp_path / "holdout.csv")},
        script=__file__,  # which the fixture does not run
        metric="auc",
        data_window={"source": str(tmp_path / "holdout.csv")},
        signing_conn_id=conn_id,
    )
    ti = SimpleNamespace(dag_id="dag", run_id=str(score), task_id="evaluate", map_index=-1, xcom_push=Mock())
    return operator.execute({"ti": ti})  # type: ignore[typeddict-item]


def promote(tmp_path: Path, evaluation: Any, conn_id: str | None = "model_key") -> Any:
    registry = str(tmp_path / "registry")
    operator = PromoteOperator(task_id="promote", evaluation=evaluation, registry=registry, signing_conn_id=conn_id)
    return operator.execute({"ti": Mock(spec=["xcom_push"])})  # type: ignore[typeddict-item]


def test_signed_challengers_are_compared_and_promoted(tmp_path: Path, signed: FileRegistry) -> None:
    for number, score in enumerate((0.7, 0.8), start=1):
        assert promote(tmp_path, evaluate(tmp_path, score))["champion_version"] == number
    assert signed.champion("flights") == signed.versions("flights")[1]


def test_unsigned_champion_is_neither_compared_nor_replaced(tmp_path: Path, unsigned: FileRegistry) -> None:
    first = evaluate(tmp_path, 0.7, conn_id=None)
    promote(tmp_path, first, conn_id=None)
    with pytest.raises(AirflowFailException, match=REJECTED):
        evaluate(tmp_path, 0.8)
    with pytest.raises(AirflowFailException, match=REJECTED):
        promote(tmp_path, first)
    assert len(unsigned.versions("flights")) == 1


def test_unsigned_challenger_is_not_promoted(tmp_path: Path, unsigned: FileRegistry) -> None:
    evaluation = evaluate(tmp_path, 0.7, conn_id=None)
    with pytest.raises(AirflowFailException, match=REJECTED):
        promote(tmp_path, evaluation)
    assert unsigned.history("flights") == []


def test_unsigned_champion_does_not_choose_the_reference_of_a_drift_check(
    tmp_path: Path, unsigned: FileRegistry
) -> None:
    promote(tmp_path, evaluate(tmp_path, 0.7, conn_id=None), conn_id=None)
    (tmp_path / "holdout.csv").write_text("x\n1\n")
    check = {"reference": "champion", "current": str(tmp_path / "holdout.csv"), "model": "flights"}
    arguments: Any = {**check, "registry": str(unsigned.root), "report_dir": str(tmp_path)}
    for conn_id in (None, "model_key"):
        sensor = DriftSensor(task_id="drift", signing_conn_id=conn_id, **arguments)
        trigger = DriftEventTrigger(signing_conn_id=conn_id, **arguments)
        assert trigger.serialize()[1]["signing_conn_id"] == conn_id
        for drift_check in (sensor._check(), trigger.check):
            if conn_id is None:
                assert drift_check.resolve().champion == "flights version 1"
            else:
                with pytest.raises(InvalidInputError, match=REJECTED):
                    drift_check.resolve()


@pytest.mark.parametrize("conn_id", ["short", "empty"])
def test_connection_without_a_long_password_is_rejected_without_showing_it(tmp_path: Path, conn_id: str) -> None:
    with pytest.raises(AirflowFailException, match=r"signing_key: got '. bytes', expected at least 32") as raised:
        evaluate(tmp_path, 0.7, conn_id)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("conn_id", ["", 3])
def test_empty_signing_conn_id_is_rejected_when_the_dag_is_parsed(conn_id: Any) -> None:
    drift: Any = {"reference": "a.csv", "current": "b.csv", "signing_conn_id": conn_id}
    evaluation: Any = {"model": "m", "registry": "/r", "challenger": "/c", "data": {"a": "/a"}, "metric": "auc"}
    for make in (
        lambda: EvaluateOperator(task_id="t", script="s.py", signing_conn_id=conn_id, **evaluation),
        lambda: PromoteOperator(task_id="t", registry="/r", evaluation={}, signing_conn_id=conn_id),
        lambda: DriftSensor(task_id="t", **drift),
        lambda: DriftEventTrigger(**drift),
    ):
        with pytest.raises(InvalidInputError, match=r"signing_conn_id: got .*, expected the id of a connection"):
            make()
