"""Teams of pods: the contract of teams, the policies that restrict their pods, and what only a cluster does to them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.utils.quantity import parse_quantity
from tests.conftest import connect_cluster

from paceline.errors import InvalidInputError, JobLostError, RuntimeUnavailableError
from paceline.runtime import JobSpec, TeamNetwork
from paceline.runtime.kubernetes import KubernetesRuntime, PodJob
from paceline.testing.runtime_contract import TeamContract, fail_on_leftovers
from paceline.testing.runtime_contract.harness import WAITS, read_to_end, until, wait_for_line

from .clusters import account
from .jobs import PodHarness
from .kubernetes_guide import guide_block, guide_rules

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def harness(namespace: str, trainer_image: str, tmp_path: Path) -> Iterator[PodHarness]:
    with fail_on_leftovers(PodHarness(namespace, trainer_image, tmp_path)) as made:
        yield made


class TestTeams(TeamContract):
    """Pods keep the contract of teams."""


SERVES = """
import socket
server = socket.create_server(("", 5000))
print("listens", flush=True)
while True: server.accept()[0].sendall(b"from NAME" + bytes(1_000_000))
"""
ASKS = """
import pathlib, signal, socket
with socket.create_connection(("server", 5000), timeout=60) as connection:
    print(connection.makefile("rb").read().rstrip(b"\\0").decode(), flush=True)
signal.pause()
"""


FOLLOWS = """
import socket, time
from paceline.train.job import current_address
last = None
while not time.sleep(0.1):
    try:
        with socket.create_connection((current_address("server"), 5000), timeout=5) as connection:
            text = connection.makefile("rb").read().rstrip(b"\\0").decode()
    except OSError:
        continue
    if text != last:
        print(last := text, flush=True)
"""


def member(harness: PodHarness, name: str, code: str = WAITS, *, alias: str | None = None, **changes: Any) -> JobSpec:
    """Return the specification of a job in the test's network, with a file of its own."""
    network = TeamNetwork(f"{harness.mark}-net", alias)
    return harness.spec(code, name=f"{harness.mark}-{name}", devices=0.3, team_network=network, **changes)


def started(harness: PodHarness, spec: JobSpec, line: str) -> PodJob:
    job = harness.runtime.start(spec)
    wait_for_line(job, line)
    return job


def owners(harness: PodHarness) -> list[str]:
    """Return the pods that own the policies, and check that each policy lets the team's pods reach only each other."""
    policies = harness.policies()
    selectors = [one.spec.pod_selector.match_labels for one in policies]
    for one in policies:
        (into,), (out,) = one.spec.ingress, one.spec.egress
        (source,), (target,) = into._from, out.to
        assert source.pod_selector == target.pod_selector == one.spec.pod_selector
        assert (source.namespace_selector, source.ip_block, target.namespace_selector, target.ip_block) == (None,) * 4
        assert (into.ports, out.ports) == (None, None)
        assert one.spec.policy_types == ["Ingress", "Egress"]
    assert all(one == selectors[0] and len(one) == 1 for one in selectors)
    labels = [one.metadata.labels for one in harness.core.list_namespaced_pod(harness.namespace).items]
    assert all(selectors[0].items() <= one.items() for one in labels if selectors)
    return sorted(one.metadata.owner_references[0].name for one in policies)


def delete(harness: PodHarness, job: PodJob) -> str:
    """Delete a job's pod, as an administrator or a node does, and wait until it and its policy are gone."""
    pod = job.id.split("/")[2]
    harness.core.delete_namespaced_pod(pod, harness.namespace, grace_period_seconds=0)
    until(lambda: pod not in owners(harness))
    return pod


