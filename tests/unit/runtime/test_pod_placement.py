"""Which nodes may run a pod: a named node, a pool, and pods that are kept apart."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.errors import InvalidInputError
from paceline.runtime import DockerOptions, KubernetesOptions
from paceline.runtime.kubernetes._placement import largest, node_filter, place, runs_there
from paceline.runtime.kubernetes._template import check_template

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TEMPLATE = {
    "metadata": {"labels": {"team": "a"}},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "affinity": {
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": []}]}},
            "podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]},
        },
    },
}


def test_named_node_replaces_the_nodes_of_the_template() -> None:
    spec = place(TEMPLATE, KubernetesOptions(node="node1"))["spec"]
    fields = [{"key": "metadata.name", "operator": "In", "values": ["node1"]}]
    assert spec["affinity"]["nodeAffinity"] == {REQUIRED: {"nodeSelectorTerms": [{"matchFields": fields}]}}
    assert "nodeSelector" not in spec
    assert spec["affinity"]["podAntiAffinity"] == TEMPLATE["spec"]["affinity"]["podAntiAffinity"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("runAsUser", 0),
        ("runAsNonRoot", False),
        ("privileged", True),
        ("allowPrivilegeEscalation", True),
        ("capabilities", {"drop": ["ALL"], "add": ["NET_ADMIN"]}),
        ("seccompProfile", {"type": "Unconfined"}),
        ("appArmorProfile", {"type": "Unconfined"}),
        ("seLinuxOptions", {"type": "spc_t"}),
        ("procMount", "Unmasked"),
    ],
)
def test_template_that_gives_the_job_further_rights_is_rejected(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=rf"pod_template_file: got ['\"]securityContext\.{name}: "):
        check_template({"spec": {"containers": [{"name": "job", "securityContext": {name: value}}]}})
    check_template({"spec": {"containers": [{"name": "proxy", "securityContext": {name: value}}]}})


def test_template_may_restrict_the_job_as_the_pod_security_standard_does() -> None:
    context = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
        "seLinuxOptions": None,
    }
    check_template({"spec": {"containers": [{"name": "job", "securityContext": context}]}})


def test_pool_and_group_are_added_to_the_template() -> None:
    pod = place(TEMPLATE, KubernetesOptions(node_selector={"pool": "gates"}, apart="network"))
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd", "pool": "gates"}
    added, kept = pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED]
    assert (added["topologyKey"], kept) == ("kubernetes.io/hostname", {"topologyKey": "zone"})
    assert added["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["labels"]["team"] == "a"


def test_job_without_a_place_keeps_the_template() -> None:
    assert place(TEMPLATE, KubernetesOptions.of(DockerOptions())) == TEMPLATE


def test_node_that_does_not_exist_is_an_error_but_an_empty_pool_may_grow() -> None:
    empty: dict[str, list[float]] = {"cpu": [], "memory": []}
    with pytest.raises(InvalidInputError, match="node: got 'node9', expected the name of a node of the cluster"):
        largest(empty, KubernetesOptions(node="node9"))
    assert largest(empty, KubernetesOptions(node_selector={"pool": "x"})) == {"cpu": math.inf, "memory": math.inf}
    assert largest({"cpu": [2.0, 4.0], "memory": [8.0, 1.0]}, KubernetesOptions()) == {"cpu": 4.0, "memory": 8.0}
    assert node_filter(KubernetesOptions(node="a")) == {"field_selector": "metadata.name=a"}
    assert node_filter(KubernetesOptions(node_selector={"a": "b", "c": "d"})) == {"label_selector": "a=b,c=d"}


def test_running_pod_is_found_on_its_node_or_in_its_pool() -> None:
    pod: dict[str, Any] = {"spec": {"nodeName": "node1", "nodeSelector": {"pool": "gates"}}}
    assert runs_there(pod, KubernetesOptions())
    assert runs_there(pod, KubernetesOptions(node="node1", node_selector={"pool": "gates"}))
    assert not runs_there(pod, KubernetesOptions(node="node2"))
    assert not runs_there(pod, KubernetesOptions(node_selector={"pool": "halls"}))
