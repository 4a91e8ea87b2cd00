"""A fleet whose machines are nodes of a cluster, in a real Airflow: profile, schedule and training as pods."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from demo.airflow_process import AirflowProcess
from kubernetes.client import CoreV1Api, NetworkingV1Api
from tests.conftest import connect_cluster
from tests.integration.clusters import run_in_pod
from tests.integration.kubernetes_guide import FLEET_GUIDE, guide_block
from tests.integration.training.gates import TrainingTask, temporary_dag
from tests.waiting import LONG_S, until

pytestmark = [pytest.mark.airflow, pytest.mark.kubernetes, pytest.mark.timeout(1200)]

CONFIG, SECOND_CONFIG = (os.environ.get(name, "") for name in ("KUBECONFIG", "PACELINE_SECOND_KUBECONFIG"))
SAMPLES, EPOCHS = 2000, 2  # one worker alone needs 200 s until a gate opens
PLAN = {"workers": {name: {"samples": SAMPLES // 2, "batch_size": 4} for name in ("gate-1", "gate-2")}}
DAG = """
from datetime import timedelta

from airflow.sdk import DAG
from paceline.fleet import BackgroundApp, Fleet, Machine
from paceline.operators import Kubernetes, ProfileOperator, ScheduleOperator, train_on_fleet

app = BackgroundApp(name="app", latency_ms=60_000, image="paceline-neighbour:latest", script={app!r})
size = {{"kind": "gate", "cores": 1, "memory_gib": 1, "background": [app]}}
gates = [Machine(name=name, node_selector={{"kubernetes.io/os": "linux"}}, **size) for name in ("gate-1", "gate-2")]
server = Machine(name="server", node={node!r}, kind="hall", cores=1, memory_gib=1)
fleet = Fleet(machines=gates, parameter_server=server)
training = {{
    "script": {script!r},
    "arguments": ["{samples}", "{epochs}"],
    "runtime": Kubernetes(image={image!r}, namespace="{{{{ params.namespace }}}}", memory="1g"),
}}
with DAG("nodes", schedule=None, params={{"namespace": ""}}):
    profile = ProfileOperator(
        task_id="profile", fleet=fleet, profiles={profiles!r}, points=16, measure_s=0.5, batch_sizes=[4], **training
    )
    schedule = ScheduleOperator(
        task_id="schedule",
        fleet=fleet,
        profiles={profiles!r},
        samples={samples},
        measure_s=1,
        runtime=training["runtime"],
    )
    train = train_on_fleet(
        fleet=fleet, plan={plan}, deadline="1h", min_devices=0.5, retry_delay=timedelta(seconds=1), **training
    )
    profile >> schedule >> train
"""


@pytest.fixture
def nodes() -> list[str]:
    """Return the names of the cluster's nodes."""
    names = [node.metadata.name for node in CoreV1Api(connect_cluster()).list_node().items]
    if len(names) < 2:
        pytest.skip("needs a cluster with two nodes")
    return names


@pytest.fixture
def run(
    airflow: AirflowProcess, trainer_image: str, namespace: str, nodes: list[str], tmp_path: Path
) -> Iterator[dict[str, TrainingTask]]:
    """Start a run of the DAG, and yield its tasks by task id."""
    app = tmp_path / "app.py"
    lines = (
        "import time",
        "from paceline.train import report",
        "while not time.sleep(0.1):",
        "    report(execution_s=0.1)",
    )
    app.write_text("\n".join(lines))
    text = DAG.format(
        app=str(app),
        node=nodes[0],
        script=str(Path(__file__).parent / "training" / "patient.py"),
        samples=SAMPLES,
        epochs=EPOCHS,
        image=trainer_image,
        profiles=str(tmp_path / "profiles"),
        plan=PLAN,
    )
    with temporary_dag(airflow, "nodes", text) as dag:
        run_id = airflow.run_dag(dag, {"namespace": namespace})
        names = ("profile", "schedule", "train.parameter_server", "train.gate-1", "train.gate-2", "train.result")
        yield {name: TrainingTask(airflow, dag, run_id, name) for name in names}


