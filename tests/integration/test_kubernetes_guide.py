"""The guide of Kubernetes: its manifests, commands and values work as they are written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.configuration import conf
from airflow.executors.executor_loader import ExecutorLoader
from demo.airflow_process import AirflowProcess
from kubernetes.client import ApiException, CoreV1Api, RbacAuthorizationV1Api
from tests.conftest import connect_cluster
from tests.integration.jobs import PodHarness
from tests.integration.kubernetes_guide import COMMANDS, FILES
from tests.integration.training import gates
from tests.waiting import LONG_S, until

from paceline.runtime.kubernetes import KubernetesRuntime
from paceline.testing.runtime_contract.harness import read_to_end

pytestmark = pytest.mark.kubernetes
GRANTED = (("list secrets", "no"), ("create pods -n default", "no"), ("delete pods", "yes"), ("list nodes", "yes"))
# Commands that need the network or a cluster of their own: only their syntax is checked.
ELSEWHERE = ("kind", "helm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with the guide's files, whose namespaces have names of their own."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    training = f"training-{uuid.uuid4().hex[:8]}"
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("training", training))
    (tmp_path / "namespace").write_text(training)
    yield tmp_path
    CoreV1Api(connect_cluster()).delete_namespace(training)
    roles = RbacAuthorizationV1Api(connect_cluster())
    for delete in (roles.delete_cluster_role_binding, roles.delete_cluster_role):
        with contextlib.suppress(ApiException):  # the test has failed before it has created them
            delete(f"{training}-nodes")


@pytest.mark.airflow
@pytest.mark.timeout(1200)
def test_commands_lead_to_a_first_run(airflow: AirflowProcess, folder: Path) -> None:
    """The guide's commands in their order, then its DAG, with the account that they have written to a file."""
    training = (folder / "namespace").read_text()
    environment = {**os.environ}
    for command in COMMANDS:
        if command.split()[0] in ELSEWHERE:
            continue
        script = f"set -e -o pipefail\n{command}\nexport -p >exported".replace("training", training)
        run = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
        if "can-i" in command:
            assert run.stdout == "yes\n"
        exported = re.findall(r'declare -x (KUBE_SERVER)="(.*)"', (folder / "exported").read_text())
        environment.update(exported)
    written = folder / "paceline.kubeconfig"
    for question, answer in GRANTED:
        ask = ["kubectl", "--kubeconfig", str(written), "auth", "can-i", *question.split()]
        assert subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() == answer, question
    connection = json.dumps({"conn_type": "kubernetes", "extra": {"kube_config_path": str(written)}})
    airflow.cli("connections", "add", "kubernetes_default", "--conn-json", connection)
    with gates.temporary_dag(airflow, "first_pod", (folder / "first_pod.py").read_text()):
        run_id = airflow.run_dag("first_pod")
        state = airflow.wait("first_pod", run_id, LONG_S)
        assert state == "success", airflow.task_log("first_pod", run_id, "train")
        assert airflow.xcom("first_pod", run_id, "train")["runtime"] == "kubernetes"
    airflow.cli("connections", "delete", "kubernetes_default")


def test_commands_that_are_not_run_are_complete() -> None:
    programs = {shlex.split(command)[0] for command in COMMANDS}
    assert programs == {"kubectl", "export", *ELSEWHERE}
    helm = next(command for command in COMMANDS if command.startswith("helm"))
    assert shlex.split(helm)[-1] in FILES


def test_values_of_the_chart_name_what_exists() -> None:
    values = yaml.safe_load(FILES["values.yaml"])
    assert values["airflowVersion"] in FILES["Dockerfile"], "the image has another Airflow"
    assert values["executor"] in set(ExecutorLoader.executors)
    for variable in values["env"]:
        _, section, option = variable["name"].split("__")
        known = conf.configuration_description.get(section.lower(), {}).get("options", {})
        assert option.lower() in known, variable["name"]
    (binding,) = yaml.safe_load_all(FILES["airflow-worker.yaml"])
    (role,) = [one for one in yaml.safe_load_all(FILES["paceline.yaml"]) if one["kind"] == "Role"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["metadata"]["namespace"] == role["metadata"]["namespace"]
    extras = re.findall(r"airflow-paceline\[(.*?)\]", FILES["Dockerfile"])[0].split(",")
    from importlib.metadata import metadata

    assert set(extras) <= set(metadata("airflow-paceline").get_all("Provides-Extra") or [])


def test_first_dag_of_the_guide_is_valid(tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(compile(FILES["first_pod.py"], "first_pod.py", "exec"), scope)
    assert scope["DAG"]


class SteppedClock:
    """Replaces the module ``time``. Each question for the time takes ``step_s``."""

    step_s = now_s = 0.0
    sleep = staticmethod(time.sleep)

    def monotonic(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_gated_pod_waits_for_its_queue_without_a_limit(
    pods: PodHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test stands for Kueue, which adds the gate at the pod's creation and removes it at the admission."""
    template = yaml.safe_load(FILES["kueue-pod.yaml"])
    gate = {"name": "kueue.x-k8s.io/admission"}
    template["spec"] = {"schedulingGates": [gate]}
    clock = SteppedClock()
    clock.step_s = 20.0  # longer than the time between two messages
    for module in ("_runtime", "_start"):
        monkeypatch.setattr(f"paceline.runtime.kubernetes.{module}.time", clock)
    caplog.set_level("INFO")
    runtime = KubernetesRuntime(connect_cluster, namespace=pods.namespace, template=template)
    jobs: list[Any] = []
    starting = threading.Thread(target=lambda: jobs.append(runtime.start(pods.spec("print('admitted')"))))
    starting.start()
    (pod,) = until(lambda: pods.core.list_namespaced_pod(pods.namespace).items)

    def change_until_said(number: int) -> None:
        body = {"metadata": {"annotations": {"test": str(number)}}}  # a change, which the runtime sees at once
        pods.core.patch_namespaced_pod(pod.metadata.name, pods.namespace, body)
        until(lambda: caplog.text.count("SchedulingGated") >= number)

    change_until_said(1)
    clock.step_s = 1000.0  # longer than start_timeout_s, whose time has begun
    for number in range(2, 5):
        change_until_said(number)
    assert pod.metadata.labels["kueue.x-k8s.io/queue-name"] == "training"
    assert starting.is_alive()
    clock.step_s = 0.0
    remove = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    pods.core.patch_namespaced_pod(pod.metadata.name, pods.namespace, remove)
    starting.join(120)
    assert read_to_end(jobs[0]) == ["admitted"]
    jobs[0].remove()
