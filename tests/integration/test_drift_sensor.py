"""DriftSensor and DriftEventTrigger in a real Airflow, with a database that changes between drift checks."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from demo.airflow_process import AirflowProcess
from demo.store import fill_store, read_flights
from tests.integration.training import gates
from tests.waiting import LONG_S, until

from paceline.airflow.api import AirflowApiError
from paceline.drift import DriftReport

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

DAGS = """
from datetime import timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher
from paceline.operators import LogNotifier
from paceline.sensors import DriftEventTrigger, DriftSensor

def windows(table):
    return {
        "conn_id": "test_store",
        "reference": f'SELECT * FROM {table} WHERE "window" = :month ORDER BY rowid',
        "reference_parameters": {"month": "2013-01"},
        "current": f'SELECT * FROM {table} WHERE "window" = (SELECT MAX("window") FROM {table}) ORDER BY rowid',
        "features": ["temp", "wind_speed", "carrier"],
    }

# On a busy machine, Airflow may mark a deferred task as failed: if it resumes before the executor has reported the end
# of the process that deferred it.
retries = {"retries": 3, "retry_delay": timedelta(seconds=1)}
with DAG("drift_sensors", schedule=None, default_args=retries):
    for name, table, more in (
        ("checks_once", "calm", {"on_no_drift": "skip"}),
        ("continues", "calm", {"on_no_drift": "succeed"}),
        ("waits", "drifting", {"poke_interval": 3, "timeout": 3600}),
        ("waits_deferred", "drifting", {"poke_interval": 3, "timeout": 3600, "deferrable": True}),
        ("times_out", "calm", {"poke_interval": 60, "timeout": 5, "deferrable": True, "soft_fail": True}),
    ):
        DriftSensor(
            task_id=name, prediction="predicted", actual="late", outlets=[Asset(name)],
            report_dir="REPORTS", report_url="https://reports.example", **windows(table), **more,
            model="flights", on_drift_alert=LogNotifier("alert about {{ paceline.model }}: {{ paceline.message }}"),
        ) >> EmptyOperator(task_id=f"after_{name}")

trigger = DriftEventTrigger(poll_interval_s=1, report_dir="REPORTS", **windows("watched"))
asset = Asset("watched_drift", watchers=[AssetWatcher(name="watched", trigger=trigger)])
with DAG("watched", schedule=[asset], max_active_runs=1):
    EmptyOperator(task_id="retrain")