def test_fleet_of_nodes_is_profiled_scheduled_and_trained(
    run: dict[str, TrainingTask], namespace: str, nodes: list[str]
) -> None:
    core, networks = CoreV1Api(connect_cluster()), NetworkingV1Api(connect_cluster())
    workers = [run["train.gate-1"], run["train.gate-2"]]
    for task in (run["profile"], run["schedule"]):
        until(lambda task=task: task.instance()["state"] in ("success", "failed"), task.task_id)
        assert task.instance()["state"] == "success", task.log()
    assert run["profile"].result()["profiled"] == {"gate": "it has no profile"}
    plan = run["schedule"].result()
    assert set(plan["workers"]) | set(plan["excluded"]) == {"gate-1", "gate-2"}
    assert set(plan["states"]) == {"gate-1", "gate-2", "server"}

    for worker in workers:
        worker.wait_until(lambda pace: pace["progress_pct"] > 0)
    pods = [core.read_namespaced_pod(worker.container.split("/")[2], namespace) for worker in workers]
    assert {pod.spec.node_name for pod in pods} == set(nodes[:2]), "each worker has its own node of the pool"
    for pod in pods:
        run_in_pod(namespace, pod.metadata.name, "touch /paceline/work/go")
    end = run["train.result"]
    assert end.airflow.wait(end.dag_id, end.run_id, LONG_S) == "success", [worker.log() for worker in workers]
    for worker in workers:
        model = torch.load(Path(worker.result()["model"]) / "model.pt", weights_only=True)
        assert model["counts"].tolist() == [EPOCHS] * SAMPLES
    assert core.list_namespaced_pod(namespace).items == []
    until(lambda: networks.list_namespaced_network_policy(namespace).items == [], "the end of the policies")


RELAY = """
import pathlib, socket, threading
def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
server = socket.create_server(("", 29500))
while True:
    near = server.accept()[0]
    try:
        far = socket.create_connection((pathlib.Path("/tmp/target").read_text().strip(), 29500), timeout=5)
        far.settimeout(None)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a pod that is gone sends no end of its connections
        for option, value in (("KEEPIDLE", 1), ("KEEPINTVL", 1), ("KEEPCNT", 4), ("USER_TIMEOUT", 5000)):
            far.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{option}"), value)
    except OSError:
        near.close()
        continue
    for ends in ((near, far), (far, near)):
        threading.Thread(target=pump, args=ends, daemon=True).start()
"""
CLUSTERS_DAG = """
from datetime import timedelta

from airflow.sdk import DAG
from paceline.fleet import Fleet, Machine
from paceline.operators import Kubernetes, train_on_fleet

size = {{"kind": "gate", "cores": 1, "memory_gib": 1, "node_selector": {{"kubernetes.io/os": "linux"}}}}
east = Machine(name="gate-1", address={address!r}, **size)
west = Machine(name="gate-2", kubernetes_conn_id="west", **size)
fleet = Fleet(machines=[east, west], parameter_server=east, key_conn_id="clusters_key")
with DAG({dag_id!r}, schedule=None):
    train_on_fleet(
        fleet=fleet,
        plan={plan},
        script={script!r},
        arguments=["{samples}", "{epochs}"],
        runtime=Kubernetes(image={image!r}, kubernetes_conn_id="east", memory="1g"),
        deadline="1h",
        min_devices=0.5,
        retry_delay=timedelta(seconds=1),
    )
"""


@dataclass(frozen=True)
class Place:
    """A namespace of the cluster that a file names."""

    namespace: str
    config: str

    @property
    def core(self) -> CoreV1Api:
        return CoreV1Api(connect_cluster(self.config))

    def policies(self) -> list[Any]:
        """Return the network policies."""
        networks = NetworkingV1Api(connect_cluster(self.config))
        return list(networks.list_namespaced_network_policy(self.namespace).items)

    def run(self, pod: str, command: str) -> None:
        """Run a shell command in a pod."""
        run_in_pod(self.namespace, pod, command, self.config)


@contextlib.contextmanager
def new_place(config: str) -> Iterator[Place]:
    """Create a namespace for the block."""
    place = Place(f"test-{uuid.uuid4().hex[:12]}", config)
    place.core.create_namespace({"metadata": {"name": place.namespace}})
    yield place
    place.core.delete_namespace(place.namespace)


@pytest.fixture
def east(namespace: str) -> Place:
    """Return the place of the parameter server."""
    return Place(namespace, CONFIG)


