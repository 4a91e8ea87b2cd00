"""Training jobs in a real Airflow: containers from start to result, live deadlines, and faults.

Each job runs until its test opens a gate (``training/gated.py``), so no job ends before the test injects a fault.
``python -m benchmarks.promises`` measures the deviation from the deadline.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import psutil
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training import gates
from tests.integration.training.gates import TrainingTask, open_gates
from tests.waiting import LONG_S, until

from paceline.contract import CONTAINER, CONTROLLER, DEADLINE, HISTORY, OUTPUT, PACE, RESULT

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(1200)]

# A job meets the far deadline at any speed, and cannot meet the near deadline.
FAR, NEAR_S = "100d", 60.0
DAG = f"""
from datetime import timedelta

from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("training", schedule=None, params={{"arguments": "", "min_devices": 0.1}}):
    DeadlineTrainingOperator(
        task_id="train",
        command="python gated.py {{{{ params.arguments }}}}",
        files={{"gated.py": {str(Path(__file__).parent / "training" / "gated.py")!r}}},
        deadline={FAR!r},
        min_devices="{{{{ params.min_devices }}}}",
        runtime="docker",
        retry_delay=timedelta(seconds=1),
    )
"""


@pytest.fixture(scope="module")
def list_dag_containers(docker_client: docker.APIClient) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Yield a function that lists the DAG's containers. Fail if any container is left at the end."""

    def list_containers() -> list[dict[str, Any]]:
        return docker_client.containers(all=True, filters={"label": "paceline.dag=training"})

    yield list_containers
    left = list_containers()
    for container in left:
        docker_client.remove_container(container["Id"], force=True, v=True)
    assert not left


@pytest.fixture(scope="module")
def start_task(airflow: AirflowProcess, list_dag_containers: object) -> Iterator[Callable[..., TrainingTask]]:
    """Yield a function that starts a DAG run and returns its training task."""
    with gates.temporary_dag(airflow, "training", DAG) as dag:
        yield lambda **params: TrainingTask(airflow, dag, airflow.run_dag(dag, params))


def read_model(result: dict[str, Any]) -> dict[str, int]:
    """Return how many batches the model (``batches``) and the training loop (``done``) have counted."""
    return json.loads((Path(result["model"]) / "model.json").read_text())


@pytest.fixture(scope="module")
def observed_run(start_task, docker_client) -> SimpleNamespace:
    """Run a training job, kill its task, change its deadline, and return what was observed."""
    training = start_task(arguments="begin end")
    states = [training.wait_until(lambda pace: pace["state"] != "waiting")["state"]]
    container = training.container
    open_gates(docker_client, container, "begin")
    states.append(training.wait_until(lambda pace: pace["state"] != "starting")["state"])
    # As soon as the speed is known, the minimum allocation meets the far deadline.
    before = training.wait_until(lambda pace: pace["loss"] and pace["devices"] == pace["min_devices"])
    training.wait_until(lambda kept: kept["run"]["allocated_devices"] == before["devices"], key="controller")

    os.kill(training.instance()["pid"], signal.SIGKILL)
    until(lambda: training.instance()["try_number"] == 2 and training.instance()["state"] == "running")
    last = training.stored_value("pace")
    back = training.wait_until(lambda pace: pace["t_s"] > last["t_s"])
    for number, deadline in enumerate(["as soon as possible", f"{back['t_s'] + NEAR_S:.0f}s"], start=1):
        training.airflow.set_task_state(training.dag_id, training.run_id, "train", "deadline", deadline)
        training.wait_until(
            lambda history, number=number: (
                len([one for one in history["events"] if "deadline" in one["kind"]]) == number
            ),
            key="history",
        )
    cut = training.wait_until(lambda pace: pace["devices"] == pace["max_devices"])

    open_gates(docker_client, container, "go")
    states.append(training.wait_until(lambda pace: pace["state"] != "training")["state"])
    open_gates(docker_client, container, "end")
    states.append(training.wait_until(lambda pace: pace["state"] != "finishing")["state"])
    assert training.airflow.wait(training.dag_id, training.run_id, LONG_S) == "success", training.log(2)
    history = training.stored_value("history")
    return SimpleNamespace(
        states=states,
        container=container,
        new_deadline_s=round(back["t_s"] + NEAR_S),
        before=before,
        cut=cut,
        samples=[dict(zip(history["columns"], row, strict=True)) for row in history["samples"]],
        events={one["kind"]: one for one in history["events"]},
        logs=[training.log(1), training.log(2)],
        result=training.result(),
        kept=[
            key
            for key in (PACE, HISTORY, OUTPUT, RESULT, CONTAINER, CONTROLLER, DEADLINE)
            if training.stored_value(key)
        ],
    )


def test_job_passes_through_all_states_and_stores_its_results(observed_run, list_dag_containers):
    assert observed_run.states == ["starting", "training", "finishing", "finished"]
    assert observed_run.result["runtime"] == "docker"
    model = read_model(observed_run.result)
    assert model["batches"] == model["done"] > 0
    assert observed_run.result["loss"] == pytest.approx(1 / model["batches"])
    progress = [row["progress_pct"] for row in observed_run.samples]
    assert progress == sorted(progress)
    assert progress[-1] == 100.0
    assert observed_run.kept == [PACE, HISTORY, OUTPUT, RESULT]
    assert list_dag_containers() == []