def test_each_pod_has_a_policy_that_ends_with_it_whichever_pod_ends_first(harness: PodHarness) -> None:
    server = started(harness, member(harness, "ps", SERVES, alias="server"), "listens")
    workers = [started(harness, member(harness, f"worker-{number}", ASKS), "from") for number in range(2)]
    pods = [job.id.split("/")[2] for job in (server, *workers)]
    assert owners(harness) == sorted(pods)
    assert delete(harness, server) == pods[0]
    assert owners(harness) == sorted(pods[1:]), "the workers remain restricted"
    with pytest.raises(JobLostError, match="there is no pod"):
        harness.runtime.labels_of(server.id)
    for job in workers:
        delete(harness, job)
    assert not harness.runtime.has_network(f"{harness.mark}-net")
    for job in (server, *workers):
        job.close()


def test_job_without_an_alias_needs_the_network(harness: PodHarness) -> None:
    with pytest.raises(JobLostError, match=f"the network {harness.mark}-net does not exist"):
        harness.runtime.start(member(harness, "worker"))


def test_name_of_a_replaced_job_leads_to_the_new_pod(harness: PodHarness) -> None:
    old = started(harness, member(harness, "ps", SERVES.replace("NAME", "old"), alias="server"), "listens")
    early = started(harness, member(harness, "early", ASKS), "from old")
    old.stop(0)
    assert old.wait(60)
    new = harness.runtime.replace(old, member(harness, "ps", SERVES.replace("NAME", "new"), alias="server"))
    wait_for_line(new, "listens")
    worker = started(harness, member(harness, "worker", ASKS), "from new")
    for job in (early, worker):
        job.stop(0)
    worker.restart()
    wait_for_line(worker, "from new")
    with pytest.raises(RuntimeUnavailableError, match="because the address of a job of its team changed"):
        early.restart()
    assert early.status().state == "gone", "it would not find the new pod"
    harness.runtime.remove_all({})
    for job in (new, early, worker):
        job.close()


def test_running_job_learns_the_new_address_of_a_job_that_has_moved(harness: PodHarness) -> None:
    server = started(harness, member(harness, "ps", SERVES.replace("NAME", "old"), alias="server"), "listens")
    worker = started(harness, member(harness, "worker", FOLLOWS), "from old")
    other = started(harness, member(harness, "other", WAITS), "up")  # another member, which also has to be told
    delete(harness, server)
    again = started(harness, member(harness, "ps", SERVES.replace("NAME", "new"), alias="server"), "listens")
    wait_for_line(worker, "from new")
    assert worker.status().state == "running", "the same process in the same pod"
    address = harness.core.read_namespaced_pod(again.id.split("/")[2], harness.namespace).status.pod_ip
    for job in (worker, other):
        assert json.loads(harness.run(job, "cat /paceline/state/moved_hosts.json").replace("'", '"')) == {
            "server": address
        }
    server.close()
    for job in (other, worker, again):
        job.remove()


def test_failed_job_whose_team_has_moved_gets_a_new_pod(harness: PodHarness) -> None:
    server = started(harness, member(harness, "ps", SERVES, alias="server"), "listens")
    codes = {"failed": "exit(6)", "done": "exit(0)", "running": "signal.pause()"}
    jobs = {
        name: started(harness, member(harness, name, ASKS.replace("signal.pause()", end)), "from")
        for name, end in codes.items()
    }
    assert jobs["failed"].wait(60)
    assert jobs["done"].wait(60)
    assert found(harness, jobs) == ["failed", "done", "running"], "nothing has changed"
    server.remove()
    new = started(harness, member(harness, "ps", SERVES, alias="server"), "listens")
    assert found(harness, jobs) == ["done", "running"]
    again = started(harness, member(harness, "failed", ASKS), "from")
    for job in (new, again, *jobs.values()):
        job.remove()


def found(harness: PodHarness, names: Iterable[str]) -> list[str]:
    """Return those of the test's names of which the runtime finds a job."""
    jobs = {name: harness.runtime.find_job(f"{harness.mark}-{name}", {}) for name in names}
    for job in jobs.values():
        if job is not None:
            job.close()
    return [name for name, job in jobs.items() if job is not None]


def test_traffic_of_a_pod_is_measured(harness: PodHarness) -> None:
    server = started(harness, member(harness, "ps", SERVES, alias="server"), "listens")
    worker = started(harness, member(harness, "worker", ASKS), "from")
    until(lambda: worker.usage().received_bytes > 1_000_000 and server.usage().sent_bytes > 1_000_000)
    assert worker.usage().sent_bytes < 1_000_000
    for job in (worker, server):
        job.remove()


