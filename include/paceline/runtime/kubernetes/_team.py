"""The private network of a team's pods: the policies that restrict them, and the names by which they are reached.

Each pod has its own policy, with the rules of its team. The pod owns the policy, so that the cluster deletes it after
the pod, whatever happens to the other pods of the team and to the process that started them.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidInputError, JobLostError, PacelineError
from paceline.runtime.base import JobSpec, TeamNetwork
from paceline.runtime.kubernetes._cluster import Cluster, ConflictError, list_pods
from paceline.runtime.kubernetes._pod import HOME, MOVED_HOSTS, annotation, end_reason, label_value, runs
from paceline.runtime.kubernetes._template import merge

log = logging.getLogger(__name__)

_NETWORK = "paceline/network"  # a label, by which policies select pods
_ALIAS = "paceline/alias"
_MOVED = f"{HOME}/{MOVED_HOSTS}"
_WRITE = ("/bin/sh", "-c", f'echo "$1" >{_MOVED}.part && mv {_MOVED}.part {_MOVED}', "sh")
# The policy lets no question through to the cluster's name server. Without one, a name is unknown at once.
_NO_NAMES = {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}


def check(spec: JobSpec, template: Mapping[str, Any]) -> None:
    """Raise InvalidInputError if the pods of a team could not be restricted to their network."""
    if spec.team_network is None:
        return
    if (template.get("spec") or {}).get("hostNetwork"):
        accepted = "a pod without hostNetwork: a team has a private network"
        raise InvalidInputError("pod_template_file", "hostNetwork: true", accepted)


def join(cluster: Cluster, pod: Mapping[str, Any], network: TeamNetwork) -> dict[str, Any]:
    """Return the manifest ``pod`` for the network. Its hosts file has the aliases of the network's present pods.

    The file needs neither a Service nor a name server. ``has_outdated_names`` tells whether it is outdated.

    Raises JobLostError if the pod has no alias, and the network has no pods.
    """
    members = _members(cluster, network.name)
    if network.alias is None and not members:
        raise JobLostError(f"the network {network.name} does not exist")
    addresses = _addresses(members)
    # Another pod with the alias of this one is the pod that this one replaces.
    names = [{"ip": ip, "hostnames": [alias]} for alias, ip in addresses.items() if alias != network.alias]
    metadata = {
        "labels": {_NETWORK: label_value(network.name)},
        "annotations": {_ALIAS: network.alias} if network.alias else {},
    }
    return merge(
        pod,
        {"metadata": metadata, "spec": {"hostAliases": names, **({} if network.external_access else _NO_NAMES)}},
    )


def restrict(cluster: Cluster, pod: Mapping[str, Any], network: TeamNetwork) -> None:
    """Create the policy of a pod in a network: the network's pods reach each other, and nothing else.

    With ``external_access``, the pod also reaches everything outside; everything reaches its ``published`` ports.
    """
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    member = {"podSelector": {"matchLabels": {_NETWORK: pod["metadata"]["labels"][_NETWORK]}}}
    policy = {
        "metadata": {
            "name": f"{name}-{uid}",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}],
        },
        "spec": {
            **member,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [member]}, *({"ports": [{"port": port}]} for port in network.published)],
            "egress": [{} if network.external_access else {"to": [member]}],
        },
    }
    method = "NetworkingV1Api.create_namespaced_network_policy"
    with contextlib.suppress(ConflictError):  # an earlier process has created it
        cluster.call("create the network policy of the team", method, cluster.namespace, policy)


def has_outdated_names(cluster: Cluster, pod: Mapping[str, Any]) -> bool:
    """Return whether a job that the hosts file of a pod names has another address now.

    It runs in another pod, or its node has been restarted.
    """
    label = _network_label(pod)
    return label is not None and bool(_moved(pod, _addresses(list_pods(cluster, f"{_NETWORK}={label}"))))


def tell_team(cluster: Cluster, pod: Mapping[str, Any], *, is_new: bool) -> None:
    """Tell the running pods of a team, whose hosts files name the job of ``pod``, the present addresses of such jobs.

    ``is_new``: whether the pod has just started. Otherwise, tell only the pods that know another address than that in
    force, as after a restart of the node. A pod that cannot be told keeps the old address: its job fails after a while,
    and gets a new pod.
    """
    label, alias = _network_label(pod), annotation(pod, _ALIAS)
    if label is None or alias is None:
        return
    members = list_pods(cluster, f"{_NETWORK}={label}")
    addresses = _addresses(members)
    for member in members:
        known, name = _known(member), member["metadata"]["name"]
        is_outdated = bool(_moved(member, addresses))
        if alias not in known or not (is_new or is_outdated) or not runs(member):
            continue
        now = json.dumps({one: ip for one, ip in addresses.items() if one in known})
        try:
            for _ in cluster.run("write the new addresses of the team", name, [*_WRITE, now]):
                pass
        except PacelineError as error:
            log.warning("Pod %s does not learn the new address of %s: %s", name, alias, error)


def _network_label(pod: Mapping[str, Any]) -> str | None:
    return (pod["metadata"].get("labels") or {}).get(_NETWORK)


def _known(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses of aliases in the hosts file of a pod."""
    return {alias: one["ip"] for one in pod["spec"].get("hostAliases") or [] for alias in one["hostnames"]}


def _moved(pod: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the new addresses of the aliases that have another address in the hosts file of a pod."""
    known = _known(pod)
    return {alias: ip for alias, ip in addresses.items() if known.get(alias, ip) != ip}


def has_members(cluster: Cluster, network: str) -> bool:
    """Return whether a pod of this network has an address: others can then look up the names of the network."""
    return any(pod["status"].get("podIP") for pod in _members(cluster, network))


def _members(cluster: Cluster, network: str) -> list[dict[str, Any]]:
    return list_pods(cluster, f"{_NETWORK}={label_value(network)}")


def _addresses(members: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the addresses of those pods of a network that have an alias. Of two pods, the newer has it."""
    found = {}
    for pod in sorted(members, key=lambda one: str(one["metadata"]["creationTimestamp"])):
        alias, ip = annotation(pod, _ALIAS), pod["status"].get("podIP")
        if alias and ip and not end_reason(pod):
            found[alias] = ip
    return found
