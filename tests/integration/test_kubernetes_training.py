"""Training jobs as pods, in a real Airflow: a killed task, a moved deadline, the result, and a task that is marked."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo.airflow_process import AirflowProcess
from kubernetes.client import CoreV1Api
from kubernetes.utils.quantity import parse_quantity
from tests.conftest import connect_cluster
from tests.integration.clusters import run_in_pod
from tests.integration.training import gates
from tests.integration.training.gates import TrainingTask
from tests.waiting import LONG_S, until

pytestmark = [pytest.mark.airflow, pytest.mark.kubernetes, pytest.mark.timeout(1200)]

DAG = """
from datetime import timedelta

from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator, Kubernetes

with DAG("pods", schedule=None, params={{"namespace": ""}}):
    DeadlineTrainingOperator(
        task_id="train",
        command="python gated.py end --checkpoint",
        files={{"gated.py": {script!r}}},
        deadline="100d",
        min_devices=0.1,
        runtime=Kubernetes(image={image!r}, namespace="{{{{ params.namespace }}}}", memory="256m"),
        retry_delay=timedelta(seconds=1),
    )
"""


SCRIPT = str(Path(__file__).parent / "training" / "gated.py")


@pytest.fixture(scope="module")
def dag(airflow: AirflowProcess, trainer_image: str) -> Iterator[str]:
    with gates.temporary_dag(airflow, "pods", DAG.format(script=SCRIPT, image=trainer_image)) as dag_id:
        yield dag_id


def start(airflow: AirflowProcess, dag: str, namespace: str) -> TrainingTask:
    training = TrainingTask(airflow, dag, airflow.run_dag(dag, {"namespace": namespace}))
    # As soon as the speed is known, the minimum allocation meets the far deadline.
    training.wait_until(lambda pace: pace["loss"] and pace["devices"] == pace["min_devices"])
    return training


def open_gate(training: TrainingTask, gate: str) -> None:
    namespace, _, pod = training.container.split("/")
    run_in_pod(namespace, pod, f"touch /paceline/work/{gate}")


def cpu_in_force(namespace: str, kind: str = "limits") -> list[float]:
    """Return the CPU limits, or the requests, in force of all pods of the namespace, in cores."""
    pods = CoreV1Api(connect_cluster()).list_namespaced_pod(namespace).items
    resources = [pod.status.container_statuses[0].resources for pod in pods]
    return [float(parse_quantity(getattr(one, kind)["cpu"])) for one in resources]


def test_killed_task_takes_over_its_pod_and_follows_the_moved_deadline(
    airflow: AirflowProcess, dag: str, namespace: str
) -> None:
    training = start(airflow, dag, namespace)
    until(lambda: cpu_in_force(namespace) == [0.1])
    pod = training.container
    os.kill(training.instance()["pid"], signal.SIGKILL)
    until(lambda: training.instance()["try_number"] == 2 and training.instance()["state"] == "running")
    last = training.stored_value("pace")
    back = training.wait_until(lambda pace: pace["t_s"] > last["t_s"])
    assert training.container == pod
    airflow.set_task_state(dag, training.run_id, "train", "deadline", f"{back['t_s'] + 60:.0f}s")
    full = training.wait_until(lambda pace: pace["devices"] == pace["max_devices"])
    until(lambda: cpu_in_force(namespace) == [full["devices"]])
    for gate in ("go", "end"):
        open_gate(training, gate)
    assert airflow.wait(dag, training.run_id, LONG_S) == "success", training.log(2)
    assert f"Job {pod} of an earlier try is running: taking it over" in training.log(2)
    result = training.result()
    model = json.loads((Path(result["model"]) / "model.json").read_text())
    assert model["batches"] == model["done"] > 0
    assert (result["runtime"], result["restarts"]) == ("kubernetes", 0)
    assert cpu_in_force(namespace) == []


def test_deleted_pod_is_replaced_by_one_that_resumes_from_the_copied_checkpoint(
    airflow: AirflowProcess, dag: str, namespace: str
) -> None:
    training = start(airflow, dag, namespace)
    home = airflow.home / "paceline-data" / "output"
    (copy, *_) = until(lambda: sorted(home.rglob(f"{dag}/{training.run_id}/train.checkpoint/*/copy-*.tar")))
    CoreV1Api(connect_cluster()).delete_namespaced_pod(
        training.container.split("/")[2], namespace, grace_period_seconds=0
    )
    until(lambda: training.instance()["try_number"] == 2 and training.instance()["state"] == "running")
    assert "the pod was deleted" in training.log(1)
    lost = training.stored_value("pace")
    training.wait_until(lambda pace: pace["t_s"] > lost["t_s"] and pace["progress_pct"] > lost["progress_pct"])
    for gate in ("go", "end"):
        open_gate(training, gate)
    assert airflow.wait(dag, training.run_id, LONG_S) == "success", training.log(2)
    assert f"Training resumes from the copy of the lost job's checkpoint in file://{copy.parent}" in training.log(2)
    result = training.result()
    model = json.loads((Path(result["model"]) / "model.json").read_text())
    assert model["batches"] == model["done"] > 0, "a batch was trained twice, or lost"
    assert not copy.parent.parent.exists()


def test_pod_of_a_task_that_a_user_marks_is_removed(airflow: AirflowProcess, dag: str, namespace: str) -> None:
    training = start(airflow, dag, namespace)
    airflow.api("PATCH", f"/dags/{dag}/dagRuns/{training.run_id}", {"state": "failed"})
    until(lambda: cpu_in_force(namespace) == [])


def test_pod_reserves_what_its_job_is_allocated(airflow: AirflowProcess, trainer_image: str, namespace: str) -> None:
    text = DAG.format(script=SCRIPT, image=trainer_image).replace('"pods"', '"reserved"')
    text = text.replace('memory="256m"', 'memory="256m", reserve=True').replace("=0.1,", "=0.1, max_devices=0.5,")
    with gates.temporary_dag(airflow, "reserved", text) as dag:
        training = start(airflow, dag, namespace)
        until(lambda: cpu_in_force(namespace, "requests") == [0.099])
        now = training.stored_value("pace")
        airflow.set_task_state(dag, training.run_id, "train", "deadline", f"{now['t_s'] + 60:.0f}s")
        until(lambda: cpu_in_force(namespace, "requests") == [0.499])
        for gate in ("go", "end"):
            open_gate(training, gate)
        assert airflow.wait(dag, training.run_id, LONG_S) == "success", training.log()
    assert cpu_in_force(namespace, "requests") == []


def test_deferred_job_is_steered_and_survives_its_pod(
    airflow: AirflowProcess, trainer_image: str, namespace: str
) -> None:
    text = DAG.format(script=SCRIPT, image=trainer_image).replace('"pods"', '"deferred_pods"')
    with gates.temporary_dag(airflow, "deferred_pods", text.replace("=0.1,", "=0.1, deferrable=True,")) as dag:
        training = start(airflow, dag, namespace)
        assert training.instance()["state"] == "deferred"
        until(lambda: cpu_in_force(namespace) == [0.1])
        home = airflow.home / "paceline-data" / "output"
        (copy, *_) = until(lambda: sorted(home.rglob(f"{dag}/{training.run_id}/train.checkpoint/*/copy-*.tar")))
        pod = training.container
        CoreV1Api(connect_cluster()).delete_namespaced_pod(pod.split("/")[2], namespace, grace_period_seconds=0)
        training.wait_until(lambda record: record["id"] != pod, "container")
        until(lambda: training.instance()["state"] == "deferred", training)
        assert f"Training resumes from the copy of the lost job's checkpoint in file://{copy.parent}" in training.log(2)
        now = training.wait_until(lambda pace: pace["state"] == "training" and pace["loss"])
        airflow.set_task_state(dag, training.run_id, "train", "deadline", f"{now['t_s'] + 60:.0f}s")
        full = training.wait_until(lambda pace: pace["devices"] == pace["max_devices"])
        until(lambda: cpu_in_force(namespace) == [full["devices"]])
        for gate in ("go", "end"):
            open_gate(training, gate)
        assert airflow.wait(dag, training.run_id, LONG_S) == "success", training.log(2)
        model = json.loads((Path(training.result()["model"]) / "model.json").read_text())
        assert model["batches"] == model["done"] > 0, "a batch was trained twice, or lost"
    assert cpu_in_force(namespace) == []
