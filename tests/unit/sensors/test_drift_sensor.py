"""The sensor outside of a running Airflow: wrong settings stop a DAG from being read, imports stay light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from paceline.errors import InvalidInputError
from paceline.sensors import DriftSensor
from paceline.sensors.reports import run_folder, write_report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_no_drift": "sleep"}, "on_no_drift: got 'sleep', expected 'wait', 'skip' or 'succeed'"),
        ({"minimum_samples": 0}, "minimum_samples: got 0, expected a whole number of at least 2"),
        ({"significance": 5}, "significance: got 5, expected a number between 0 and 1"),
        ({"detector": "guess"}, "detector: got 'guess', expected one of adwin, ddm, page_hinkley"),
        ({"prediction": "predicted"}, "actual: got None, expected a column name"),
    ],
)
def test_wrong_settings_stop_the_dag_from_being_read(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match="^" + message):
        DriftSensor(task_id="drift", reference="a.csv", current="b.csv", **options)


def test_windows_and_places_are_templated() -> None:
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


def test_reading_a_dag_imports_nothing_heavy() -> None:
    heavy = "{'pandas', 'numpy', 'scipy', 'river', 'matplotlib', 'sklearn', 'torch', 'pyarrow'}"
    code = (
        "import sys; import airflow.sdk, airflow.triggers.base; before = set(sys.modules);"
        "import paceline.sensors as s;"
        "s.DriftSensor(task_id='drift', reference='a.csv', current='b.csv');"
        "s.DriftEventTrigger(reference='a.csv', current='b.csv');"
        f"print(sorted({heavy} & (set(sys.modules) - before)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("[]")


def test_a_retry_writes_the_same_two_files(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from paceline.drift import DriftReport

    ti = SimpleNamespace(dag_id="retrain", run_id="manual__2026-01-01T00:00:00+00:00", task_id="drift", map_index=-1)
    places = [write_report(DriftReport("no drift", "", 5, 5), str(tmp_path), *run_folder(ti)) for _ in range(2)]
    assert places[0] == places[1]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["report.html", "report.json"]
    assert files[0].parent == tmp_path / "retrain" / "manual__2026-01-01T00_00_00_00_00" / "drift"


def test_mapped_tasks_write_to_folders_of_their_own() -> None:
    from types import SimpleNamespace

    ti = SimpleNamespace(dag_id="retrain", run_id="r", task_id="drift", map_index=3)
    assert run_folder(ti) == ["retrain", "r", "drift", "3"]