def test_account_with_the_rights_of_the_guide_runs_a_team(harness: PodHarness) -> None:
    runtime = KubernetesRuntime(account(harness.namespace, guide_rules()), namespace=harness.namespace)
    server = runtime.start(member(harness, "ps", SERVES, alias="server"))
    wait_for_line(server, "listens")
    worker = runtime.start(member(harness, "worker", ASKS))
    wait_for_line(worker, "from")
    assert len(owners(harness)) == 2
    worker.pause()
    worker.unpause()
    assert len(runtime.find_all({"paceline.test": harness.mark})) == 2
    runtime.remove_all({"paceline.test": harness.mark})
    assert not runtime.has_network(f"{harness.mark}-net")
    server.close()
    worker.close()


def test_account_without_the_right_to_network_policies_starts_no_team(harness: PodHarness) -> None:
    rules = [one for one in guide_rules() if one["apiGroups"] == [""]]
    runtime = KubernetesRuntime(account(harness.namespace, rules), namespace=harness.namespace)
    job = runtime.start(harness.spec())
    assert read_to_end(job) == []
    job.remove()
    with pytest.raises(InvalidInputError) as raised:
        runtime.check(member(harness, "ps", alias="server"))
    assert raised.value.value == "an account without the rights: create networkpolicies"
    assert "{apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [create]}" in raised.value.accepted
    assert harness.leftovers() == []


def test_template_that_leaves_the_network_of_the_team_is_rejected(harness: PodHarness) -> None:
    runtime = KubernetesRuntime(connect_cluster, namespace=harness.namespace, template={"spec": {"hostNetwork": True}})
    with pytest.raises(InvalidInputError, match="pod_template_file: got 'hostNetwork: true', expected a pod without"):
        runtime.check(member(harness, "ps", alias="server"))


def test_pods_of_a_team_use_the_cores_of_all_nodes(harness: PodHarness) -> None:
    (template,) = guide_block("spread.yaml")
    (spread,) = template["spec"]["topologySpreadConstraints"]
    spread["whenUnsatisfiable"] = "DoNotSchedule"  # else other pods and full nodes count, too
    runtime = KubernetesRuntime(connect_cluster, namespace=harness.namespace, template=template)
    nodes = harness.core.list_node().items
    assert runtime.team_capacity() == sum(float(parse_quantity(one.status.allocatable["cpu"])) for one in nodes)
    nodes = [one for one in nodes if not one.spec.taints]
    jobs = [runtime.start(member(harness, f"node-{number}", alias=f"node-{number}")) for number in range(len(nodes))]
    pods = harness.core.list_namespaced_pod(harness.namespace).items
    assert {one.spec.node_name for one in pods} == {one.metadata.name for one in nodes}
    for job in jobs:
        job.remove()


def test_all_processes_of_a_paused_job_are_stopped(harness: PodHarness) -> None:
    code = "import subprocess\nwith subprocess.Popen(['sleep', '600']): print('up', flush=True)"
    job = started(harness, member(harness, "app", code, alias="app"), "up")
    job_pids = "$(ls /proc | grep '^[0-9]')"
    states = f"for pid in {job_pids}; do cut -d ' ' -f 2,3 /proc/$pid/stat; done | grep 'python\\|sleep'"
    assert [line[-1] for line in harness.run(job, states).split("\n")[:-1]] == ["S", "S", "S"]
    job.pause()
    assert (job.status().state, job.status().reason) == ("running", "paused")
    assert [line[-1] for line in harness.run(job, states).split("\n")[:-1]] == ["S", "T", "T"]
    job.unpause()
    assert (job.status().state, job.status().reason) == ("running", "")
    job.pause()
    job.stop(60)
    status = job.status()
    assert (status.state, status.exit_code, status.stopped) == ("exited", 143, True), "SIGTERM ends a paused job, too"
    job.remove()
