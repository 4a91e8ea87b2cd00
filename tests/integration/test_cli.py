"""The ``paceline`` command against a real Airflow: status, deadlines, orphaned jobs and errors."""

from __future__ import annotations

import csv
import uuid
from pathlib import Path

import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training import gates
from tests.integration.training.gates import TrainingTask
from tests.waiting import LONG_S, until

from paceline.airflow import cli
from paceline.runtime import JobSpec, ProcessRuntime

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]
SCRIPT = Path(__file__).parent / "training" / "gated.py"
DAG = f"""
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("DAG_ID", schedule=None):
    DeadlineTrainingOperator(
        task_id="train", script={str(SCRIPT)!r}, arguments=["--folder=GATES"], deadline="1h", runtime="process"
    )
"""


@pytest.fixture
def run_paceline(airflow: AirflowProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run_command(*arguments: str, user: str = "admin") -> tuple[int, str, str]:
        monkeypatch.setenv("PACELINE_AIRFLOW_PASSWORD", airflow.passwords[user])
        command = [*arguments, "--url", airflow.url, "--user", user]
        code = cli.main(command)
        output = capsys.readouterr()
        return code, output.out, output.err

    return run_command


@pytest.fixture
def training_task(airflow: AirflowProcess, tmp_path: Path):
    """Yield a training task whose job is a local process that waits at a gate."""
    dag_id = f"steered_{uuid.uuid4().hex[:8]}"
    text = DAG.replace("DAG_ID", dag_id).replace("GATES", str(tmp_path))
    with gates.temporary_dag(airflow, dag_id, text) as dag:
        yield TrainingTask(airflow, dag, airflow.run_dag(dag))


def test_running_job_is_listed_and_its_deadline_is_changed(airflow, run_paceline, training_task, tmp_path):
    dag_id, run_id = training_task.dag_id, training_task.run_id
    training_task.wait_until(lambda pace: pace["state"] == "training")
    code, shown, _ = run_paceline("status", dag_id)
    assert code == 0
    assert [word in shown for word in (dag_id, run_id, "SETPOINT", "3600 s")] == [True] * 4

    assert run_paceline("deadline", "set", dag_id, "latest", "train", "soon")[2].startswith(
        "paceline: deadline: got 'soon'"
    )
    code, _, error = run_paceline("deadline", "set", dag_id, "latest", "train", "0.1s")
    assert code == 1
    assert "expected a time in the future" in error
    code, _, error = run_paceline("deadline", "set", dag_id, "latest", "train", "2h", user="viewer")
    assert code == 1
    assert "403" in error
    assert run_paceline("deadline", "show", dag_id, run_id, "train")[1] == "1h\n"

    code, output, _ = run_paceline("deadline", "set", dag_id, "latest", "train", "2h")
    assert code == 0
    assert "1h -> 2h" in output
    training_task.wait_until(lambda pace: pace["deadline_s"] == 7200.0)
    (job,) = airflow.pages(f"/dags/{dag_id}/dagRuns/{run_id}/jobs")["jobs"]
    assert job["deadline"]["by"] == "admin"
    (tmp_path / "go").touch()
    assert airflow.wait(dag_id, run_id, LONG_S) == "success"
    result = training_task.result()
    assert (result["deadline_s"], result["runtime"]) == (7200.0, "process")
    assert (Path(result["model"]) / "model.json").is_file()

    code, _, error = run_paceline("deadline", "set", dag_id, run_id, "train", "60s")
    assert code == 1
    assert (
        error == f"paceline: TASK: got 'train', expected a running training task of run {run_id} of {dag_id} (none)\n"
    )
    assert run_paceline("status", dag_id) == (0, "No training job is running.\n", "")


def test_policies_are_simulated_on_past_trainings(airflow, run_paceline, training_task, tmp_path):
    training_task.wait_until(lambda pace: pace["forecast_s"] is not None)  # the job's speed is known
    (tmp_path / "go").touch()
    assert airflow.wait(training_task.dag_id, training_task.run_id, LONG_S) == "success"
    jobs, outcomes = tmp_path / "jobs.csv", tmp_path / "outcomes.csv"
    code, _, error = run_paceline("simulate", "--from-airflow", "--export", str(jobs), user="viewer")
    assert code == 0, error
    name = f"{training_task.dag_id} {training_task.run_id} train"
    (row,) = [row for row in csv.DictReader(jobs.open()) if row["name"] == name]
    result = training_task.result()
    assert float(row["deadline_s"]) - float(row["arrives_s"]) == pytest.approx(3600, abs=result["finished_s"])
    for source in (("--from-airflow",), (str(jobs),)):
        code, shown, error = run_paceline("simulate", *source, "--nodes", "64", "--outcomes", str(outcomes))
        assert code == 0, error
        policies = {"edf", "fifo", "greedy", "growing", "milp", "on_time", "on_time_promises", "priority"}
        assert policies <= {line.split()[0] for line in shown.splitlines()}
        met = {row["policy"]: row["met"] for row in csv.DictReader(outcomes.open()) if row["name"] == name}
        assert met["on_time_promises"] == "True"


def test_unreachable_airflow_is_reported(monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_AIRFLOW_PASSWORD", "any")
    assert cli.main(["status", "--url", "http://127.0.0.1:9"]) == 1
    assert capsys.readouterr().err.startswith("paceline: --url: got 'http://127.0.0.1:9', expected a reachable Airflow")


def test_orphaned_jobs_are_listed_and_removed(airflow, run_paceline, training_task, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    training_task.wait_until(lambda pace: pace["state"] == "training")
    labels_of_task = {
        "dag": training_task.dag_id,
        "run": training_task.run_id,
        "task": "train",
        "map_index": "-1",
        "run_start": training_task.stored_value("run_start"),
    }
    runtime = ProcessRuntime()

    def start_orphan(code: str = "pass", **about: str) -> str:
        labels = {f"paceline.{part}": value for part, value in {**labels_of_task, **about}.items()}
        return runtime.start(JobSpec(f"left-{uuid.uuid4().hex}", ["python", "-c", code], 0.1, labels=labels)).id

    def list_jobs(*options: str) -> dict[str, str]:
        code, shown, error = run_paceline("clean", *options)
        assert code == 0, error
        return {line.split()[0]: line for line in shown.splitlines() if line}

    mine, others = (
        Path(training_task.stored_value("container")["id"]).name,
        Path(start_orphan(run_start="2030-01-01T12:00:00+00:00")).name,
    )  # the second job is from another Airflow
    assert list_jobs()[mine].endswith("its task has not ended")
    airflow.api("PATCH", f"/dags/{training_task.dag_id}/dagRuns/{training_task.run_id}", {"state": "failed"})
    until(lambda: mine not in {Path(job).name for job, _ in runtime.jobs()})

    orphans = [Path(start_orphan(code)).name for code in ("raise SystemExit(1)", "import signal; signal.pause()")]
    completed = Path(start_orphan()).name
    until(lambda: "exited" in list_jobs()[completed])
    jobs_by_id = list_jobs()
    assert "kept with its output: clear its task to collect it" in jobs_by_id[completed]
    assert [jobs_by_id[orphan].endswith("its task has ended") for orphan in orphans] == [True, True]
    assert "running" in jobs_by_id[orphans[1]]
    assert jobs_by_id[others].endswith("this Airflow has no such run")
    assert {*orphans} <= {Path(job).name for job, _ in runtime.jobs()}, "only --remove removes jobs"
    list_jobs("--remove", "--unknown")  # the job of an unknown run has started only now
    assert {*orphans}.isdisjoint(list_jobs())
    assert {others, completed} <= {*list_jobs()}
    list_jobs("--remove", "--kept")
    assert completed not in list_jobs()
    runtime.reattach(str(runtime.root / others)).remove()
