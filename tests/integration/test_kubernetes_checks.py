"""What a cluster, an account or a namespace does not admit is found before the job's pod is created, with the mend."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from tests.conftest import connect_cluster

from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime.kubernetes import KubernetesRuntime
from paceline.testing.runtime_contract.harness import WAITS, read_to_end, until, wait_for_line

from .clusters import account
from .jobs import PodHarness
from .kubernetes_guide import guide_rules

pytestmark = pytest.mark.kubernetes
GIB = 2**30


def needed() -> dict[str, list[str]]:
    """Return the verbs of the guide's Role by resource, without the optional ones."""
    return {one["resources"][0]: one["verbs"] for one in guide_rules()[:4]}


def rules(**changes: list[str]) -> list[dict[str, Any]]:
    """Return the rules of the least Role, with other verbs for some resources."""
    verbs = {**needed(), **{name.replace("_", "/"): one for name, one in changes.items()}}
    return [{"apiGroups": [""], "resources": [name], "verbs": one} for name, one in verbs.items() if one]


def limit_range(pods: PodHarness, kind: str = "Container", **bounds: dict[str, str]) -> None:
    body = {"metadata": {"name": "rule"}, "spec": {"limits": [{"type": kind, **bounds}]}}
    pods.core.create_namespaced_limit_range(pods.namespace, body)


def quota(pods: PodHarness, hard: dict[str, str], **more: Any) -> None:
    body = {"metadata": {"name": "budget"}, "spec": {"hard": hard, **more}}
    pods.core.create_namespaced_resource_quota(pods.namespace, body)


def test_all_missing_rights_are_named_at_once_with_the_rules_that_give_them(pods: PodHarness) -> None:
    connect = account(pods.namespace, rules(pods=["get", "list", "create", "patch"], pods_resize=[], pods_exec=["get"]))
    runtime = KubernetesRuntime(connect, namespace=pods.namespace)
    with pytest.raises(InvalidInputError) as raised:
        runtime.start(pods.spec(WAITS))
    message = str(raised.value)
    assert "got 'an account without the rights: watch/delete pods, patch pods/resize, create pods/exec'" in message
    assert f"in namespace {pods.namespace}" in message
    assert '{apiGroups: [""], resources: [pods/resize], verbs: [patch]}' in message


def test_rights_that_are_checked_are_those_of_the_guide(pods: PodHarness) -> None:
    runtime = KubernetesRuntime(account(pods.namespace, []), namespace=pods.namespace)
    with pytest.raises(InvalidInputError) as raised:
        runtime.check(pods.spec(WAITS))
    rights = ", ".join(f"{'/'.join(verbs)} {resource}" for resource, verbs in needed().items())
    assert raised.value.value == f"an account without the rights: {rights}"


def test_account_with_the_least_role_cannot_read_the_rules_and_starts_a_job(pods: PodHarness) -> None:
    limit_range(pods, max={"cpu": "4"})
    runtime = KubernetesRuntime(account(pods.namespace, rules()), namespace=pods.namespace)
    job = runtime.start(pods.spec("print('done')", max_devices=8))
    assert read_to_end(job) == ["done"]
    job.remove()


