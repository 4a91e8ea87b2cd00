"""Machines of a fleet that are nodes of a cluster: their fields, the settings of their pods, and their check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline.airflow.runtimes import Docker, Kubernetes
from paceline.errors import InvalidInputError
from paceline.fleet import Fleet, Machine, check_nodes
from paceline.fleet._file import read
from paceline.fleet._usage_program import read_usage
from paceline.fleet.faults import measuring_faults, training_faults
from paceline.fleet.rendezvous import Rendezvous
from paceline.operators import ParameterServerOperator, ProfileOperator, ScheduleOperator, WorkerTrainingOperator
from paceline.runtime import JobSpec, KubernetesOptions, TeamNetwork
from paceline.train.job import ENV_SERVER, ENV_SERVER_KEY

SIZE: dict[str, Any] = {"kind": "gate", "cores": 2, "memory_gib": 4}
NODE = Machine(name="node", node="node1", gpus=1, **SIZE)
POOL = [Machine(name=name, node_selector={"pool": "gates"}, **SIZE) for name in ("first", "second")]
FLEET = Fleet(machines=POOL, parameter_server=NODE)
PLAN = {"workers": {"first": {"samples": 8, "batch_size": 4}}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"node": "node1", "node_selector": {"pool": "x"}}, "node and node_selector: give one of them"),
        ({"node": "node1", "engine_conn_id": "a"}, "engine_conn_id is for machines with an engine"),
        ({"node": "node1", "cgroup_parent": "/a"}, "cgroup_parent is for machines with an engine"),
        ({"kubernetes_conn_id": "west"}, "kubernetes_conn_id is for a node of a cluster, with node or node_selector"),
        ({"node": ""}, "node: got '', expected .* should match pattern"),
        ({"node": "a,b"}, "node: got 'a,b', expected .* should match pattern"),
        ({"node_selector": {"pool": "a,b=c"}}, "node_selector.pool: got 'a,b=c', expected .* should match pattern"),
        ({"node_selector": {}}, "node_selector: got .*, expected .* at least 1 item"),
        ({"node_selector": {"pool": 3}}, "node_selector.pool: got 3, expected .* valid string"),
    ],
)
def test_contradictory_fields_of_a_node_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read({"machines": [{"name": "a", **SIZE, **fields}]})


def test_nodes_and_engines_cannot_train_together() -> None:
    with pytest.raises(InvalidInputError, match="some machines are nodes of a cluster, and these are not: b"):
        read({"machines": [{"name": "a", "node": "node1", **SIZE}, {"name": "b", **SIZE}]})


def test_nodes_of_one_cluster_need_no_address_and_no_key_and_may_be_of_one_pool() -> None:
    assert FLEET.remote_machines == []
    assert list(training_faults(FLEET)) == list(measuring_faults(FLEET)) == []


def test_workers_run_on_different_nodes_and_the_server_on_its_own_or_one_of_them() -> None:
    point = Rendezvous("network-1", NODE)
    spec = JobSpec(name="job", command=["python"], devices=1)
    assert point.server_spec(spec).options == KubernetesOptions(node="node1")
    assert [point.worker_spec(spec, one).options for one in POOL] == [
        KubernetesOptions(node_selector={"pool": "gates"}, apart="network-1")
    ] * 2


def test_tasks_of_a_fleet_of_nodes_run_as_pods_by_default() -> None:
    worker = {"worker": "first", "server_task_id": "server", "plan": PLAN, "script": "t.py", "deadline": "1m"}
    measured = {"profiles": "profiles"}
    tasks = [
        ParameterServerOperator(task_id="server", fleet=FLEET, plan=PLAN, deadline="1m"),
        WorkerTrainingOperator(task_id="worker", fleet=FLEET, **worker),
        ProfileOperator(task_id="profile", fleet=FLEET, script="t.py", **measured),
        ScheduleOperator(task_id="schedule", fleet=FLEET, samples=8, **measured),
    ]
    assert [task.runtime for task in tasks] == [Kubernetes()] * 4
    fleet = Fleet(machines=[NODE], parameter_server=NODE)
    train = WorkerTrainingOperator(task_id="gpu", fleet=fleet, **{**worker, "worker": "node", "plan": "{{ plan }}"})
    assert train.runtime == Kubernetes(gpus=1)


def test_settings_that_do_not_suit_the_machines_are_rejected() -> None:
    engine = Machine(name="engine", **SIZE)
    with pytest.raises(InvalidInputError, match="runtime: got 'docker', expected 'kubernetes', because node is a node"):
        Docker().on_machine(FLEET, NODE, gpus=0)
    with pytest.raises(InvalidInputError, match=r"fleet.engine.node: got None, expected the name of a node, or node_s"):
        Kubernetes().on_machine(Fleet(machines=[engine], parameter_server=engine), engine, gpus=0)
    with pytest.raises(InvalidInputError, match=r"runtime.gpus: got 2, expected the default: the fleet's file"):
        Kubernetes(gpus=2).on_machine(FLEET, NODE, gpus=1)
    with pytest.raises(InvalidInputError, match="runtime: got 'process', expected 'docker' or 'kubernetes'"):
        ScheduleOperator(task_id="schedule", fleet=FLEET, samples=8, profiles="profiles", runtime="process")


def described_node(name: str, pool: str, cores: str = "2", ready: str = "True", **others: str) -> dict[str, Any]:
    """Return a node as the cluster's API describes it."""
    return {
        "metadata": {"name": name, "labels": {"pool": pool}},
        "status": {
            "allocatable": {"cpu": cores, "memory": "4Gi", **others},
            "conditions": [{"type": "Ready", "status": ready}],
            "nodeInfo": {"kubeletVersion": "v1.36.3"},
        },
    }


