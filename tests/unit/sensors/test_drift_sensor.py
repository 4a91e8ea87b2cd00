"""Tests of ``DriftSensor`` without a running Airflow: settings, templates and report folders."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from airflow.sdk import DAG

from paceline.airflow.windows import DataWindow
from paceline.contract import XCOM_LIMIT_BYTES, DriftEvent, fit_to_xcom
from paceline.drift import DriftReport, FeatureDrift, Histogram, compare
from paceline.errors import InvalidInputError
from paceline.sensors import DriftSensor
from paceline.sensors.check import DriftCheck
from paceline.sensors.reports import (
    _folder,
    run_folder,
    summarise,
    write_report,
    write_window,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_no_drift": "sleep"}, "on_no_drift: got 'sleep', expected 'wait', 'skip' or 'succeed'"),
        ({"settings": 0.01}, "settings: got 0.01, expected DriftSettings"),
        ({"prediction": "predicted"}, "actual: got None, expected a column name"),
        ({"reference": "chamption"}, "reference: got 'chamption', expected a query .* or a file .*, or 'champion'"),
        ({"current": "champion"}, r"current: got 'champion', expected a query .* or a file that ends in \.parquet"),
        ({"current": "s3://lake@bucket/today.orc"}, "current: got 's3://lake@bucket/today.orc', expected a query"),
    ],
)
def test_invalid_settings_are_rejected_when_the_dag_is_parsed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match="^" + message):
        DriftSensor(task_id="drift", **{"reference": "a.csv", "current": "b.csv", **options})


@pytest.mark.parametrize(
    "source", ["s3://lake@bucket/day.parquet/", "-- today\nSELECT 1", "day.sql", "{{ params.day }}"]
)
def test_window_is_a_query_a_file_or_a_template(source: str) -> None:
    assert DriftSensor(task_id="drift", reference=source, current=source).current == source


def test_error_about_a_missing_column_names_the_parameter_features(tmp_path: Path) -> None:
    path = tmp_path / "window.csv"
    path.write_text("temp\n1.5\n")
    with pytest.raises(InvalidInputError, match=r"^features: got 'tmep', expected a column of the reference window"):
        DriftCheck(str(path), str(path), features=["tmep"]).run()


def test_windows_and_report_dir_are_templated() -> None:
    with DAG("dag"):
        sensor = DriftSensor(
            task_id="drift",
            reference="SELECT * FROM {{ params.table }}",
            current="s3://lake/{{ ds }}.parquet",
            current_parameters={"month": "{{ ds }}"},
            report_dir="reports/{{ ds }}",
        )
    sensor.render_template_fields({"params": {"table": "flights"}, "ds": "2013-02-01"})  # type: ignore[typeddict-item]
    assert sensor.reference == "SELECT * FROM flights"
    assert sensor.current == "s3://lake/2013-02-01.parquet"
    assert sensor.current_parameters == {"month": "2013-02-01"}
    assert sensor.report_dir == "reports/2013-02-01"


def test_report_folder_is_equal_for_retries_and_distinct_for_mapped_tasks(tmp_path: Path) -> None:
    ti = SimpleNamespace(dag_id="retrain", run_id="manual__2026-01-01T00:00:00+00:00", task_id="drift", map_index=-1)
    places = [write_report(DriftReport("no drift", "", 5, 5), str(tmp_path), *run_folder(ti)) for _ in range(2)]
    assert places[0] == places[1]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["report.html", "report.json"]
    assert files[0].parent == tmp_path / "retrain" / "manual__2026-01-01T00_00_00_00_00" / "drift"
    mapped = SimpleNamespace(dag_id="retrain", run_id="r", task_id="drift", map_index=3)
    assert run_folder(mapped) == ["retrain", "r", "drift", "3"]


def test_report_folders_of_dags_with_chinese_names_are_distinct(tmp_path: Path) -> None:
    folders = {str(_folder(str(tmp_path), name, "run", "drift")) for name in ("流失模型", "价格模型", "___")}
    assert len(folders) == 3


@pytest.mark.parametrize(("drifted", "complete"), [(3, 3), (100, 100), (800, 150)])
def test_report_for_xcom_keeps_the_drifted_features(drifted: int, complete: int) -> None:
    histogram = Histogram((0.05,) * 20, (0.05,) * 20, edges=(0.123456789,) * 21)
    features = tuple(
        FeatureDrift(
            f"feature_{number}",
            "numeric",
            "drift" if number < drifted else "no drift",
            reason="its mean changed from 0.5 to 0.7, far beyond the threshold",
            p_value=1e-20,
            effect=0.2,
            histogram=histogram,
        )
        for number in range(800)
    )
    short = fit_to_xcom(DriftReport("drift", "", 500, 500, features))
    assert len(json.dumps(short)) <= XCOM_LIMIT_BYTES
    names = [one["name"] for one in short["features"] if one["verdict"] == "drift"]
    assert names[:complete] == [f"feature_{number}" for number in range(complete)]
    assert short["notes"] == [
        f"{800 - len(short['features'])} features are omitted here; the stored report contains all features."
    ]


@pytest.mark.parametrize("length", [400, 2000])
def test_report_with_long_names_and_values_fits_into_xcom(length: int) -> None:
    rng = np.random.default_rng(0)

    def window(suffix: str) -> pd.DataFrame:
        columns = {"x" * length + f"{number}{suffix}": rng.normal(size=200) for number in range(60)}
        text = "z" * length
        return pd.DataFrame(columns).assign(carrier=rng.choice([text + suffix, text + suffix + "2"], 200), time=text)

    report = compare(window(""), window("_new"), time="time")
    whole = report.to_dict()
    assert len(report.reason) < 1500
    assert len(report.current) < 200
    assert all(len(problem.reason) < 300 for problem in report.quality)
    assert all(len(label) <= 40 for feature in report.features for label in feature.new_categories)
    short = fit_to_xcom(report)
    assert len(json.dumps(short)) <= XCOM_LIMIT_BYTES
    assert short["quality"] == whole["quality"][: len(short["quality"])]
    assert len(short["quality"]) >= 15
    kept = DriftReport.from_dict(short)
    assert DriftReport.from_dict(fit_to_xcom(kept)) == kept, "the task shortens the report of its trigger again"


def test_summary_and_report_of_many_features_fit_into_an_event() -> None:
    histogram = Histogram((0.05,) * 20, (0.05,) * 20, edges=(0.5,) * 21)
    features = tuple(
        FeatureDrift(f"feature_{number}", "numeric", "drift", histogram=histogram) for number in range(800)
    )
    report = DriftReport("drift", "800 features have drifted.", 500, 500, features)
    summary = summarise(DriftCheck("a.csv", "b.csv"), report, DataWindow(pd.DataFrame(), 500), None)
    event = DriftEvent(summary=summary, report=report, timeout_at="", cleared=False).to_json()
    assert len(json.dumps(event["report"])) <= XCOM_LIMIT_BYTES
    assert len(event["summary"]["drifted_features"]) == 800


def test_kept_rows_may_have_columns_with_values_of_several_types(tmp_path: Path) -> None:
    rows = {
        "temp": np.random.default_rng(0).normal(size=500),
        "kind": ["A", 1] * 250,
        "payload": [{"a": 1}, {"a": "x"}] * 250,
        "empty": [{}, None] * 250,
    }
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in rows.items()})
    source = write_window(DataWindow(frame, 500), str(tmp_path))
    kept = pd.read_parquet(source)
    assert kept["temp"].tolist() == list(rows["temp"])
    assert compare(frame, kept, columns=["temp", "kind"], categorical=["kind"]).verdict == "no drift"