def test_live_deadline_changes_the_allocation(observed_run):
    deadline_event = observed_run.events["deadline"]
    assert (deadline_event["before_s"], deadline_event["after_s"]) == (100 * 86_400.0, observed_run.new_deadline_s)
    assert observed_run.result["deadline_s"] == observed_run.cut["deadline_s"] == observed_run.new_deadline_s
    assert observed_run.before["devices"] == 0.1
    assert observed_run.cut["devices"] > 0.1
    earlier = {row["devices"] for row in observed_run.samples if row["deadline_s"] > observed_run.new_deadline_s}
    assert observed_run.cut["devices"] not in earlier  # the old deadline never needs so many devices
    assert f"to {observed_run.new_deadline_s:.1f} s" in observed_run.logs[1]


def test_invalid_live_deadline_is_rejected(observed_run):
    rejection = observed_run.events["deadline_refused"]
    assert rejection["value"] == "as soon as possible"
    assert rejection["t_s"] < observed_run.events["deadline"]["t_s"]
    assert "New deadline rejected, the old deadline of 8640000.0 s remains" in observed_run.logs[1]


def test_killed_task_reattaches_to_its_running_container(observed_run):
    assert f"Job {observed_run.container} of an earlier try is running: taking it over" in observed_run.logs[1]
    assert "resumed" not in observed_run.events  # the training process was never restarted
    assert observed_run.result["restarts"] == 0
    assert observed_run.samples[0]["t_s"] < observed_run.before["t_s"]  # the history includes the first try


def test_first_run_starts_from_measurements_of_another_task_with_the_same_code(airflow, observed_run, docker_client):
    text = DAG.replace('DAG("training"', 'DAG("relative"').replace('"train"', '"other"')
    with gates.temporary_dag(airflow, "relative", text) as dag:
        training = TrainingTask(airflow, dag, airflow.run_dag(dag, {"arguments": "begin end"}), "other")
        training.wait_until(lambda pace: pace["state"] == "starting")
        open_gates(docker_client, training.container, "begin", "go", "end")
        assert training.airflow.wait(dag, training.run_id, LONG_S) == "success", training.log()
    assert "using the measurements of another task with the same code" in training.log()


def test_killed_container_is_resumed_from_its_checkpoint_by_a_retry(start_task, docker_client):
    training = start_task(arguments="--checkpoint", min_devices=1)
    before = training.wait_until(lambda pace: pace["loss"])
    docker_client.kill(training.container)
    training.wait_until(lambda history: any(one["kind"] == "resumed" for one in history["events"]), key="history")
    open_gates(docker_client, training.container, "go")
    assert training.airflow.wait(training.dag_id, training.run_id, LONG_S) == "success", training.log(2)
    assert "exit code 137" in training.log(1)
    assert "it resumes from its checkpoint" in training.log(2)
    (resumed_at,) = re.findall(r"resumed from \S+: (\d+) of 10000 batches were done", training.log(2))
    assert int(resumed_at) >= round(1 / before["loss"])
    model = read_model(training.result())
    assert model["batches"] == model["done"] > int(resumed_at)


def test_task_marked_as_failed_leaves_no_container(start_task, list_dag_containers):
    training = start_task()
    training.wait_until(lambda pace: pace["state"] == "training")
    container = training.container
    path = f"/dags/{training.dag_id}/dagRuns/{training.run_id}/taskInstances/train"
    training.airflow.api("PATCH", path, {"new_state": "failed"})
    until(lambda: container not in [found["Id"] for found in list_dag_containers()])


def test_clearing_a_task_replaces_its_container(start_task, list_dag_containers):
    training = start_task()
    training.wait_until(lambda pace: pace["state"] == "training")
    container = training.container
    what = {"dry_run": False, "dag_run_id": training.run_id, "task_ids": ["train"], "only_failed": False}
    training.airflow.api("POST", f"/dags/{training.dag_id}/clearTaskInstances", what)
    training.wait_until(lambda record: record["id"] != container, key=CONTAINER)
    assert container not in [found["Id"] for found in list_dag_containers()]
    training.airflow.api("PATCH", f"/dags/training/dagRuns/{training.run_id}", {"state": "failed"})


def test_drained_worker_hands_over_its_container_within_the_same_try(start_task, docker_client):
    training = start_task()
    training.wait_until(lambda pace: pace["state"] == "training")
    before = training.stored_value(CONTAINER)
    os.kill(training.instance()["pid"], signal.SIGTERM)  # like the supervisor of a drained worker
    record = training.wait_until(lambda record: record["owner"] != before["owner"], key=CONTAINER)
    assert record["id"] == before["id"]
    assert training.instance()["try_number"] == 1
    open_gates(docker_client, before["id"], "go")
    assert training.airflow.wait(training.dag_id, training.run_id, LONG_S) == "success", training.log()
    assert "its job continues, and the next process takes it over" in training.log()
    assert training.result()["restarts"] == 0


def test_container_continues_when_its_tasks_supervisor_is_killed(start_task, docker_client):
    training = start_task()
    training.wait_until(lambda pace: pace["state"] == "training")
    task, container = psutil.Process(training.instance()["pid"]), training.container
    os.kill(task.ppid(), signal.SIGKILL)
    psutil.wait_procs([task], timeout=LONG_S)
    assert not task.is_running() or task.status() == psutil.STATUS_ZOMBIE, (
        "the next try would be a second controller of the container"
    )
    assert docker_client.inspect_container(container)["State"]["Running"]
    training.airflow.api("PATCH", f"/dags/training/dagRuns/{training.run_id}", {"state": "failed"})
    docker_client.remove_container(container, force=True, v=True)
