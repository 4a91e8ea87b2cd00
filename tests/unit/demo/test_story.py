"""Tests of the demo's requirements, choice of runtime, summary and cleanup."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from demo.__main__ import main
from demo._seed import Seed
from demo.screen import Screen
from demo.story import (
    Demo,
    abort_runs,
    check_machine,
    choose_runtime,
    is_demo_folder,
    lock_folder,
    remove_files,
    run_dag,
    summarise,
)

from paceline.airflow.api import AirflowApi
from paceline.errors import PacelineError
from paceline.runtime import JobSpec, ProcessRuntime

DAGS = Path(__file__).parents[3] / "dags"


@pytest.fixture
def no_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """End each demo at once, so that a test whose argument is not rejected starts nothing."""
    for name in ("_run", "_run_on_fleet", "_keep_airflow_running"):
        monkeypatch.setattr(f"demo.__main__.{name}", lambda *_: 0)


def test_summary_has_the_documented_keys() -> None:
    results = {
        "drift": {"verdict": "drift", "drifted_features": ["temp", "humid"]},
        "prepare": {},
        "train": {"runtime": "docker", "deadline_s": 60.0, "finished_s": 59.4, "error_pct": -1.0, "mean_devices": 0.8},
        "evaluate": {"champion": 0.65, "challenger": 0.73},
        "promote": {"promoted": True},
    }
    assert summarise(results, "success") == {
        "runtime": "docker",
        "drift_detected": True,
        "drifted_features": 2,
        "deadline_s": 60.0,
        "finished_s": 59.4,
        "error_pct": -1.0,
        "mean_cores": 0.8,
        "champion_before": 0.65,
        "challenger": 0.73,
        "promoted": True,
        "dag_run_state": "success",
    }


def test_summary_of_a_failed_run_has_no_results() -> None:
    summary = summarise({task: {} for task in ("drift", "prepare", "train", "evaluate", "promote")}, "failed")
    assert (summary["drift_detected"], summary["drifted_features"], summary["promoted"]) == (False, 0, False)
    assert (summary["runtime"], summary["finished_s"], summary["dag_run_state"]) == (None, None, "failed")


def test_without_an_engine_auto_selects_process_and_docker_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    assert choose_runtime("process")[0] == "process"
    reason = f"a local process, because no Docker engine responds at unix://{tmp_path}/no-engine.sock"
    assert choose_runtime("auto") == ("process", reason)
    with pytest.raises(PacelineError, match="--runtime: got 'docker', expected 'process', or a Docker engine with the"):
        choose_runtime("docker")


@pytest.mark.docker
@pytest.mark.usefixtures("docker_client")
def test_auto_selects_docker_if_the_engine_has_the_image() -> None:
    assert choose_runtime("auto")[0] == "docker"


def test_missing_torch_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(PacelineError, match=r"torch is not installed here: pip install 'airflow-paceline\[torch\]'"):
        check_machine()


def test_second_demo_in_a_folder_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lock_folder(tmp_path):
        assert main(["--folder", str(tmp_path), "--runtime", "process"]) == 1
    assert "another demo is running" in capsys.readouterr().out
    with lock_folder(tmp_path):
        pass


def test_cleanup_removes_only_files_of_an_earlier_demo(tmp_path: Path) -> None:
    demo = Demo(folder=tmp_path, dags=DAGS)
    for folder in (demo.home, demo.storage):
        (folder / "x").mkdir(parents=True)
    for name in ("flights.db", "summary.json", "pace.png", "notes.txt"):
        (tmp_path / name).touch()
    remove_files(demo)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.usefixtures("no_demo")
@pytest.mark.parametrize("what", ["run", "edge", "up"])
def test_folder_with_files_of_other_programs_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    dag = tmp_path / "airflow" / "dags" / "mine.py"
    dag.parent.mkdir(parents=True)
    dag.touch()
    for folder in (tmp_path, dag):
        with pytest.raises(SystemExit):
            main([what, "--folder", str(folder)])
        rejected = f"--folder: got {str(folder)!r}, expected a new or empty folder, or that of an earlier demo"
        assert rejected in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [dag]


def test_new_folder_empty_folder_and_folder_of_an_earlier_demo_are_accepted(tmp_path: Path) -> None:
    assert is_demo_folder(tmp_path / "new")
    assert is_demo_folder(tmp_path)
    with lock_folder(tmp_path):
        Demo(folder=tmp_path, dags=DAGS).store.touch()
    assert is_demo_folder(tmp_path)


@pytest.mark.usefixtures("no_demo")
def test_demo_does_not_remove_the_files_of_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with lock_folder(tmp_path / "build" / "demo"):
        assert main(["up"]) == 0
        assert main(["up", "--folder", "build/demo"]) == 1
    assert (tmp_path / "build" / "up").is_dir()


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [("run", 130, "no process is left running"), ("up", 0, "Airflow and its jobs on this machine have ended")],
)
def test_ctrl_c_stops_everything_that_the_demo_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
    code: int,
    message: str,
) -> None:
    stopped = []

    class InterruptedAirflow:
        """An Airflow that the user interrupts with Ctrl-C during the start."""

        def start(self) -> None:
            raise KeyboardInterrupt

        def stop(self) -> None:
            stopped.append("airflow")

    monkeypatch.setattr(Demo, "airflow", lambda self, port=None: InterruptedAirflow())
    monkeypatch.setattr(Demo, "start_seeding", lambda self: Future())
    for module in ("story", "__main__"):
        monkeypatch.setattr(f"demo.{module}.abort_runs", lambda airflow, dag: stopped.append(dag))
    assert main([what, "--runtime", "process", "--folder", str(tmp_path)]) == code
    assert stopped == ["~" if what == "up" else "retrain_on_drift", "airflow"]
    assert message in capsys.readouterr().out


@pytest.mark.usefixtures("no_demo")
@pytest.mark.parametrize("deadline", ["banana", "0s", "2030-01-31T18:00:00"])
def test_invalid_deadline_is_rejected_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], deadline: str
) -> None:
    with pytest.raises(SystemExit):
        main(["--deadline", deadline, "--folder", str(tmp_path / "new")])
    assert f"--deadline: got '{deadline}', expected a duration" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.fixture
def fake_airflow(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replace Airflow and the first champion, which take minutes to start and to train."""
    airflow, seeding = Mock(), Future[Seed]()
    seeding.set_result(Seed(flights=1, champion_auc=0.5))
    monkeypatch.setattr(Demo, "airflow", lambda self: airflow)
    monkeypatch.setattr(Demo, "start_seeding", lambda self: seeding)
    return airflow


