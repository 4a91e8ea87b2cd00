"""Airflow in the cluster with the KubernetesExecutor: the README's DAG to the promotion, and task pods that are lost.

Task pods share no folder: registry, data and models are on an object store. They have no kubeconfig: Paceline uses the
account of the task's pod, which has only the rights of the guide.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import CoreV1Api
from tests import s3_server
from tests.conftest import connect_cluster
from tests.integration import in_cluster, readme
from tests.integration.clusters import run_in_pod
from tests.integration.in_cluster import RUN_S, ClusterAirflow
from tests.integration.kubernetes_guide import FILES
from tests.waiting import until

from paceline.registry import FileRegistry

pytestmark = [pytest.mark.airflow, pytest.mark.kubernetes, pytest.mark.timeout(3600)]
GATED = Path(__file__).parent / "training" / "gated.py"
PODS = """
from datetime import timedelta

from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator, Kubernetes

with DAG("lost", schedule=None):
    DeadlineTrainingOperator(task_id="train", script="gated.py", deadline="1d", runtime=RUNTIME)

with DAG("pods", schedule=None):
    DeadlineTrainingOperator(
        task_id="train", script="gated.py", deadline="100d", min_devices=0.1, max_devices=2,
        output="s3://aws@models/pods/{{ run_id }}",
        runtime=RUNTIME, retry_delay=timedelta(seconds=1),
    )
"""


@pytest.fixture(scope="module")
def storage() -> Iterator[s3_server.S3Server]:
    in_cluster.require_image()
    with s3_server.serve(in_cluster.reachable_address()) as server:
        yield server


@pytest.fixture(scope="module")
def jobs_namespace() -> Iterator[str]:
    """Yield the namespace of the jobs, made with the guide's manifest."""
    name = f"training-{uuid.uuid4().hex[:8]}"
    in_cluster.apply(FILES["paceline.yaml"].replace("training", name))
    yield name
    CoreV1Api(connect_cluster()).delete_namespace(name)


@pytest.fixture(scope="module")
def airflow_pod(
    storage: s3_server.S3Server, jobs_namespace: str, trainer_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterAirflow]:
    readme.write_data(storage.folder("readme"))
    table = tmp_path_factory.mktemp("store") / "store.db"
    readme.write_table(table)
    runtime = f'Kubernetes(image="{trainer_image}", namespace="{jobs_namespace}", memory="512m")'
    dag = readme.dag(runtime, storage="s3://aws@models/readme")
    files = {
        "retrain.py": dag.encode(),
        "pods.py": PODS.replace("RUNTIME", runtime).encode(),
        "gated.py": GATED.read_bytes(),
        "store.db": table.read_bytes(),
        **{name: path.read_bytes() for name, path in readme.SCRIPTS.items()},
    }
    extra = {"endpoint_url": storage.options["endpoint_url"], "region_name": "eu-west-1"}
    connections = {
        "AIRFLOW_CONN_AWS": readme.connection("aws", login="key", password="secret", extra=extra),
        "AIRFLOW_CONN_STORE": readme.connection("sqlite", host="/opt/airflow/test/store.db"),
    }
    with in_cluster.running_airflow(files, connections) as airflow:
        binding = FILES["airflow-worker.yaml"].replace("training", jobs_namespace)
        in_cluster.apply(binding.replace("namespace: airflow", f"namespace: {airflow.namespace}"))
        yield airflow


def test_drift_leads_to_a_promotion(airflow_pod: ClusterAirflow, storage: s3_server.S3Server) -> None:
    api = airflow_pod.api
    run_id = api.run_dag(readme.DAG_ID, {"deadline": "5s"}, logical_date=f"{readme.DAY}T00:00:00Z")
    state = api.wait(readme.DAG_ID, run_id, RUN_S)
    # The DAG's schedule may start another run meanwhile.
    logs = {pod: airflow_pod.log(pod) for pod in airflow_pod.task_pods(dag_id=readme.DAG_ID, run_id=run_id)}
    assert state == "success", "\n".join(logs.values())
    assert len(logs) >= 4, "each try of a task has a pod"
    assert api.xcom(readme.DAG_ID, run_id, "train")["runtime"] == "kubernetes"
    assert api.xcom(readme.DAG_ID, run_id, "promote")["promoted"]
    champion = FileRegistry(storage.folder("readme") / "models").champion("churn")
    assert champion is not None
    assert champion.version == 2


@pytest.mark.parametrize("grace_s", [30, 0], ids=["evicted", "killed"])
def test_retry_in_another_task_pod_takes_over_the_job(
    airflow_pod: ClusterAirflow, jobs_namespace: str, grace_s: int
) -> None:
    api, core = airflow_pod.api, CoreV1Api(connect_cluster())
    run_id = api.run_dag("pods")
    seen = {"dag_id": "pods", "run_id": run_id}

    def pace() -> dict[str, float]:
        return api.task_state("pods", run_id, "train", "pace") or {"t_s": 0.0}

    until(lambda: pace().get("loss"), seen)
    job = api.task_state("pods", run_id, "train", "container")["id"]
    (task_pod,) = airflow_pod.task_pods(**seen)
    core.delete_namespaced_pod(task_pod, airflow_pod.namespace, grace_period_seconds=grace_s)
    last = until(lambda: (pods := airflow_pod.task_pods(**seen)) and pods != [task_pod] and pace(), seen)
    until(lambda: pace()["t_s"] > last["t_s"], seen)
    assert api.task_state("pods", run_id, "train", "container")["id"] == job
    run_in_pod(jobs_namespace, job.split("/")[2], "touch /paceline/work/go")
    state = api.wait("pods", run_id, RUN_S)
    log = airflow_pod.log(airflow_pod.task_pods(**seen)[-1])
    assert state == "success", log
    assert f"Job {job} of an earlier try is running: taking it over" in log
    assert api.xcom("pods", run_id, "train")["restarts"] == 0
    assert core.list_namespaced_pod(jobs_namespace).items == []


def test_output_that_would_be_lost_with_the_task_pod_is_an_error(
    airflow_pod: ClusterAirflow, jobs_namespace: str
) -> None:
    run_id = airflow_pod.api.run_dag("lost")
    assert airflow_pod.api.wait("lost", run_id, RUN_S) == "failed"
    (pod,) = airflow_pod.task_pods(dag_id="lost")
    assert "output: got '/opt/airflow/paceline-data/output/lost/" in airflow_pod.log(pod)
    assert "expected an object storage URL, or a folder on a volume of the task's pod" in airflow_pod.log(pod)
    assert CoreV1Api(connect_cluster()).list_namespaced_pod(jobs_namespace).items == []
