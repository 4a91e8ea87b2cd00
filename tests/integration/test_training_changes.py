"""Training jobs in a real Airflow whose task is marked, deleted, cleared or changed at a bad moment."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training import gates
from tests.integration.training.gates import TrainingTask, open_gates, run_in_container
from tests.waiting import LONG_S, until

from paceline.airflow import cli

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(1200)]

GATED = Path(__file__).parent / "training" / "gated.py"
DAGS = """
import threading
import time
from datetime import timedelta

from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator


class Unanswered(DeadlineTrainingOperator):
    \"\"\"A task whose question about its own state Airflow never answers.\"\"\"

    def execute(self, context):
        type(context["ti"]).get_task_states = staticmethod(lambda **_: threading.Event().wait())
        return super().execute(context)


class WrongClock(DeadlineTrainingOperator):
    \"\"\"A task whose worker's clock is ten days ahead.\"\"\"

    def execute(self, context):
        now = time.time
        time.time = lambda: now() + 864_000
        return super().execute(context)


for name, operator, options in [
    ("changes", DeadlineTrainingOperator, {"environment": {"TRY": "{{ ti.try_number }}"}}),
    ("changes_unanswered", Unanswered, {}),
    ("changes_short", DeadlineTrainingOperator, {"retries": 0}),
    ("changes_clock", WrongClock, {}),
]:
    with DAG(name, schedule=None, params={"script": "", "argument": ""}):
        operator(
            task_id="train",
            script="{{ params.script }}",
            arguments=["{{ params.argument }}"],
            deadline="100d",
            min_devices=1,
            runtime="docker",
            retry_delay=timedelta(seconds=1),
            **options,
        )
"""


@pytest.fixture(scope="module")
def dags(airflow: AirflowProcess) -> Iterator[None]:
    with gates.temporary_dag(airflow, "changes", DAGS):
        yield


Start = Callable[..., TrainingTask]


@pytest.fixture
def start(airflow: AirflowProcess, dags: None, docker_client: docker.APIClient, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that runs a DAG with a script. Fail if a container is left, and remove it."""
    script, started = tmp_path / "train.py", []

    def run_dag(source: str, dag_id: str = "changes", argument: str = "begin") -> TrainingTask:
        script.write_text(source)
        run_id = airflow.run_dag(dag_id, {"script": str(script), "argument": argument})
        started.append(TrainingTask(airflow, dag_id, run_id))
        return started[-1]

    yield run_dag
    left = [one for task in started for one in containers(docker_client, task)]
    for container in left:
        docker_client.remove_container(container["Id"], force=True, v=True)
    assert not left


def containers(client: docker.APIClient, task: TrainingTask) -> list[dict[str, Any]]:
    return client.containers(all=True, filters={"label": f"paceline.run={task.run_id}"})


def mark(task: TrainingTask, state: str) -> None:
    path = f"/dags/{task.dag_id}/dagRuns/{task.run_id}/taskInstances/{task.task_id}"
    task.airflow.api("PATCH", path, {"new_state": state})


def clear(task: TrainingTask) -> None:
    what = {"dry_run": False, "dag_run_id": task.run_id, "task_ids": [task.task_id], "only_failed": False}
    task.airflow.api("POST", f"/dags/{task.dag_id}/clearTaskInstances", what)


def pause(task: TrainingTask, paused: bool) -> None:
    task.airflow.api("PATCH", f"/dags/{task.dag_id}", {"is_paused": paused}, update_mask="is_paused")


def kill_worker(task: TrainingTask) -> None:
    """Kill the task and its supervisor, which then cannot report the end of the task."""
    process = psutil.Process(task.instance()["pid"])
    for one in (process.parent(), process):
        os.kill(one.pid, signal.SIGKILL)
    psutil.wait_procs([process], timeout=LONG_S)


def test_marked_task_leaves_a_short_lease_if_airflow_does_not_answer(start, docker_client, capsys, monkeypatch):
    task = start(GATED.read_text(), "changes_unanswered")
    task.wait_until(lambda pace: pace["state"] == "starting")
    container = task.container

    def lease() -> str:
        words = run_in_container(docker_client, container, "cat", "/paceline/state/lease").split()
        return words[-1] if words else ""  # while it is renewed

    until(lambda: lease() == str(6 * 3600))
    mark(task, "failed")
    until(lambda: lease() == "600")
    assert docker_client.inspect_container(container)["State"]["Running"]

    monkeypatch.setenv("PACELINE_AIRFLOW_PASSWORD", task.airflow.passwords["admin"])
    until(lambda: task.airflow.dag_run(task.dag_id, task.run_id)["state"] == "failed")
    assert cli.main(["clean", "--url", f"http://127.0.0.1:{task.airflow.port}", "--user", "admin", "--remove"]) == 0
    assert f"Removed {container[:12]}" in capsys.readouterr().out