def test_long_training_is_awaited(tmp_path: Path, fake_airflow: Mock) -> None:
    fake_airflow.wait.side_effect = InterruptedError
    with pytest.raises(InterruptedError):
        run_dag(Demo(folder=tmp_path, dags=DAGS, deadline="2h"), Screen(), {})
    assert fake_airflow.wait.call_args.args[2] == 3 * 3600


def test_run_has_the_id_of_the_folder(tmp_path: Path, fake_airflow: Mock) -> None:
    fake_airflow.run_dag.side_effect = InterruptedError
    demo = Demo(folder=tmp_path, dags=DAGS)
    with pytest.raises(InterruptedError):
        run_dag(demo, Screen(), {"runtime": "process"})
    fake_airflow.run_dag.assert_called_once_with(
        "retrain_on_drift", {"deadline": "60s", "runtime": "process"}, run_id=demo.run_id
    )


class ApiOfTwoRuns(AirflowApi):
    """An API with a run of each of two DAGs. The job of the mapped task ``lost`` is on another engine."""

    def __init__(self, job: str) -> None:
        self.states = {("mine", "fit", -1): job, ("retrain", "lost", 0): "unknown", ("retrain", "lost", 1): None}
        self.failed: list[str] = []

    def api(self, method: str, path: str, json: object = None, *, user: str | None = None, **params: Any) -> Any:
        assert user is None
        dag = path.split("/")[2]
        if method == "PATCH":
            assert json == {"state": "failed"}
            self.failed.append(dag)
        if path == "/dags/~/dagRuns":
            assert params == {"state": "running"}
            return {"dag_runs": [{"dag_id": name, "dag_run_id": "manual__1"} for name in ("retrain", "mine")]}
        return {"task_instances": [{"task_id": t, "map_index": i} for name, t, i in self.states if name == dag]}

    def task_state(self, dag_id: str, run_id: str, task_id: str, key: str, *, map_index: int = -1) -> Any:
        assert (run_id, key) == ("manual__1", "container")
        job = self.states[dag_id, task_id, map_index]
        return job and {"runtime": "process", "id": job}


def test_jobs_of_all_dags_are_removed_even_if_one_is_out_of_reach() -> None:
    runtime = ProcessRuntime()
    job = runtime.start(JobSpec(name="left", command=[sys.executable, "-c", "input()"], devices=0.1))
    airflow = ApiOfTwoRuns(job.id)
    abort_runs(airflow, "~")
    assert airflow.failed == ["retrain", "mine"]
    with pytest.raises(PacelineError):
        runtime.reattach(job.id)


def test_help_lists_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--runtime", "--deadline", "--epochs", "--folder", "--port"))
