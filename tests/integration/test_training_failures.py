"""Errors name the field, the value and what is accepted, and are raised before a container starts if possible.

The tests execute the operator without a scheduler on real runtimes. A dictionary replaces the task state store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from paceline.operators import DeadlineTrainingOperator, Docker, Process
from paceline.run import MemoryState
from paceline.runtime import ProcessRuntime

TRACKED = "from paceline.train import track\nfor batch in track([1] * 20):\n    pass\n"


@pytest.fixture
def fail_on_leftover_containers(docker_client: docker.APIClient) -> Iterator[None]:
    """Remove the containers that the test has left, and fail the test if there are any."""
    yield
    left = docker_client.containers(all=True, filters={"label": "paceline.dag=failing"})
    for container in left:
        docker_client.remove_container(container["Id"], force=True, v=True)
    assert not left, f"containers left behind: {[c['Names'] for c in left]}"


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> str:
    """Return the name of the runtime. With Docker, fail a test that leaves a container."""
    if request.param == "docker":
        request.getfixturevalue("fail_on_leftover_containers")
    return str(request.param)


@pytest.fixture
def run(tmp_path, monkeypatch, docker_host):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.setenv("DOCKER_HOST", docker_host)

    def run_operator(
        source: str | None = None, *, state: MemoryState | None = None, **arguments: Any
    ) -> dict[str, Any]:
        if source is not None:
            script = tmp_path / "train.py"
            script.write_text(source)
            arguments["script"] = str(script)
        operator = DeadlineTrainingOperator(
            **{"task_id": "train", "deadline": "10m", "control_period": 0.5, **arguments}
        )
        now = datetime.now(timezone.utc)
        context = {
            "ti": SimpleNamespace(
                dag_id="failing",
                run_id="run",
                task_id="train",
                map_index=-1,
                try_number=1,
                max_tries=0,
                start_date=now,
                stats_tags={},
            ),
            "dag_run": SimpleNamespace(start_date=now - timedelta(seconds=1)),
            "task_state_store": state if state is not None else MemoryState(),
        }
        return operator.execute(context)  # type: ignore[arg-type]

    yield run_operator
    # A job whose output cannot be collected is kept for a cleared task.
    for job_id, labels in ProcessRuntime().jobs():
        if labels.get("paceline.dag") == "failing":
            ProcessRuntime().reattach(job_id).remove()


both_runtimes = pytest.mark.parametrize(
    "runtime", [pytest.param("docker", marks=pytest.mark.docker), "process"], indirect=True
)


@both_runtimes
def test_past_deadline_fails_the_task_before_the_start_with_on_infeasible_fail(run, runtime):
    past = datetime.now(timezone.utc) - timedelta(minutes=5)
    for deadline, message in (
        (past, rf"deadline: got {re.escape(past.isoformat())}, expected a time after the start of the run"),
        (0.5, r"deadline: 0\.5 s had passed before training started"),
    ):
        with pytest.raises(AirflowFailException, match=message):
            run(TRACKED, runtime=runtime, deadline=deadline, on_infeasible="fail")


def test_best_effort_job_with_a_past_deadline_runs_and_is_late(run):
    result = run(TRACKED, runtime="process", deadline=0.5)
    assert (result["deadline_s"], result["met"]) == (0.5, False)


@both_runtimes
def test_missing_script_is_reported(run, runtime):
    with pytest.raises(AirflowFailException, match=r"script: got '/nowhere/train.py', expected an existing file"):
        run(runtime=runtime, script="/nowhere/train.py")


@both_runtimes
def test_missing_input_is_reported(run, runtime):
    with pytest.raises(
        AirflowFailException, match=r"inputs\['data'\]: got '/nowhere/data.csv', expected an existing file or"
    ):
        run(TRACKED, runtime=runtime, inputs={"data": "/nowhere/data.csv"})


@pytest.mark.docker
def test_missing_image_is_reported_with_the_pull_command(run, fail_on_leftover_containers):
    with pytest.raises(AirflowFailException, match=r"^runtime.image: got 'nobody/nothing:1', expected .*docker pull"):
        run(TRACKED, runtime=Docker(image="nobody/nothing:1"))


@pytest.mark.docker
def test_missing_connection_is_reported(run, fail_on_leftover_containers):
    with pytest.raises(
        AirflowFailException, match=r"^runtime.docker_conn_id: got 'nobody', expected a usable connection"
    ):
        run(TRACKED, runtime=Docker(docker_conn_id="nobody"))


def test_unreachable_engine_is_reported(run, monkeypatch):
    monkeypatch.setattr("paceline.run._handle._RETRY_FOR_S", 0.0)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(AirflowException, match=r"no Docker engine responds at unix:///nowhere.sock"):
        run(TRACKED, runtime="docker")


def test_auto_runtime_without_an_engine_uses_a_local_process(run, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    assert run(TRACKED, runtime="auto")["runtime"] == "process"


@pytest.mark.parametrize("settings", [{"engine_conn_id": "nowhere"}, {"image": "mine:1"}, {"gpus": 1}])
def test_docker_settings_never_use_a_local_process(run, monkeypatch, settings):
    monkeypatch.setattr("paceline.run._handle._RETRY_FOR_S", 0.0)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    monkeypatch.setenv("AIRFLOW_CONN_NOWHERE", '{"conn_type": "generic", "host": "/nowhere.sock"}')
    with pytest.raises(AirflowException, match=r"no Docker engine responds at (unix:///nowhere\.sock|nowhere)"):
        run(TRACKED, runtime=Docker(**settings))


def test_failing_script_is_reported_with_its_traceback(run):
    with pytest.raises(AirflowException, match=r"exit code 1, expected exit code 0(.|\n)*ZeroDivisionError"):
        run("1 / 0", runtime="process")


def test_script_without_progress_ends_well_and_keeps_its_output(run):
    """As a script with a single call of `fit` does."""
    script = "from paceline.train import output_dir\n(output_dir() / 'model.txt').write_text('fitted')\n"
    result = run(script, runtime="process")
    assert (Path(result["model"]) / "model.txt").read_text() == "fitted"
    assert (result["learned"], result["metrics"]) == (None, {})


def test_training_loop_without_batches_is_reported(run):
    with pytest.raises(AirflowException, match=r"batch"):
        run("from paceline.train import track\nfor batch in track([]):\n    pass\n", runtime="process")


def test_malformed_progress_lines_are_skipped(run, capsys):
    garbage = "for line in ('{', '[]', '{\"done\": 5}', '\\x00\\xff'):\n    print('@paceline ' + line)\n"
    assert run(garbage + TRACKED, runtime="process")["runtime"] == "process"
    assert capsys.readouterr().out.count("Progress line skipped") == 4


@pytest.mark.docker
def test_out_of_memory_kill_is_reported(run, fail_on_leftover_containers):
    greedy = (
        "from paceline.train import track\nfor batch in track([1] * 9):\n    kept = bytearray(b'1') * (900 << 20)\n"
    )
    with pytest.raises(AirflowException, match=r"ran out of memory, limit 300 MiB: increase runtime.memory"):
        run(greedy, runtime=Docker(memory="300m"))


def test_output_above_the_disk_limit_is_reported(run):
    sparse = (
        "from paceline.train import output_dir\nfor name in 'ab': open(output_dir() / name, 'w').truncate(10 * 2**20)\n"
    )
    with pytest.raises(AirflowException, match=r"output: exceeds the limit of 16777216 bytes \(disk\)"):
        run(sparse + TRACKED, runtime=Process(disk="16m"))


@pytest.mark.docker
def test_read_only_argument_makes_the_root_file_system_read_only(run, fail_on_leftover_containers):
    check = "import os\nassert os.statvfs('/').f_flag & os.ST_RDONLY\n"
    with pytest.raises(AirflowException, match=r"AssertionError"):
        run(check + TRACKED, runtime="docker")
    assert run(check + TRACKED, runtime=Docker(read_only=True))["runtime"] == "docker"


@pytest.mark.docker
def test_result_contains_the_path_of_the_output_folder(run, fail_on_leftover_containers, tmp_path):
    source = TRACKED + "from paceline.train import output_dir\n(output_dir() / 'model.txt').write_text('done')\n"
    result = run(source, runtime="docker", output=str(tmp_path / "out"))
    assert (tmp_path / "out" / "model.txt").read_text() == "done"
    assert result["model"] == str(tmp_path / "out")


def test_live_deadline_set_before_the_start_overrides_the_dag(run):
    state = MemoryState(deadline="40m")
    assert run(TRACKED, runtime="process", state=state)["deadline_s"] == 2400.0
    assert "deadline" not in state  # the next run uses the DAG's deadline again
    assert set(state) == {"pace", "history", "output", "result", "run_start"}


@pytest.mark.docker
def test_private_environment_reaches_the_job_but_not_the_log(run, fail_on_leftover_containers, capsys):
    check = "import os\nprint('length', len(os.environ['TOKEN']))\n"
    run(check + TRACKED, runtime="docker", private_environment={"TOKEN": "hunter2hunter2"})
    log = "".join(capsys.readouterr())
    assert "length 14" in log
    assert "hunter2" not in log