@pytest.fixture(params=["second namespace", "second cluster"])
def west(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Yield the place of a worker: another cluster, or a namespace that a second connection makes look like one."""
    config = CONFIG if request.param == "second namespace" else SECOND_CONFIG
    if not config:
        pytest.skip("PACELINE_SECOND_KUBECONFIG names no cluster")
    with new_place(config) as place:
        yield place


@pytest.fixture
def relay(trainer_image: str) -> Iterator[tuple[Place, str]]:
    """Yield the place and the address of a pod that stands for the load balancer of the guide's Service.

    Not every test cluster gives Services an address.
    """
    container: dict[str, Any] = {"name": "relay", "image": trainer_image, "imagePullPolicy": "IfNotPresent"}
    container["command"] = ["python", "-c", RELAY]
    with new_place(CONFIG) as place:
        pod = {"metadata": {"name": "relay"}, "spec": {"containers": [container]}}
        place.core.create_namespaced_pod(place.namespace, pod)

        def address() -> str | None:
            status = place.core.read_namespaced_pod("relay", place.namespace).status
            return status.pod_ip if status.phase == "Running" else None

        yield place, str(until(address, "the relay"))


@pytest.fixture
def connections(airflow: AirflowProcess, east: Place, west: Place) -> Iterator[None]:
    """Create the connections to both places, and that with the key of the handshake."""
    found: dict[str, dict[str, str]] = {}
    for name, place in (("east", east), ("west", west)):
        extra = json.dumps({"kube_config_path": place.config, "namespace": place.namespace})
        found[name] = {"conn_type": "kubernetes", "extra": extra}
    found["clusters_key"] = {"conn_type": "generic", "password": "shared secret"}
    for name, content in found.items():
        airflow.api("POST", "/connections", {"connection_id": name, **content})
    yield
    for name in found:
        airflow.api("DELETE", f"/connections/{name}")


def test_fleet_trains_on_nodes_of_two_clusters(
    airflow: AirflowProcess,
    trainer_image: str,
    east: Place,
    west: Place,
    relay: tuple[Place, str],
    connections: None,
) -> None:
    relay_place, address = relay
    dag_id = f"clusters_{west.namespace}"
    text = CLUSTERS_DAG.format(
        dag_id=dag_id,
        address=f"{address}:29500",
        plan=PLAN,
        script=str(Path(__file__).parent / "training" / "patient.py"),
        samples=SAMPLES,
        epochs=EPOCHS,
        image=trainer_image,
    )
    (service,) = guide_block("parameter-server.yaml", FLEET_GUIDE)
    (port,) = service["spec"]["ports"]
    selector = ",".join(f"{name}={value}" for name, value in service["spec"]["selector"].items())
    with temporary_dag(airflow, dag_id, text) as dag:
        run_id = airflow.run_dag(dag)
        tasks = {name: TrainingTask(airflow, dag, run_id, f"train.{name}") for name in (*PLAN["workers"], "result")}

        def lead_relay(*, earlier: str = "") -> Any:
            """Lead the relay to the pod that the guide's Service selects, unless it has this uid; return the pod."""

            def find() -> Any:
                pods = east.core.list_namespaced_pod(east.namespace, label_selector=selector).items
                return next((pod for pod in pods if pod.status.pod_ip and pod.metadata.uid != earlier), None)

            pod = until(find, "the parameter server")
            relay_place.run("relay", f"echo {pod.status.pod_ip} >/tmp/target")
            return pod

        server = lead_relay()
        places = {"gate-1": east, "gate-2": west}
        for name, place in places.items():
            tasks[name].wait_until(lambda pace: pace["progress_pct"] > 0)
            assert tasks[name].container.startswith(f"{place.namespace}/")
        (policy,) = west.policies()
        assert not policy.spec.egress[0].to, "a worker in another cluster reaches the outside"
        rules = [rule for one in east.policies() for rule in one.spec.ingress]
        assert [rule.ports[0].port for rule in rules if rule.ports] == [port["port"]]

        # The pod of the parameter server is lost, and its retry starts another: the workers train on in their pods.
        lead = TrainingTask(airflow, dag, run_id, "train.parameter_server")
        until(lambda: "Checkpoints are copied to" in lead.log(), "a copy of the checkpoint")
        containers = {name: tasks[name].container for name in places}
        done = {name: tasks[name].stored_value("pace")["progress_pct"] for name in places}
        east.core.delete_namespaced_pod(server.metadata.name, east.namespace, grace_period_seconds=0)
        lead_relay(earlier=server.metadata.uid)
        for name, reached in done.items():
            tasks[name].wait_until(lambda pace, reached=reached: pace["progress_pct"] > reached + 1)
        assert {name: tasks[name].container for name in places} == containers
        for name, place in places.items():
            place.run(tasks[name].container.split("/")[2], "touch /paceline/work/go")
        end = airflow.wait(dag, run_id, LONG_S)
        assert end == "success", [tasks[name].log() for name in places]
        for name in places:
            model = torch.load(Path(tasks[name].result()["model"]) / "model.pt", weights_only=True)
            assert model["counts"].tolist() == [EPOCHS] * SAMPLES
        for place in places.values():
            assert place.core.list_namespaced_pod(place.namespace).items == []
