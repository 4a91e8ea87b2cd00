"""The Airflow of a demo or test ends with the process that started it and is isolated from other installations."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest
from demo.airflow_process import AirflowProcess, AirflowStartError
from demo.story import abort_runs
from tests.integration.training.gates import TrainingTask, temporary_dag
from tests.waiting import LONG_S, until

from paceline.airflow.api import AirflowApiError

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

ENDLESS = Path(__file__).parent / "training" / "endless.py"
# Start only two components, because the API server is slow to start and these tests do not need it.
TWO_COMPONENTS = {name: [name, "--skip-serve-logs"] for name in ("scheduler", "triggerer")}
# A shell's background processes ignore SIGINT, so restore the handler that a process has in a terminal.
_PROGRAM = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.append({str(Path(__file__).parents[2])!r})
from pathlib import Path
from demo import airflow_process
from demo.airflow_process import AirflowProcess
airflow_process._COMPONENTS = {TWO_COMPONENTS}
with AirflowProcess(Path(sys.argv[1])) as airflow:
    import threading; threading.Event().wait()
"""


def _processes_in(home: Path) -> list[psutil.Process]:
    """Return all processes whose working folder is ``home``, which are Airflow's components and their descendants."""
    processes_in_home = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                processes_in_home.append(process)
        except psutil.Error:
            continue
    return processes_in_home


@pytest.mark.parametrize(
    ("number", "processes"),
    [(signal.SIGTERM, 2), (signal.SIGINT, 1)],  # while components run; during the database migration
    ids=["terminated", "interrupted"],
)
def test_airflow_ends_with_the_process_that_started_it(number: signal.Signals, processes: int, tmp_path: Path) -> None:
    home = tmp_path / "home"
    starter = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(home)], cwd=tmp_path)
    try:
        until(lambda: len(_processes_in(home)) >= processes, "the components did not start")

        starter.send_signal(number)

        assert starter.wait(LONG_S) != 0
        until(lambda: not _processes_in(home), "processes are left")
    finally:
        starter.kill()
        starter.wait()
        for process in _processes_in(home):
            process.kill()


def test_failed_component_is_reported_with_its_output_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("demo.airflow_process._COMPONENTS", TWO_COMPONENTS)
    airflow = AirflowProcess(tmp_path, config={"triggerer.capacity": "soon"})

    with pytest.raises(AirflowStartError, match=r'(?s)^triggerer exited with code 1:.*"capacity" key'):
        airflow.start(LONG_S)

    assert not _processes_in(tmp_path)


def test_folder_in_airflow_home_does_not_hide_the_package_of_the_same_name(airflow: AirflowProcess) -> None:
    (airflow.home / "paceline").mkdir(exist_ok=True)  # the folder in which the example DAG stores models

    listed = airflow.cli("providers", "list", "--output", "plain")

    assert "airflow-paceline" in listed.stdout, listed.stdout


def test_airflow_listens_on_loopback_only(airflow: AirflowProcess) -> None:
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in _processes_in(airflow.home)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }

    assert listening == {("127.0.0.1", airflow.port)}


def test_api_server_reports_a_locked_database_before_a_client_times_out(
    airflow: AirflowProcess,
) -> None:
    headers = {"Authorization": f"Bearer {airflow.token('admin')}"}
    pool = {"name": "never", "slots": 1}
    with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=LONG_S, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        answer = httpx.post(f"{airflow.url}/api/v2/pools", json=pool, headers=headers, timeout=LONG_S, trust_env=False)

    assert (answer.status_code, answer.json()["detail"]["reason"]) == (500, "Database error")
    assert [name for name, process in airflow.processes.items() if process.poll() is not None] == []


def test_secret_files_are_readable_only_by_their_owner(airflow: AirflowProcess) -> None:
    secrets = [airflow.home / "passwords.json", *airflow.home.glob("*.secret")]

    assert len(secrets) == 4
    assert {path.stat().st_mode & 0o077 for path in secrets} == {0}


def test_viewer_can_read_but_not_trigger(airflow: AirflowProcess) -> None:
    assert airflow.api("GET", "/dags", user="viewer")["total_entries"] >= 0

    with pytest.raises(AirflowApiError) as caught:
        airflow.api("POST", "/dags/anything/dagRuns", {"logical_date": None}, user="viewer")
    assert caught.value.status == 403


def test_aborted_demo_leaves_no_run_and_no_job(airflow: AirflowProcess) -> None:
    """Abort the runs too: a training job survives the end of Airflow's processes by design."""
    text = f"""
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("abandoned", schedule=None):
    DeadlineTrainingOperator(
        task_id="train", script={str(ENDLESS)!r}, arguments=["6000"], deadline="1h", max_devices=0.1, runtime="process"
    )
"""
    with temporary_dag(airflow, "abandoned", text):
        training = TrainingTask(airflow, "abandoned", airflow.run_dag("abandoned"))
        job = until(lambda: training.stored_value("container"))
        abort_runs(airflow, "~")
        assert airflow.dag_run("abandoned", training.run_id)["state"] == "failed"
        assert not Path(job["id"]).exists()
        until(lambda: training.instance()["state"] in ("failed", "skipped"))
