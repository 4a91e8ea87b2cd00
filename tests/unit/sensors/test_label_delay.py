"""Drift checks of windows whose labels come later: files with features and predictions, but without labels."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry
from paceline.sensors import DriftSensor
from paceline.sensors.check import DriftCheck
from paceline.sensors.reports import summarise

OPTIONS: dict[str, Any] = {"features": ["age"], "prediction": "score", "actual": "churned"}


def make_rows(seed: int, level: float) -> pd.DataFrame:
    """Return probabilities of a calibrated classifier, which is less certain at a lower level, and an unused column."""
    rng = np.random.default_rng(seed)
    age = rng.normal(level, 1, 2000)
    score = 1 / (1 + np.exp(-age))
    churned = (rng.random(2000) < score).astype(int)
    return pd.DataFrame({"age": age, "unused": "x", "score": score, "churned": churned, "day": np.arange(2000) // 100})


def write_windows(folder: Path, ending: str) -> dict[str, str]:
    """Write a reference with labels and a current window without the column, as Parquet or CSV."""
    frames = {"reference": make_rows(0, 2.0), "current": make_rows(1, 0.5).drop(columns="churned")}
    paths = {name: folder / f"{name}{ending}" for name in frames}
    for name, frame in frames.items():
        if ending == ".parquet":
            frame.to_parquet(paths[name])
        else:
            frame.to_csv(paths[name], index=False)
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_file_without_labels_is_estimated_and_only_its_needed_columns_are_read(tmp_path: Path, ending: str) -> None:
    check = DriftCheck(**write_windows(tmp_path, ending), **OPTIONS)
    report, window = check.measure()
    assert sorted(window.frame.columns) == ["age", "score"]
    assert report.drifted_parts == ["(estimate)", "age"]
    realised = ((make_rows(1, 0.5)["score"] - make_rows(1, 0.5)["churned"]) ** 2).mean()
    assert report.estimate is not None
    assert report.estimate.error == pytest.approx(realised, rel=0.1)


def test_query_without_labels_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(tmp_path / "store.db")) as database, database:
        make_rows(0, 2.0).to_sql("labelled", database, index=False)
        make_rows(1, 0.5).assign(churned=None).to_sql("recent", database, index=False)
    connection = {"conn_type": "sqlite", "host": str(tmp_path / "store.db")}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
    queries = {"reference": "SELECT * FROM labelled", "current": "SELECT * FROM recent"}
    report = DriftCheck(**queries, conn_id="store", time="day", **OPTIONS).run()
    assert "(estimate)" in report.drifted_parts
    assert report.estimate is not None
    assert [p.start for p in report.estimate.periods][:2] == ["0", "1"]


def test_label_column_that_neither_window_has_is_an_error(tmp_path: Path) -> None:
    check = DriftCheck(**write_windows(tmp_path, ".parquet"), **(OPTIONS | {"actual": "chruned"}))
    with pytest.raises(InvalidInputError, match=r"^actual: got 'chruned', .* \(did you mean 'churned'"):
        check.run()


def test_sensor_continues_on_estimated_drift_and_writes_it_to_the_report(tmp_path: Path) -> None:
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(
        dag_id="retrain",
        run_id="run",
        task_id="drift",
        map_index=-1,
        xcom_push=lambda key, value: pushed.update({key: value}),
    )
    sensor = DriftSensor(
        task_id="drift",
        **write_windows(tmp_path, ".parquet"),
        **OPTIONS,
        on_no_drift="skip",
        report_dir=str(tmp_path / "reports"),
    )
    context: Any = {
        "ti": ti,
        "dag_run": SimpleNamespace(run_after=datetime(2030, 1, 1, tzinfo=timezone.utc)),
        "outlet_events": {},
    }
    summary: Any = sensor.poke(context).xcom_value
    assert (summary["estimated_drift"], summary["concept_drift"], summary["retrain"]) == (True, False, True)
    assert "Without labels, the Brier score of 2,000 rows is estimated at" in summary["reason"]
    assert pushed["report"]["estimate"]["verdict"] == "drift"
    assert "Estimated model error" in Path(summary["report_html"]).read_text()


def test_kept_rows_of_a_champion_have_the_label_column_for_later_checks(tmp_path: Path) -> None:
    """The window on which a champion was trained had no labels yet, and neither has the next window."""
    current = write_windows(tmp_path, ".parquet")["current"]
    registry = tmp_path / "registry"
    check = DriftCheck("champion", current, model="churn", registry=str(registry), **OPTIONS)
    report, window = check.measure()
    assert report.verdict == "no champion"
    source = summarise(check, report, window, str(tmp_path / "reports")).to_json()["window"]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("1")
    FileRegistry(registry).register(tmp_path / "model", name="churn", data_window=source)
    FileRegistry(registry).promote("churn", 1, reason="better")
    report = check.run()
    assert report.verdict == "no drift"
    assert report.estimate is not None
    assert report.estimate.reason == "0 reference rows have a prediction and a label; the minimum is 100."
