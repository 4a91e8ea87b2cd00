"""Which pods of a team are told new addresses of its names, whatever a cluster's network does with addresses."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.errors import RuntimeUnavailableError
from paceline.runtime import TeamNetwork
from paceline.runtime.kubernetes._cluster import ConflictError
from paceline.runtime.kubernetes._team import has_outdated_names, join, restrict, tell_team


class Members:
    """The pods of a team in a namespace, and what has been written into them."""

    namespace = "training"

    def __init__(self, *pods: dict[str, Any], away: str = "") -> None:
        self._pods, self._away = pods, away
        self.told: dict[str, dict[str, str]] = {}

    def call(self, request: str, method: str, *arguments: Any, **options: Any) -> Any:
        assert method == "list_namespaced_pod"
        assert options["label_selector"].startswith("paceline/network=net")
        return SimpleNamespace(data=json.dumps({"items": self._pods}))

    def run(self, request: str, pod: str, command: Sequence[str]) -> Iterator[bytes]:
        if pod == self._away:
            raise RuntimeUnavailableError("its node does not respond")
        self.told[pod] = json.loads(command[-1])
        yield b""


def member(name: str, ip: str, alias: str | None = None, running: bool = True, **known: str) -> dict[str, Any]:
    """Return a pod whose hosts file has the addresses ``known``."""
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"paceline/network": "net"},
            "annotations": {"paceline/alias": alias} if alias else {},
        },
        "spec": {"hostAliases": [{"ip": one, "hostnames": [other]} for other, one in known.items()]},
        "status": {
            "podIP": ip,
            "containerStatuses": [{"name": "job", "state": {"running" if running else "waiting": {}}}],
        },
    }


@pytest.mark.parametrize(
    ("address", "is_new", "expected"),
    [("10.0.0.9", True, True), ("10.0.0.9", False, True), ("10.0.0.1", True, True), ("10.0.0.1", False, False)],
    ids=["new pod", "restarted node", "new pod with the first address", "restart in place"],
)
def test_pods_that_know_a_name_are_told_its_address(address: str, is_new: bool, expected: bool) -> None:
    server, other = member("ps", address, "ps"), member("shard", "10.0.0.3", "shard", ps="10.0.0.1")
    worker = member("worker", "10.0.0.2", ps="10.0.0.1")
    cluster = Members(
        server, other, worker, member("later", "10.0.0.4"), member("waits", "", running=False, ps="1.1.1.1")
    )
    tell_team(cluster, server, is_new=is_new)  # type: ignore[arg-type]
    assert cluster.told == ({"shard": {"ps": address}, "worker": {"ps": address}} if expected else {})


def test_pod_that_cannot_be_told_is_named(caplog: pytest.LogCaptureFixture) -> None:
    server, pods = member("ps", "10.0.0.9", "ps"), [member(name, "10.0.0.2", ps="10.0.0.1") for name in ("a", "b")]
    cluster = Members(server, *pods, away="a")
    with caplog.at_level(logging.WARNING):
        tell_team(cluster, server, is_new=True)  # type: ignore[arg-type]
    assert cluster.told == {"b": {"ps": "10.0.0.9"}}
    assert "Pod a does not learn the new address of ps: its node does not respond" in caplog.text


def test_no_address_is_sent_for_a_pod_without_a_name_or_a_team() -> None:
    alone = member("alone", "10.0.0.1", "ps")
    del alone["metadata"]["labels"]
    for pod in (alone, member("worker", "10.0.0.2")):
        tell_team(None, pod, is_new=True)  # type: ignore[arg-type]


def test_pod_that_replaces_another_does_not_know_its_own_name_at_the_address_of_the_other() -> None:
    old, shard = member("old", "10.0.0.1", "ps"), member("shard", "10.0.0.3", "shard")
    body = join(Members(old, shard), {"metadata": {}, "spec": {}}, TeamNetwork("net", "ps"))  # type: ignore[arg-type]
    assert body["spec"]["hostAliases"] == [{"ip": "10.0.0.3", "hostnames": ["shard"]}]
    new = member("new", "10.0.0.9", "ps")
    new["spec"] = body["spec"]
    assert not has_outdated_names(Members(shard, new), new)  # type: ignore[arg-type]


def test_policy_of_an_earlier_process_is_kept() -> None:
    class Cluster(Members):
        def call(self, request: str, method: str, *arguments: Any, **options: Any) -> Any:
            assert method == "NetworkingV1Api.create_namespaced_network_policy"
            raise ConflictError("it exists")

    restrict(Cluster(), member("ps", "10.0.0.1", "ps"), TeamNetwork("net", "ps"))  # type: ignore[arg-type]