@pytest.mark.parametrize(
    ("bounds", "changes", "message"),
    [
        ({"max": {"cpu": "1500m"}}, {"max_devices": 2}, "max_devices: got '2 cores', expected at most 1.5 cores"),
        ({"max": {"cpu": "500m"}}, {}, "devices: got '1 cores', expected at most 0.5 cores, the maximum in"),
        ({"kind": "Pod", "max": {"memory": "1Gi"}}, {"memory_bytes": 2 * GIB}, "memory: got '2048 MiB', expected at"),
        ({"min": {"cpu": "50m"}}, {}, "reserve: got False, expected True, because the LimitRange 'rule' of"),
        ({"maxLimitRequestRatio": {"cpu": "10"}}, {}, "reserve: got False, expected True, .* at most 10"),
        ({"min": {"memory": "1Gi"}}, {"memory_bytes": GIB // 2}, "memory: got '512 MiB', expected a value that"),
    ],
    ids=["later cpu", "cpu", "memory", "tiny request", "ratio", "small memory"],
)
def test_limit_range_that_a_job_would_violate(
    pods: PodHarness, bounds: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    limit_range(pods, **bounds)
    with pytest.raises(InvalidInputError, match=re.sub(r"[()]", ".", message)):
        pods.runtime.start(pods.spec(WAITS, **changes))
    assert pods.leftovers() == []


def test_limit_range_that_the_smallest_allocation_of_a_job_would_violate(pods: PodHarness) -> None:
    limit_range(pods, min={"cpu": "50m"})
    runtime = KubernetesRuntime(connect_cluster, namespace=pods.namespace, reserve=True)
    message = (
        f"min_devices: got '0.05 cores', expected a value that the LimitRange 'rule' of namespace {pods.namespace} "
        "admits (a request of at least 0.05 cores, not 0.049 cores)"
    )
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        runtime.start(pods.spec(WAITS, devices=0.5, min_devices=0.05))
    runtime.check(pods.spec(WAITS, devices=0.5, min_devices=0.051))


def test_pod_that_reserves_its_cpu_satisfies_a_limit_range_for_requests(pods: PodHarness) -> None:
    limit_range(pods, min={"cpu": "50m"}, maxLimitRequestRatio={"cpu": "2"})
    runtime = KubernetesRuntime(connect_cluster, namespace=pods.namespace, reserve=True)
    job = runtime.start(pods.spec(WAITS, devices=0.5))
    wait_for_line(job, "up")
    job.stop(0)  # although the namespace does not admit the small request of a stopped job
    assert job.status().stopped
    job.remove()


@pytest.mark.parametrize(
    ("hard", "changes", "message"),
    [
        (
            {"limits.cpu": "1500m"},
            {"max_devices": 2},
            r"max_devices: got '2 cores', expected at most 1500m .limits.cpu.",
        ),
        (
            {"memory": "1Gi"},
            {"memory_bytes": 2 * GIB},
            "memory: got '2048 MiB', expected at most 1Gi .memory",
        ),
    ],
    ids=["cpu", "memory"],
)
def test_quota_that_never_admits_a_job(
    pods: PodHarness, hard: dict[str, str], changes: dict[str, Any], message: str
) -> None:
    quota(pods, hard)
    with pytest.raises(InvalidInputError, match=message):
        pods.runtime.start(pods.spec(WAITS, **changes))
    assert pods.leftovers() == []


def test_quota_for_other_pods_is_ignored(pods: PodHarness) -> None:
    quota(pods, {"limits.cpu": "1m"}, scopes=["Terminating"])
    job = pods.runtime.start(pods.spec("print('done')"))
    assert read_to_end(job) == ["done"]
    job.remove()


def test_job_waits_while_a_quota_is_full(pods: PodHarness, caplog: pytest.LogCaptureFixture) -> None:
    quota(pods, {"limits.cpu": "1500m"})
    caplog.set_level("INFO")
    first = pods.runtime.start(pods.spec(WAITS))
    wait_for_line(first, "up")
    impatient = KubernetesRuntime(connect_cluster, namespace=pods.namespace, start_timeout_s=0.0)
    spec = pods.spec(WAITS, name=f"{pods.mark}-second")
    with pytest.raises(RuntimeUnavailableError, match="exceeded quota: budget"):
        impatient.start(spec)
    started: list[Any] = []
    thread = threading.Thread(target=lambda: started.append(pods.runtime.start(spec)))
    thread.start()
    until(lambda: "Waiting for a quota" in caplog.text)
    first.remove()
    thread.join(120)
    assert started[0].status().state == "running"
    started[0].remove()


def test_request_for_more_memory_than_the_largest_node_has(pods: PodHarness) -> None:
    with pytest.raises(InvalidInputError, match=r"memory: got '\d+ MiB', expected at most \d+ MiB, the memory of the"):
        pods.runtime.start(pods.spec(WAITS, memory_bytes=2**50))


def test_pool_is_what_the_quota_leaves_to_the_jobs(pods: PodHarness) -> None:
    with pytest.raises(InvalidInputError, match=r"namespace: got '.*', expected a namespace with a ResourceQuota"):
        pods.runtime.quota()
    quota(pods, {"limits.cpu": "3", "pods": "9"})
    assert pods.runtime.quota() == 3.0
    job = pods.runtime.start(pods.spec(WAITS, devices=0.5))
    assert pods.runtime.quota() == 3.0, "jobs are what the pool is for"
    container = {
        "name": "other",
        "image": pods.spec().image,
        "command": ["sleep", "infinity"],
        "resources": {"limits": {"cpu": "800m"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    body = {"metadata": {"name": "other"}, "spec": {"containers": [container], "securityContext": security}}
    pods.core.create_namespaced_pod(pods.namespace, body)
    assert pods.runtime.quota() == pytest.approx(2.2)
    pods.core.patch_namespaced_resource_quota("budget", pods.namespace, {"spec": {"hard": {"limits.cpu": "500m"}}})
    assert pods.runtime.quota() == 0.0
    pods.core.delete_namespaced_pod("other", pods.namespace, grace_period_seconds=0)
    job.remove()
