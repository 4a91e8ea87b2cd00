"""A training job with the throughput objective, in a real Airflow, as pods: a killed task, and a deleted worker."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from demo.airflow_process import AirflowProcess
from kubernetes.client import ApiException, CoreV1Api, NetworkingV1Api
from kubernetes.utils.quantity import parse_quantity
from tests.conftest import connect_cluster
from tests.integration.clusters import run_in_pod
from tests.integration.training.gates import TrainingTask, temporary_dag
from tests.waiting import LONG_S, until

pytestmark = [pytest.mark.airflow, pytest.mark.kubernetes, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).parent / "training" / "patient.py"
SAMPLES, EPOCHS, BUDGET = 120, 40, 2.0
DAG = """
from airflow.sdk import DAG
from paceline.elastic import Team
from paceline.operators import DeadlineTrainingOperator, Kubernetes

with DAG("team_of_pods", schedule=None, params={{"namespace": ""}}):
    DeadlineTrainingOperator(
        task_id="train",
        script={script!r},
        arguments=["{samples}", "{epochs}"],
        max_devices={budget},
        # Two samples suffice for a scaling decision. The workers are mostly idle, so scaling adds a worker.
        team=Team(
            start_share=1.0, stable_samples=2, stable_variation=1.0, network_samples=2, max_servers=1, max_workers=3
        ),
        runtime=Kubernetes(image={image!r}, namespace="{{{{ params.namespace }}}}", memory="1g"),
    )
"""


@pytest.fixture
def team(airflow: AirflowProcess, trainer_image: str, namespace: str) -> Iterator[TrainingTask]:
    text = DAG.format(script=str(SCRIPT), samples=SAMPLES, epochs=EPOCHS, budget=BUDGET, image=trainer_image)
    with temporary_dag(airflow, "team_of_pods", text) as dag:
        yield TrainingTask(airflow, dag, airflow.run_dag(dag, {"namespace": namespace}))


def test_team_of_a_killed_task_replaces_a_deleted_worker_and_trains_all(team: TrainingTask, namespace: str) -> None:
    core, networks = CoreV1Api(connect_cluster()), NetworkingV1Api(connect_cluster())

    def nodes() -> dict[str, Any]:
        """Return the pods by the names of the team's nodes."""
        return {one.metadata.labels["paceline.node"]: one for one in core.list_namespaced_pod(namespace).items}

    team.wait_until(lambda pace: pace["progress_pct"] > 0)
    first = {name: one.metadata.uid for name, one in nodes().items()}
    os.kill(team.instance()["pid"], signal.SIGKILL)
    until(lambda: team.instance()["try_number"] == 2, "the next try")
    team.wait_until(lambda history: any(len(one.get("nodes", ())) == 4 for one in history["events"]), "history")
    before = nodes()
    assert sorted(before) == ["ps-0", "worker-0", "worker-1", "worker-2"]
    assert first.items() <= {name: one.metadata.uid for name, one in before.items()}.items(), "the same pods"
    limits = [one.spec.containers[0].resources.limits["cpu"] for one in before.values()]
    assert sum(float(parse_quantity(one)) for one in limits) <= BUDGET + 0.01
    assert len(networks.list_namespaced_network_policy(namespace).items) == 4

    lost = before["worker-1"].metadata
    core.delete_namespaced_pod(lost.name, namespace)
    team.wait_until(lambda _: nodes().get("worker-1", before["worker-1"]).metadata.uid != lost.uid)

    opened: set[str] = set()

    def has_ended() -> bool:
        for pod in [one for one in nodes().values() if one.metadata.uid not in opened]:
            with contextlib.suppress(ApiException):  # its container has not started yet, or has been removed
                run_in_pod(namespace, pod.metadata.name, "touch /paceline/work/go")
                opened.add(pod.metadata.uid)
        return bool(team.instance()["state"] in ("success", "failed"))

    until(has_ended, "the end")
    assert team.airflow.wait(team.dag_id, team.run_id, LONG_S) == "success", team.log(2)
    model = torch.load(Path(team.result()["model"]) / "model.pt", weights_only=True)
    assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    events = [one for one in team.stored_value("history")["events"] if one["kind"] == "scaled"]
    assert events[0]["why"] == "starts on 2 of 2 cores"
    assert "more worker" in events[1]["why"]
    assert nodes() == {}
    until(lambda: networks.list_namespaced_network_policy(namespace).items == [], "the end of the policies")
