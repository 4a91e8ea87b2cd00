"""An Airflow that was started for a demo or a test never outlives what started it, and keeps to itself."""

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
from tests.integration.training.gates import Training, dag
from tests.waiting import LONG_S, until

from paceline.airflow.api import AirflowApiError
from paceline.airflow.demo.airflow_process import AirflowProcess, AirflowStartError
from paceline.airflow.demo.story import give_up_runs

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

ENDLESS = Path(__file__).parent / "training" / "endless.py"
# Two components are enough where it is not the API server that matters, which is slow to start.
SOME = {name: [name, "--skip-serve-logs"] for name in ("scheduler", "triggerer")}
# A shell starts what it puts into the background deaf to Ctrl-C, and that is inherited; a person's terminal does not.
_PROGRAM = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from paceline.airflow.demo import airflow_process
from paceline.airflow.demo.airflow_process import AirflowProcess
airflow_process._COMPONENTS = {SOME}
with AirflowProcess(Path(sys.argv[1])) as airflow:
    import threading; threading.Event().wait()
"""


def _living_in(home: Path) -> list[psutil.Process]:
    """Every process whose current folder is ``home``: components, and whatever they have started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    ("number", "living"),
    [(signal.SIGTERM, 2), (signal.SIGINT, 1)],  # among its components; while it migrates its database
    ids=["terminated", "interrupted"],
)
def test_no_process_is_left_when_whoever_started_airflow_is(
    number: signal.Signals, living: int, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    starter = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(home)], cwd=tmp_path)
    try:
        until(lambda: len(_living_in(home)) >= living, "the components did not start")

        starter.send_signal(number)

        assert starter.wait(LONG_S) != 0
        until(lambda: not _living_in(home), "processes are left")
    finally:
        starter.kill()
        starter.wait()
        for process in _living_in(home):
            process.kill()


def test_a_component_that_cannot_start_is_reported_with_its_own_words_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.airflow.demo.airflow_process._COMPONENTS", SOME)
    airflow = AirflowProcess(tmp_path, config={"triggerer.capacity": "soon"})

    with pytest.raises(AirflowStartError, match=r'(?s)^triggerer ended with 1:.*"capacity" key'):
        airflow.start(LONG_S)

    assert not _living_in(tmp_path)


def test_a_folder_in_its_home_hides_no_package(airflow: AirflowProcess) -> None:
    (airflow.home / "paceline").mkdir(exist_ok=True)  # where the example DAG keeps its models if nobody says otherwise

    listed = airflow.cli("providers", "list", "--output", "plain")

    assert "airflow-paceline" in listed.stdout, listed.stdout


def test_it_listens_on_loopback_only(airflow: AirflowProcess) -> None:
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in _living_in(airflow.home)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }

    assert listening == {("127.0.0.1", airflow.port)}


def test_the_api_server_gives_up_a_locked_database_before_another_component_times_out(
    airflow: AirflowProcess,
) -> None:
    headers = {"Authorization": f"Bearer {airflow.token('admin')}"}
    pool = {"name": "never", "slots": 1}
    with closing(sqlite3.connect(airflow.home / "airflow.db", timeout=LONG_S, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        answer = httpx.post(f"{airflow.url}/api/v2/pools", json=pool, headers=headers, timeout=LONG_S, trust_env=False)

    assert (answer.status_code, answer.json()["detail"]["reason"]) == (500, "Database error")
    assert [name for name, process in airflow.processes.items() if process.poll() is not None] == []


def test_its_secrets_can_be_read_by_their_owner_only(airflow: AirflowProcess) -> None:
    secrets = [airflow.home / "passwords.json", *airflow.home.glob("*.secret")]

    assert len(secrets) == 4
    assert {path.stat().st_mode & 0o077 for path in secrets} == {0}


def test_a_viewer_may_look_but_not_trigger(airflow: AirflowProcess) -> None:
    assert airflow.api("GET", "/dags", user="viewer")["total_entries"] >= 0

    with pytest.raises(AirflowApiError) as caught:
        airflow.api("POST", "/dags/anything/dagRuns", {"logical_date": None}, user="viewer")
    assert caught.value.status == 403


def test_a_demo_that_is_given_up_leaves_neither_run_nor_training(airflow: AirflowProcess) -> None:
    """A training outlives Airflow's processes on purpose, so that these are not enough to end."""
    text = f"""
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("given_up", schedule=None):
    DeadlineTrainingOperator(
        task_id="train", script={str(ENDLESS)!r}, arguments=["6000"], deadline="1h", max_devices=0.1, runtime="process"
    )
"""
    with dag(airflow, "given_up", text):
        training = Training(airflow, "given_up", airflow.run_dag("given_up"))
        job = until(lambda: training.store("container"))
        give_up_runs(airflow, "given_up")
        assert airflow.dag_run("given_up", training.run_id)["state"] == "failed"
        assert not Path(job["id"]).exists()
        until(lambda: training.instance()["state"] in ("failed", "skipped"))