def test_deleted_run_leaves_no_container(start, docker_client):
    task = start(GATED.read_text())
    task.wait_until(lambda pace: pace["state"] == "starting")
    task.airflow.api("PATCH", f"/dags/{task.dag_id}/dagRuns/{task.run_id}", {"state": "failed"})
    task.airflow.api("DELETE", f"/dags/{task.dag_id}/dagRuns/{task.run_id}")
    until(lambda: not containers(docker_client, task))


def test_job_that_ends_at_once_runs_once(start):
    task = start("from paceline.train import track\nfor _ in track([1, 2]):\n    print('tick')\n", "changes_short")
    assert task.airflow.wait(task.dag_id, task.run_id, LONG_S) == "success", task.log()
    assert len(re.findall(r"\btick\b", task.log())) == 2
    assert "Restarting the job" not in task.log()


def test_wrong_clock_of_the_worker_does_not_count_as_elapsed_time(start, docker_client):
    task = start(GATED.read_text(), "changes_clock")
    task.wait_until(lambda pace: pace["state"] == "starting")
    open_gates(docker_client, task.container, "begin", "go")
    assert task.airflow.wait(task.dag_id, task.run_id, LONG_S) == "success", task.log()
    assert 0 < task.result()["finished_s"] < 864_000
    assert "This machine's clock differs from the API server's by +864" in task.log()


def test_cleared_task_trains_with_the_fixed_script(start, docker_client, tmp_path):
    task = start(GATED.read_text())
    task.wait_until(lambda pace: pace["state"] == "starting")
    first = task.container
    kill_worker(task)
    mark(task, "success")
    until(lambda: task.airflow.dag_run(task.dag_id, task.run_id)["state"] == "success")
    assert docker_client.inspect_container(first)["State"]["Running"]
    (tmp_path / "train.py").write_text(GATED.read_text().replace('"done": loop.done', '"done": "by the fixed script"'))
    clear(task)
    second = task.wait_until(lambda record: record["id"] != first, key="container")["id"]
    open_gates(docker_client, second, "begin", "go")
    assert task.airflow.wait(task.dag_id, task.run_id, LONG_S) == "success"
    assert json.loads((Path(task.result()["model"]) / "model.json").read_text())["done"] == "by the fixed script"


def test_changed_environment_keeps_the_checkpoint(start, docker_client):
    """The DAG's environment changes with each try."""
    task = start(GATED.read_text(), argument="--checkpoint")
    task.wait_until(lambda pace: pace["loss"] and pace["loss"] < 1)
    first = task.container
    docker_client.kill(first)
    second = task.wait_until(lambda record: record["id"] != first, key="container")["id"]
    open_gates(docker_client, second, "go")
    assert task.airflow.wait(task.dag_id, task.run_id, LONG_S) == "success", task.log(2)
    model = json.loads((Path(task.result()["model"]) / "model.json").read_text())
    assert "a new job resumes from its checkpoint" in task.log(2)
    assert model["batches"] == model["done"]
    assert "resumed from" in task.log(2)


@pytest.mark.parametrize("ended", [False, True])
def test_job_is_found_without_the_live_state(start, docker_client, ended):
    """For example if a user has deleted it, or the process died before it was written."""
    task = start(GATED.read_text())
    task.wait_until(lambda pace: pace["state"] == "starting")
    container = task.container
    pause(task, True)
    try:
        os.kill(task.instance()["pid"], signal.SIGKILL)
        until(lambda: task.instance()["state"] == "up_for_retry")
        path = f"/dags/{task.dag_id}/dagRuns/{task.run_id}/taskInstances/{task.task_id}/state-store"
        for key in ("container", "controller", "pace", "history", "deadline"):
            task.airflow.api("DELETE", f"{path}/{key}")
        if ended:
            open_gates(docker_client, container, "begin", "go")
            until(lambda: not docker_client.inspect_container(container)["State"]["Running"])
    finally:
        pause(task, False)
    if not ended:
        until(lambda: task.stored_value("container"))
        assert task.container == container
        open_gates(docker_client, container, "begin", "go")
    assert task.airflow.wait(task.dag_id, task.run_id, LONG_S) == "success"
    assert task.result()["restarts"] == 0
