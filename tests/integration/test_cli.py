"""The ``paceline`` command against a real Airflow: look at what runs, change its deadline, be told what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import cli
from paceline.demo.airflow_process import AirflowProcess

pytestmark = pytest.mark.airflow
SCRIPT = Path(__file__).parent / "training" / "digits.py"
DAG = f"""
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("steered", schedule=None):
    DeadlineTrainingOperator(
        task_id="train", script={str(SCRIPT)!r}, arguments=["--batches=200"], deadline="12s", runtime="process"
    )
"""


@pytest.fixture
def paceline(airflow: AirflowProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str, user: str = "admin") -> tuple[int, str, str]:
        monkeypatch.setenv("PACELINE_AIRFLOW_PASSWORD", airflow.passwords[user])
        at = [*arguments, "--url", airflow.url, "--user", user]
        code = cli.main(at)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_a_running_training_is_shown_and_steered(airflow, paceline):
    assert paceline("status") == (0, "No training runs now.\n", "")
    (airflow.dags_folder / "steered.py").write_text(DAG)
    run_id = airflow.run_dag("steered")

    def published() -> bool:
        return airflow.task_state("steered", run_id, "train", "pace") is not None

    airflow._wait_for(published, 60, lambda: "no pace")
    code, shown, _ = paceline("status", "steered")
    assert code == 0
    assert [word in shown for word in ("steered", run_id, "SETPOINT", "12 s")] == [True] * 4

    assert paceline("deadline", "set", "steered", "latest", "train", "soon")[2].startswith(
        "paceline: deadline: got 'soon'"
    )
    code, _, complaint = paceline("deadline", "set", "steered", "latest", "train", "0.1s")
    assert code == 1
    assert "expected a time that is still to come" in complaint
    code, _, complaint = paceline("deadline", "set", "steered", "latest", "train", "15s", user="viewer")
    assert code == 1
    assert "403" in complaint
    assert paceline("deadline", "show", "steered", run_id, "train")[1] == "12s\n"

    code, said, _ = paceline("deadline", "set", "steered", "latest", "train", "15s")
    assert code == 0
    assert "12s -> 15s" in said
    assert airflow.wait("steered", run_id, 150) == "success"
    assert airflow.xcom("steered", run_id, "train")["deadline_s"] == 15.0

    code, _, complaint = paceline("deadline", "set", "steered", run_id, "train", "60s")
    assert code == 1
    assert complaint == f"paceline: TASK: got 'train', expected a training task of steered {run_id} that runs now\n"


def test_an_airflow_that_does_not_answer_is_named(monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_AIRFLOW_PASSWORD", "any")
    assert cli.main(["status", "--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith(
        "paceline: --url: got 'http://127.0.0.1:9', expected an Airflow that answers"
    )
