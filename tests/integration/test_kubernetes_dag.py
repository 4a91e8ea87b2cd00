"""The DAG of the README with jobs in pods, in a real Airflow beside the cluster: from the drift to the promotion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from demo.airflow_process import AirflowProcess
from kubernetes.client import CoreV1Api
from tests.conftest import connect_cluster
from tests.integration import readme
from tests.integration.training import gates
from tests.waiting import LONG_S, until
from upath import UPath

from paceline.registry import FileRegistry

pytestmark = [pytest.mark.airflow, pytest.mark.kubernetes, pytest.mark.timeout(1200)]
TOKEN = "a-token-that-no-page-shows"


@pytest.fixture
def bucket(airflow: AirflowProcess, tmp_path: Path, namespace: str, trainer_image: str) -> Iterator[Path]:
    """Add the DAG to Airflow, and yield the folder that stands for its bucket."""
    readme.write_table(tmp_path / "store.db")
    readme.write_data(UPath(tmp_path))
    connections = {
        "store": readme.connection("sqlite", host=str(tmp_path / "store.db")),
        "vault": readme.connection("generic", password=TOKEN),
    }
    for name, value in connections.items():
        airflow.cli("connections", "add", name, "--conn-json", value)
    for name, path in readme.SCRIPTS.items():
        (airflow.dags_folder / name).write_text(path.read_text())
    runtime = f'Kubernetes(image="{trainer_image}", namespace="{namespace}", memory="512m")'
    private = 'private_environment={"TOKEN": "{{ conn.vault.password }}"}'
    text = readme.dag(runtime, storage=f"file://{tmp_path}").replace("deadline=", f"{private}, deadline=", 1)
    with gates.temporary_dag(airflow, readme.DAG_ID, text):
        yield tmp_path
    for name in readme.SCRIPTS:
        (airflow.dags_folder / name).unlink()
    for name in connections:
        airflow.cli("connections", "delete", name)


def test_drift_leads_to_a_promotion(airflow: AirflowProcess, bucket: Path, namespace: str) -> None:
    run_id = airflow.run_dag(readme.DAG_ID, {"deadline": "5s"}, logical_date=f"{readme.DAY}T00:00:00Z")
    state = airflow.wait(readme.DAG_ID, run_id, LONG_S)
    states = airflow.task_states(readme.DAG_ID, run_id)
    logs = {task: airflow.task_log(readme.DAG_ID, run_id, task) for task in states if states[task] != "upstream_failed"}
    assert state == "success", "\n".join(logs.values())
    results = {task: airflow.xcom(readme.DAG_ID, run_id, task) for task in logs}
    assert results["drift"]["drifted_features"] == ["minutes"]
    assert (results["train"]["runtime"], results["train"]["restarts"]) == ("kubernetes", 0)
    assert results["evaluate"]["champion"] < 0.1 < 0.9 < results["evaluate"]["challenger"]
    assert results["promote"]["promoted"]
    champion = FileRegistry(bucket / "models").champion("churn")
    assert champion is not None
    assert champion.version == 2
    assert "the token is ***" in logs["train"]
    assert TOKEN not in "".join(logs.values())
    assert CoreV1Api(connect_cluster()).list_namespaced_pod(namespace).items == []


WAITING = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator, Kubernetes

with DAG("waiting", schedule=None):
    runtime = Kubernetes(image={image!r}, namespace={namespace!r}, pod_template_file={template!r})
    DeadlineTrainingOperator(task_id="train", command="true", deadline="1d", runtime=runtime)
"""


def test_pod_in_a_queue_is_removed_with_its_task(
    airflow: AirflowProcess, namespace: str, trainer_image: str, tmp_path: Path
) -> None:
    """The pod has a scheduling gate, as in a queue of Kueue, when a user marks the task as failed."""
    core, template = CoreV1Api(connect_cluster()), tmp_path / "pod.yaml"
    template.write_text("spec: {schedulingGates: [{name: example.com/queue}]}")
    text = WAITING.format(image=trainer_image, namespace=namespace, template=str(template))
    with gates.temporary_dag(airflow, "waiting", text):
        run_id = airflow.run_dag("waiting")
        until(lambda: core.list_namespaced_pod(namespace).items)
        airflow.api("PATCH", f"/dags/waiting/dagRuns/{run_id}", {"state": "failed"})
        until(lambda: not core.list_namespaced_pod(namespace).items)
