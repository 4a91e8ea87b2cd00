"""What answers of a cluster mean that the cluster of the tests does not give."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.errors import InvalidInputError
from paceline.runtime.kubernetes._checks import check_cluster
from paceline.runtime.kubernetes._pod import container, end_reason, runs
from paceline.runtime.kubernetes._quota import cores_of_quota
from paceline.runtime.kubernetes._resize import cores_in_force, is_decided, why_pending


class OldCluster:
    """A cluster of Kubernetes 1.32: its API has no pods/resize."""

    namespace = "training"

    def call(self, request: str, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "VersionApi.get_code":
            return SimpleNamespace(git_version="v1.32.4")
        assert method == "get_api_resources"
        return SimpleNamespace(data=json.dumps({"resources": [{"name": "pods"}, {"name": "pods/log"}]}))


def test_cluster_that_cannot_resize_pods_is_named_with_its_version() -> None:
    with pytest.raises(InvalidInputError, match=r"got 'a cluster of Kubernetes v1.32.4', expected 1.33 or newer"):
        check_cluster(OldCluster(), is_team=False)  # type: ignore[arg-type]


def pod(generation: int, in_force: str, **condition: Any) -> dict[str, Any]:
    """Return a pod that asks for two cores."""
    asked = {"name": "job", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1999m"}}}
    status = {"name": "job", "resources": {"limits": {"cpu": in_force}, "requests": {"cpu": "1999m"}}}
    conditions = [{"status": "True", **condition}] if condition else []
    return {
        "metadata": {"generation": generation},
        "spec": {"containers": [asked]},
        "status": {"containerStatuses": [status], "conditions": conditions},
    }


@pytest.mark.parametrize(
    ("condition", "reason", "decided"),
    [
        ({}, "the node has not put it in force yet", False),
        ({"type": "PodResizePending", "reason": "Infeasible", "observedGeneration": 3}, "Infeasible", True),
        ({"type": "PodResizePending", "reason": "Infeasible"}, "Infeasible", True),
        ({"type": "PodResizePending", "reason": "Deferred", "observedGeneration": 2}, "the node has not", False),
        ({"type": "PodResizeInProgress", "observedGeneration": 3}, "the node has not", False),
        ({"type": "PodResizeInProgress", "reason": "Error", "message": "no cgroup"}, "Error: no cgroup", True),
        ({"type": "PodReady", "reason": "Error"}, "the node has not", False),
    ],
    ids=["none", "infeasible", "kubernetes 1.33", "earlier resize", "in progress", "error", "another condition"],
)
def test_conditions_say_why_a_resize_is_not_in_force(condition: dict[str, Any], reason: str, decided: bool) -> None:
    found = pod(3, "500m", **condition)
    assert why_pending(found).startswith(reason)
    assert is_decided(found) is decided


def test_resize_in_force_is_not_pending_whatever_an_old_condition_says() -> None:
    assert why_pending(pod(3, "2000m", type="PodResizePending", reason="Deferred", observedGeneration=2)) == ""


def with_proxy(state: dict[str, Any]) -> dict[str, Any]:
    """Return a pod in which a service mesh has put its proxy before the job's container."""
    limits = {"limits": {"cpu": "2"}}
    return {
        "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "proxy"}, {"name": "job", "resources": limits}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "proxy", "state": {"running": {}}, "restartCount": 3},
                {"name": "job", "state": state, "restartCount": 0, "resources": limits},
            ],
        },
    }


def test_state_is_that_of_the_job_and_not_of_a_proxy_in_its_pod() -> None:
    assert runs(with_proxy({"running": {}}))
    assert end_reason(with_proxy({"running": {}})) == ""
    assert not runs(with_proxy({"terminated": {"exitCode": 0}}))
    assert end_reason(with_proxy({"terminated": {"exitCode": 0}})) == "the pod was deleted"
    assert container(with_proxy({}))["resources"] == {"limits": {"cpu": "2"}}
    assert cores_in_force(with_proxy({})) == 2.0


class QuotaCluster:
    """A namespace with a quota of 10 cores and some pods."""

    namespace = "training"

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.answers = {
            "list_namespaced_resource_quota": [{"spec": {"hard": {"limits.cpu": "10"}}}],
            "list_namespaced_pod": list(pods),
        }

    def call(self, request: str, method: str, *arguments: Any, **options: Any) -> Any:
        return SimpleNamespace(data=json.dumps({"items": self.answers[method]}))


def test_quota_leaves_what_other_containers_than_those_of_jobs_use() -> None:
    proxy = {"name": "proxy", "resources": {"limits": {"cpu": "2"}}}
    job = {"name": "job", "resources": {"limits": {"cpu": "6"}}}
    init = [{"name": "copy", "resources": {"limits": {"cpu": "4"}}}, {**proxy, "restartPolicy": "Always"}]
    of_job, status = {"annotations": {"paceline/job": "train"}}, {"phase": "Running"}
    pods = {
        "job with a proxy first": {"metadata": of_job, "spec": {"containers": [proxy, job]}, "status": status},
        "other pod": {"metadata": {}, "spec": {"containers": [job], "initContainers": init}, "status": status},
        "ended pod": {"metadata": {}, "spec": {"containers": [job]}, "status": {"phase": "Failed"}},
    }
    left = {name: cores_of_quota(QuotaCluster(one)) for name, one in pods.items()}  # type: ignore[arg-type]
    assert left == {"job with a proxy first": 8.0, "other pod": 2.0, "ended pod": 10.0}