"""
WAITING = {"waits": "running", "waits_deferred": "deferred"}


@pytest.fixture(scope="module")
def database_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "store.db"
    for table in ("calm", "drifting", "watched"):
        add_window(path, table, "2013-01")
        add_window(path, table, "2013-02")
    return path


@pytest.fixture(scope="module")
def reports_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module", autouse=True)
def drift_dags(airflow: AirflowProcess, database_path: Path, reports_folder: Path) -> Iterator[None]:
    """Add the DAGs above and their connection to Airflow."""
    airflow.api(
        "POST", "/connections", {"connection_id": "test_store", "conn_type": "sqlite", "host": str(database_path)}
    )
    with gates.temporary_dag(airflow, "drift_sensors", DAGS.replace("REPORTS", str(reports_folder))):
        yield
        set_asset_watch(airflow, "watched", "watched_drift", airflow.dags_folder / "drift_sensors.py", paused=True)
    airflow.api("DELETE", "/connections/test_store")


def set_asset_watch(airflow: AirflowProcess, dag_id: str, asset: str, path: Path, *, paused: bool = False) -> None:
    """Start or stop the triggerer's watch of an asset by unpausing or pausing a DAG that the asset schedules.

    Airflow applies the change when it parses the DAG's file.
    """
    airflow.api("PATCH", f"/dags/{dag_id}", {"is_paused": paused})
    path.write_text(path.read_text() + "\n# parse again")
    until(lambda: bool(airflow.api("GET", "/assets", name_pattern=asset)["assets"][0]["watchers"]) is not paused)


@pytest.fixture(scope="module")
def run_id(airflow: AirflowProcess, database_path: Path) -> str:
    """Return the id of a finished run of all sensors. In this run, two sensors have waited for drift."""
    run_id = airflow.run_dag("drift_sensors")
    for task, state in WAITING.items():
        airflow.wait_for_task("drift_sensors", run_id, task, state, LONG_S)
    until(lambda: "no drift" in airflow.task_log("drift_sensors", run_id, "waits").lower())
    add_window(database_path, "drifting", "2013-03", wind=0.5)
    assert airflow.wait("drift_sensors", run_id, LONG_S) == "success"
    return run_id


def add_window(database_path: Path, table: str, window: str, *, wind: float = 0.0, temp: float = 0.0) -> None:
    """Add a window of 500 rows whose features are shifted by ``wind`` and ``temp`` standard deviations."""
    rng = np.random.default_rng(int(window.replace("-", "")))
    late = rng.integers(0, 2, 500)
    rows = pd.DataFrame(
        {
            "window": window,
            "temp": rng.normal(10 + 5 * temp, 5, 500),
            "wind_speed": rng.normal(4 + wind, 1, 500),
            "carrier": rng.choice(["AA", "UA", "DL"], 500),
            "late": late,
            "predicted": np.where(rng.random(500) < 0.9, late, 1 - late) * 0.8,
        }
    )
    with closing(sqlite3.connect(database_path, timeout=30)) as database, database:
        rows.to_sql(table, database, if_exists="append", index=False)


def asset_events(airflow: AirflowProcess, asset: str) -> list[dict[str, Any]]:
    def query_events() -> dict[str, Any] | None:
        try:
            return airflow.api("GET", "/assets/events", name_pattern=asset)
        except AirflowApiError as error:
            # Airflow 3.3 returns status 500 between the creation and the start of a run that an event triggers.
            if error.status != 500:
                raise
            return None

    return [event for event in until(query_events)["asset_events"] if event["name"] == asset]


def test_one_shot_sensor_without_drift_writes_a_report_and_skips_downstream(
    airflow: AirflowProcess, run_id: str, reports_folder: Path
) -> None:
    states = airflow.task_states("drift_sensors", run_id)
    assert [states["checks_once"], states["after_checks_once"]] == ["skipped", "skipped"]
    summary = airflow.xcom("drift_sensors", run_id, "checks_once")
    assert summary["verdict"] == "no drift"
    assert Path(summary["report_html"].removeprefix("file://")).is_relative_to(reports_folder)
    assert asset_events(airflow, "checks_once") == []


def test_sensor_without_drift_can_succeed_without_an_event(airflow: AirflowProcess, run_id: str) -> None:
    assert airflow.task_states("drift_sensors", run_id)["after_continues"] == "success"
    assert airflow.xcom("drift_sensors", run_id, "continues")["verdict"] == "no drift"
    assert asset_events(airflow, "continues") == []


@pytest.mark.parametrize("task", WAITING)
def test_waiting_sensor_succeeds_when_a_window_drifts(airflow: AirflowProcess, run_id: str, task: str) -> None:
    assert airflow.task_states("drift_sensors", run_id)[f"after_{task}"] == "success"
    summary = airflow.xcom("drift_sensors", run_id, task)
    assert summary["drifted_features"] == ["wind_speed"]
    assert summary["current_rows"] == 500
    assert summary["statistics"]["wind_speed"]["effect"] > 0.1

    whole = DriftReport.from_dict(airflow.xcom("drift_sensors", run_id, task, key="report"))
    assert whole.drifted_features == ["wind_speed"]
    assert whole.concept is not None
    assert whole.concept.verdict == "no drift"
    stored = json.loads(Path(summary["report_json"].removeprefix("file://")).read_text())
    assert DriftReport.from_dict(stored) == whole
    assert "wind_speed" in Path(summary["report_html"].removeprefix("file://")).read_text()
    link = airflow.xcom("drift_sensors", run_id, task, key="_link_DriftReportLink")
    assert link.startswith("https://reports.example/drift_sensors/")
    assert link.endswith(f"/{task}/report.html")

    [event] = asset_events(airflow, task)
    assert event["extra"]["drifted_features"] == ["wind_speed"]
    assert airflow.task_log("drift_sensors", run_id, task).count("alert about flights: Drift in 1 of 3 features") == 1


def test_deferred_sensor_with_soft_fail_skips_on_timeout(airflow: AirflowProcess, run_id: str) -> None:
    states = airflow.task_states("drift_sensors", run_id)
    assert [states["times_out"], states["after_times_out"]] == ["skipped", "skipped"]


def test_drift_scheduled_dag_runs_once_per_drift_across_triggerer_restart(
    airflow: AirflowProcess, database_path: Path
) -> None:
    until(lambda: airflow.api("GET", "/dags", dag_id_pattern="watched")["dags"])
    set_asset_watch(airflow, "watched", "watched_drift", airflow.dags_folder / "drift_sensors.py")
    assert asset_events(airflow, "watched_drift") == []

    add_window(database_path, "watched", "2013-03", wind=1.0)
    until(lambda: asset_events(airflow, "watched_drift"))
    asset = until(lambda: airflow.api("GET", "/assets", name_pattern="watched_drift")["assets"])[0]
    until(lambda: "wind_speed" in str(airflow.api("GET", f"/assets/{asset['id']}/state-store")))

    triggerer = airflow.processes["triggerer"]
    triggerer.send_signal(signal.SIGTERM)
    triggerer.wait(LONG_S)
    airflow.start_component("triggerer")

    # Continued drift of the wind speed emits no event. New drift of the temperature emits an event: the trigger runs.
    add_window(database_path, "watched", "2013-04", wind=1.0)
    add_window(database_path, "watched", "2013-05", wind=1.0, temp=1.0)
    until(lambda: len(asset_events(airflow, "watched_drift")) > 1)
    events = sorted(asset_events(airflow, "watched_drift"), key=lambda event: event["timestamp"])
    drifted = [event["extra"]["payload"]["drifted_features"] for event in events]
    assert [sorted(names) for names in drifted] == [["wind_speed"], ["temp", "wind_speed"]]
    assert Path(events[0]["extra"]["payload"]["report_html"].removeprefix("file://")).exists()

    def two_finished_runs() -> list[dict[str, Any]]:
        runs = airflow.api("GET", "/dags/watched/dagRuns")["dag_runs"]
        return runs if len(runs) == 2 and all(run["state"] == "success" for run in runs) else []

    runs = until(two_finished_runs)
    assert all(run["run_type"] == "asset_triggered" for run in runs)
    until(lambda: airflow.health()["triggerer"] == "healthy")


def test_example_dag_is_triggered_by_drift_in_real_flight_data(
    airflow: AirflowProcess, project: Path, tmp_path: Path
) -> None:
    # Compare July with February, as in the example's query. This database has no predictions.
    fill_store(tmp_path / "store.db", read_flights([2, 7]).groupby("window").head(3000))
    connection = {"connection_id": "paceline_store", "conn_type": "sqlite", "host": str(tmp_path / "store.db")}
    airflow.api("POST", "/connections", connection)
    dag = airflow.dags_folder / "watch_for_drift.py"
    dag.write_text((project / "dags" / "watch_for_drift.py").read_text())
    try:
        until(lambda: airflow.api("GET", "/dags", dag_id_pattern="watch_for_drift")["dags"])
        set_asset_watch(airflow, "watch_for_drift", "flights_watch", dag)
        [run] = until(lambda: airflow.api("GET", "/dags/watch_for_drift/dagRuns")["dag_runs"])
        assert airflow.wait("watch_for_drift", run["dag_run_id"], timeout_s=LONG_S) == "success"
        assert "temp" in airflow.xcom("watch_for_drift", run["dag_run_id"], "print_drifted_features")
        assert len(asset_events(airflow, "flights_watch")) == 1
        set_asset_watch(airflow, "watch_for_drift", "flights_watch", dag, paused=True)
    finally:
        dag.unlink()
        airflow.api("DELETE", "/connections/paceline_store")
