"""Airflow in a pod of the cluster, with the KubernetesExecutor: each task is a pod, which starts pods for its jobs."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import string
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from kubernetes.client import CoreV1Api
from tests.conftest import connect_cluster
from tests.waiting import LONG_S

from paceline.airflow.api import AirflowApi

IMAGE = os.environ.get("PACELINE_AIRFLOW_IMAGE", "paceline-airflow:latest")
RUN_S = 3 * LONG_S  # for what starts several Airflow processes or pods one after another
_FILES = Path(__file__).parent
_DEMO = Path(__file__).parents[3] / "demo"


@dataclass(frozen=True)
class ClusterAirflow:
    """A running Airflow in a namespace of its own."""

    namespace: str
    api: AirflowApi

    def task_pods(self, **annotations: str) -> list[str]:
        """Return the names of the pods of tasks, oldest first, whose annotations have these values."""
        pods = (
            CoreV1Api(connect_cluster()).list_namespaced_pod(self.namespace, label_selector="kubernetes_executor").items
        )
        pods.sort(key=lambda pod: pod.metadata.creation_timestamp)
        return [pod.metadata.name for pod in pods if annotations.items() <= pod.metadata.annotations.items()]

    def log(self, pod: str) -> str:
        """Return the log of a pod of this namespace."""
        return read_log(self.namespace, pod)


def read_log(namespace: str, pod: str) -> str:
    """Return the log of a pod."""
    core = CoreV1Api(connect_cluster())
    return str(core.read_namespaced_pod_log(pod, namespace, _preload_content=False).data.decode())


def apply(manifest: str) -> None:
    """Apply a manifest with kubectl."""
    run = subprocess.run(["kubectl", "apply", "-f", "-"], input=manifest, text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


def reachable_address() -> str:
    """Return the address of this machine at which the nodes of the cluster reach it."""
    (address, *_) = [
        one.address
        for node in CoreV1Api(connect_cluster()).list_node().items
        for one in node.status.addresses
        if one.type == "InternalIP"
    ]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def require_image() -> None:
    """Skip the test if the nodes have no Airflow image, or this machine has no kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    nodes = CoreV1Api(connect_cluster()).list_node().items
    names = {name for node in nodes for image in node.status.images for name in image.names or ()}
    if not any(name.endswith(IMAGE) for name in names):
        pytest.skip(f"the nodes have no image {IMAGE}; `make airflow-image` builds it")


@contextlib.contextmanager
def running_airflow(files: Mapping[str, bytes], connections: Mapping[str, str]) -> Iterator[ClusterAirflow]:
    """Start an Airflow with these files in its folder of DAGs, and remove its namespace at the end."""
    core, namespace, password = CoreV1Api(connect_cluster()), f"airflow-{uuid.uuid4().hex[:8]}", secrets.token_hex(8)
    texts = {name: (_FILES / name).read_text() for name in ("airflow.yaml", "worker.yaml", "start.py")}
    texts |= {name: (_DEMO / name).read_text() for name in ("airflow_process.py", "signals.py")}
    manifest = string.Template(texts.pop("airflow.yaml")).substitute(NAMESPACE=namespace, IMAGE=IMAGE)
    *objects, pod = manifest.split("---\n")
    apply("---\n".join(objects))
    binary = {name: base64.b64encode(content).decode() for name, content in files.items()}
    try:
        core.create_namespaced_config_map(
            namespace, {"metadata": {"name": "files"}, "data": texts, "binaryData": binary}
        )
        for name, data in (("connections", dict(connections)), ("admin", {"password": password})):
            core.create_namespaced_secret(namespace, {"metadata": {"name": name}, "stringData": data})
        apply(pod)
        with _forwarded_port(namespace) as port:
            yield ClusterAirflow(namespace, AirflowApi(f"http://127.0.0.1:{port}", {"admin": password}))
    finally:
        core.delete_namespace(namespace)


@contextlib.contextmanager
def _forwarded_port(namespace: str) -> Iterator[int]:
    """Wait until Airflow is up, and yield a local port that leads to its API server."""
    core = CoreV1Api(connect_cluster())
    began_s, log = time.monotonic(), ""
    while "Airflow is up" not in log:
        pod = core.read_namespaced_pod("airflow", namespace)
        if pod.status.phase != "Pending":
            log = read_log(namespace, "airflow")
        assert pod.status.phase in ("Pending", "Running"), log
        assert time.monotonic() - began_s < RUN_S, (
            f"Airflow did not start: {json.dumps(pod.status.to_dict(), default=str)}\n{log}"
        )
        time.sleep(0.5)
    command = ["kubectl", "port-forward", "--namespace", namespace, "pod/airflow", ":8080"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout is not None
        (port,) = re.findall(r"127\.0\.0\.1:(\d+) ->", forwarding.stdout.readline())
        try:
            yield int(port)
        finally:
            forwarding.terminate()
