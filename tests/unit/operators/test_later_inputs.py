"""A training does not start if a later evaluation needs an XCom that an earlier task has not stored."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from paceline.operators import DeadlineTrainingOperator, EvaluateOperator
from paceline.sensors import DriftSensor
from paceline.sensors.check import DriftCheck
from paceline.sensors.reports import summarise


class Started(Exception):
    """The training has started."""


def _execute(monkeypatch: pytest.MonkeyPatch, stored: dict[tuple[str, str], Any], *, after_drift: bool = True) -> None:
    with DAG("retrain"):
        drift = DriftSensor(task_id="drift", reference="a.csv", current="b.csv")
        train = DeadlineTrainingOperator(task_id="train", command="python -m app.train", deadline="20m")
        evaluate = EvaluateOperator(
            task_id="evaluate", script="evaluate.py", model="churn", registry="/models", challenger="new",
            data={"holdout": "holdout"}, metric="auc", data_window=drift.output["window"],
        )  # fmt: skip
        train >> evaluate
        if after_drift:
            drift >> train

    def start(context: object) -> None:
        raise Started

    monkeypatch.setattr(train, "new_training", start)
    ti = SimpleNamespace(xcom_pull=lambda task_ids, key: stored.get((task_ids, key)))
    train.execute({"ti": ti})  # type: ignore[arg-type]


def test_training_after_a_sensor_without_a_window_fails_and_names_the_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"^Task drift has stored no XCom 'window', which task evaluate needs .* marked as successful, clear it"
    with pytest.raises(AirflowFailException, match=message):
        _execute(monkeypatch, {})


def test_training_starts_if_the_window_is_stored_or_may_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Started):
        _execute(monkeypatch, {("drift", "window"): {"source": "b.csv"}})
    with pytest.raises(Started):
        _execute(monkeypatch, {}, after_drift=False)


@pytest.mark.parametrize("replaced", [False, True])
def test_training_warns_if_the_checked_file_has_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], replaced: bool
) -> None:
    file = tmp_path / "b.csv"
    file.write_text("age\n" + "29\n30\n" * 100)
    check = DriftCheck("champion", str(file), model="churn", registry=str(tmp_path / "models"))
    window = summarise(check, *check.measure(), str(tmp_path / "reports")).to_json()["window"]
    assert window["source"] != str(file), "the rows that were compared"
    if replaced:
        file.write_text("age\n" + "70\n71\n" * 100)
    with pytest.raises(Started):
        _execute(monkeypatch, {("drift", "window"): window})
    warning = f"{file} has changed since task drift has checked it"
    assert (warning in capsys.readouterr().out) is replaced