def test_check_compares_each_machine_with_its_nodes() -> None:
    nodes = [described_node("node1", "halls", **{"nvidia.com/gpu": "1"}), described_node("node2", "gates", "1930m")]
    found = {one.machine: one for one in check_nodes(FLEET, {None: nodes})}
    assert (found["node"].version, found["node"].cores, found["node"].memory_gib) == ("v1.36.3", 2.0, 4.0)
    assert found["node"].ok
    expected = ("has 1.93 cores for pods, expected 2", "the pool needs 2 nodes, and has 1")
    assert found["first"].problems == found["second"].problems == expected
    nodes = [described_node("node2", "gates", ready="Unknown"), described_node("node3", "gates", "4")]
    found = {one.machine: one for one in check_nodes(FLEET, {None: nodes})}
    assert found["node"].problems == ("the cluster has no node node1",)
    assert found["first"].problems == ("the node node2 does not respond",)
    (gpu,) = check_nodes(Fleet(machines=[NODE], parameter_server=NODE), {None: [described_node("node1", "halls")]})
    assert gpu.problems == ("has 0 of 1 GPUs (nvidia.com/gpu)",)


def test_used_time_of_a_node_leaves_out_idle_time_and_counts_guests_once(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    #          user nice system idle iowait irq softirq steal guest guest_nice
    stat.write_text("cpu  100 20 30 4000 500 6 7 8 90 10\ncpu0 1 2 3\n")
    assert read_usage(str(stat))["cpu_s"] == 171 / os.sysconf("SC_CLK_TCK")


def two_clusters(**server: Any) -> Fleet:
    east = Machine(name="first", node="node1", **SIZE, **server)
    west = Machine(name="second", node="node1", kubernetes_conn_id="west", **SIZE)
    return Fleet(machines=[east, west], parameter_server=east)


def test_nodes_of_another_cluster_need_an_address_and_a_key() -> None:
    assert [fault.field for fault in training_faults(FLEET)] == []
    assert [fault.field for fault in training_faults(two_clusters())] == ["fleet.first.address", "fleet.key_conn_id"]


def test_pods_of_a_machine_are_in_its_cluster() -> None:
    fleet, runtime = two_clusters(), Kubernetes(kubernetes_conn_id="east", memory="1g")
    placed = [runtime.on_machine(fleet, machine, gpus=0) for machine in fleet.machines]
    assert [(one.kubernetes_conn_id, one.memory) for one in placed] == [("east", "1g"), ("west", "1g")]


def test_worker_in_another_cluster_connects_to_the_address_of_the_server() -> None:
    fleet = two_clusters(address="192.0.2.7:30500")
    point = Rendezvous("training-1", fleet.parameter_server, open=True, secret="s3cret")
    server = point.server_spec(JobSpec(name="server", command=["python"], devices=1))
    assert server.team_network == TeamNetwork(
        "training-1", "parameter-server", external_access=True, published={29500: ("192.0.2.7", 30500)}
    )
    near, far = (
        point.worker_spec(JobSpec(name=one.name, command=["python"], devices=1), one) for one in fleet.machines
    )
    assert near.environment[ENV_SERVER] == "parameter-server:29500"
    assert far.environment[ENV_SERVER] == "192.0.2.7:30500"
    assert near.environment[ENV_SERVER_KEY] == far.environment[ENV_SERVER_KEY] == server.environment[ENV_SERVER_KEY]


def test_check_compares_each_machine_with_the_nodes_of_its_cluster() -> None:
    nodes = {None: [described_node("node1", "halls")], "west": [described_node("node2", "halls")]}
    found = {one.machine: one.problems for one in check_nodes(two_clusters(), nodes)}
    assert found == {"first": (), "second": ("the cluster has no node node1",)}
