"""Runs Airflow in a pod: all components, with the KubernetesExecutor. Its database is lost with the pod."""

import json
import os
import signal
from pathlib import Path

from demo.airflow_process import AirflowProcess

HOME, FILES = Path("/opt/airflow/home"), Path("/opt/airflow/test")
HOME.mkdir(exist_ok=True)
(HOME / "passwords.json").write_text(json.dumps({"admin": os.environ["ADMIN_PASSWORD"]}))
url = f"http://{os.environ['POD_IP']}:8080"
template = HOME / "worker.yaml"
template.write_text((FILES / "worker.yaml").read_text().replace("http://API_SERVER", url))
repository, _, tag = os.environ["IMAGE"].rpartition(":")
config = {
    "core.executor": "KubernetesExecutor",
    "core.execution_api_server_url": f"{url}/execution/",
    "core.min_serialized_dag_update_interval": 0,
    "api.host": "0.0.0.0",
    "kubernetes_executor.namespace": os.environ["NAMESPACE"],
    "kubernetes_executor.pod_template_file": template,
    "kubernetes_executor.worker_container_repository": repository,
    "kubernetes_executor.worker_container_tag": tag,
    "kubernetes_executor.delete_worker_pods": False,  # the test reads their logs
}
with AirflowProcess(HOME, dags_folder=Path("/opt/airflow/dags"), config=config, port=8080):
    print("Airflow is up", flush=True)
    signal.pause()
