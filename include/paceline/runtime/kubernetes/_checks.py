"""Finds before a job starts what its cluster, its account or the rules of its namespace would not let it do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from paceline.errors import InvalidInputError
from paceline.runtime.kubernetes._cluster import CONTAINER, Cluster, ForbiddenError

# Verbs that Paceline needs, by API group and resource: those of the Role in the guide.
_NEEDED = {
    ("", "pods"): ("get", "list", "watch", "create", "patch", "delete"),
    ("", "pods/resize"): ("patch",),
    ("", "pods/log"): ("get",),
    ("", "pods/exec"): ("get", "create"),
}
_NEEDED_BY_TEAMS = {("networking.k8s.io", "networkpolicies"): ("create",)}
_CORE = '""'  # the API group without a name, in YAML
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_SETTINGS = {"cpu": "max_devices", "memory": "memory", "ephemeral-storage": "disk"}
# Scopes of quotas that hold for every pod of Paceline; other scopes select some pods only.
_SCOPES = {"NotBestEffort", "NotTerminating"}


def check_cluster(cluster: Cluster, *, is_team: bool) -> None:
    """Raise InvalidInputError if the cluster cannot resize pods, or the account lacks rights: all of them at once.

    ``is_team``: whether to include the rights that only jobs of a team need.
    """
    found = cluster.call("list the kinds of objects", "get_api_resources", _preload_content=False)
    if "pods/resize" not in {one["name"] for one in json.loads(found.data)["resources"]}:
        version = cluster.call("read the cluster's version", "VersionApi.get_code").git_version
        accepted = "1.33 or newer, which resizes pods in place (API pods/resize): update the cluster, or use Docker"
        raise InvalidInputError("runtime", f"a cluster of Kubernetes {version}", accepted)
    needed = {**_NEEDED, **(_NEEDED_BY_TEAMS if is_team else {})}
    missing: dict[tuple[str, str], list[str]] = {}
    for group, resource, verb in _missing(cluster, needed):
        missing.setdefault((group, resource), []).append(verb)
    if missing:
        rights = ", ".join(f"{'/'.join(verbs)} {resource}" for (_, resource), verbs in missing.items())
        rules = [
            f"{{apiGroups: [{group or _CORE}], resources: [{resource}], verbs: [{', '.join(needed[group, resource])}]}}"
            for group, resource in missing
        ]
        accepted = f"these rights in namespace {cluster.namespace}, for example with a Role that has {'; '.join(rules)}"
        raise InvalidInputError("runtime", f"an account without the rights: {rights}", accepted)


def check_rules(cluster: Cluster, pods: Mapping[str, Mapping[str, Any]], *, reserve: bool) -> None:
    """Raise InvalidInputError if the namespace's rules do not admit a pod with one of the allocations of its job.

    Rules that the account may not read are not checked: the cluster then rejects the pod, or a resize.

    Parameters
    ----------
    cluster:
        The pod's namespace.
    pods:
        Manifest of the pod with the first, the largest and the smallest allocation, by the name of the setting.
    reserve:
        Whether the request of CPU follows the limit.
    """
    ranges, quotas = _list(cluster, "limit_range"), _list(cluster, "resource_quota")
    for setting, pod in pods.items():
        settings = {**_SETTINGS, "cpu": setting}
        for rule in ranges:
            name = f"the LimitRange {rule['metadata']['name']!r} of namespace {cluster.namespace}"
            for item in rule["spec"]["limits"]:
                if item["type"] in ("Container", "Pod"):
                    _check_range(name, item, _amounts(pod, of_pod=item["type"] == "Pod"), settings, reserve)
        _check_quotas(cluster, quotas, _amounts(pod, of_pod=True), settings)


def _check_quotas(
    cluster: Cluster,
    quotas: Iterable[Mapping[str, Any]],
    amounts: Mapping[tuple[str, str], float],
    settings: Mapping[str, str],
) -> None:
    """Compare the amounts of a pod with the quotas, whether or not they are full now."""
    for rule in quotas:
        if not applies_to_pods(rule):
            continue
        name = f"the ResourceQuota {rule['metadata']['name']!r} of namespace {cluster.namespace}"
        for key, hard in (rule["spec"].get("hard") or {}).items():
            kind, _, resource = key.rpartition(".")
            amount = amounts.get((kind or "requests", resource))
            if resource in _RESOURCES and kind in ("", "limits", "requests") and amount and amount > number(hard):
                accepted = f"at most {hard} ({key}), because {name} never admits more: lower it, or raise the quota"
                raise InvalidInputError(settings[resource], _text(resource, amount), accepted)


def applies_to_pods(quota: Mapping[str, Any]) -> bool:
    """Return whether a ResourceQuota holds for every pod of Paceline."""
    spec = quota["spec"]
    return not spec.get("scopeSelector") and set(spec.get("scopes") or ()) <= _SCOPES


def check_memory(memory_bytes: int | None, largest_node: float) -> None:
    """Raise InvalidInputError if no node has as much memory as the job requests."""
    if memory_bytes is not None and memory_bytes > largest_node:
        accepted = f"at most {_text('memory', largest_node)}, the memory of the cluster's largest node"
        raise InvalidInputError("memory", _text("memory", memory_bytes), accepted)


def allocatable(cluster: Cluster, **selectors: str) -> dict[str, list[float]]:
    """Return the cores and bytes of memory of each node; infinite amounts without the right to list the nodes."""
    try:
        nodes = [node["status"]["allocatable"] for node in list_nodes(cluster, **selectors)]
    except ForbiddenError:
        return {"cpu": [math.inf], "memory": [math.inf]}
    return {resource: [number(node[resource]) for node in nodes] for resource in ("cpu", "memory")}


def list_nodes(cluster: Cluster, **selectors: str) -> list[dict[str, Any]]:
    """Return the nodes as the cluster describes them. ``selectors`` are arguments of the client's ``list_node``."""
    found = cluster.call("list the nodes", "list_node", _preload_content=False, **selectors)
    nodes: list[dict[str, Any]] = json.loads(found.data)["items"]
    return nodes


def _missing(cluster: Cluster, needed: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield the groups, resources and verbs that the account may not use."""
    body = {"spec": {"namespace": cluster.namespace}}
    answer = _review(cluster, "rules", body)
    for (group, resource), verbs in needed.items():
        for verb in verbs:
            if any(_grants(rule, group, resource, verb) for rule in answer["status"]["resourceRules"]):
                continue
            # The list may be incomplete, for example if another service decides about rights: ask about this one.
            name, _, part = resource.partition("/")
            what = {"group": group, "resource": name, "subresource": part}
            attributes = {"namespace": cluster.namespace, "verb": verb, **what}
            if not _review(cluster, "access", {"spec": {"resourceAttributes": attributes}})["status"]["allowed"]:
                yield group, resource, verb


def _review(cluster: Cluster, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the cluster about the account's rights. This needs no right in a cluster with Kubernetes' default roles."""
    method = f"AuthorizationV1Api.create_self_subject_{kind}_review"
    try:
        found = cluster.call("read the rights", method, body, _preload_content=False)
    except ForbiddenError:  # then a request without the right will say so
        return {"status": {"allowed": True, "resourceRules": []}}
    answer: dict[str, Any] = json.loads(found.data)
    return answer


def _grants(rule: Mapping[str, Any], group: str, resource: str, verb: str) -> bool:
    resources = {resource, "*", f"*/{resource.partition('/')[2]}"}
    return bool(
        not rule.get("resourceNames")
        and {group, "*"} & set(rule.get("apiGroups") or ())
        and resources & set(rule.get("resources") or ())
        and {verb, "*"} & set(rule["verbs"])
    )


def _list(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    """Return the rules of one kind; none if the account may not read them."""
    request, method = f"list the {kind.replace('_', ' ')}s", f"list_namespaced_{kind}"
    try:
        found = cluster.call(request, method, cluster.namespace, _preload_content=False)
    except ForbiddenError:
        return []
    rules: list[dict[str, Any]] = json.loads(found.data)["items"]
    return rules


def _check_range(
    name: str,
    item: Mapping[str, Any],
    amounts: Mapping[tuple[str, str], float],
    settings: Mapping[str, str],
    reserve: bool,
) -> None:
    """Compare the amounts of a container or of a pod with one item of a LimitRange."""
    for resource in _RESOURCES:
        request, limit = amounts.get(("requests", resource)), amounts.get(("limits", resource))
        high, low, ratio = (
            None if (value := (item.get(bound) or {}).get(resource)) is None else number(value)
            for bound in ("max", "min", "maxLimitRequestRatio")
        )
        if high is not None and limit is not None and limit > high:
            accepted = f"at most {_text(resource, high)}, the maximum in {name}: lower it, or raise the maximum"
            raise InvalidInputError(settings[resource], _text(resource, limit), accepted)
        is_low = low is not None and request is not None and request < low
        is_wide = ratio is not None and request and limit is not None and limit / request > ratio
        if not (is_low or is_wide):
            continue
        rule = (
            f"a request of at least {_text(resource, low)}" if is_low else f"limits of at most {ratio:g} x the request"
        )
        if resource == "cpu" and not reserve:
            accepted = f"True, because {name} wants {rule}, and without it a pod requests {request:g} cores"
            raise InvalidInputError("reserve", False, accepted)
        rule += f", not {_text(resource, request)}" if is_low else ""
        accepted = f"a value that {name} admits ({rule}), or a namespace without this rule"
        raise InvalidInputError(settings[resource], _text(resource, limit or request), accepted)


def _amounts(pod: Mapping[str, Any], *, of_pod: bool) -> dict[tuple[str, str], float]:
    """Return the requests and limits of a job's container, or the sums of all of its pod's containers."""
    amounts: dict[tuple[str, str], float] = {}
    for container in pod["spec"]["containers"]:
        if of_pod or container["name"] == CONTAINER:
            resources = container.get("resources") or {}
            for kind in ("limits", "requests"):
                # A container without a request gets its limit as the request.
                values = {**(resources.get("limits") or {}), **(resources.get(kind) or {})}
                for resource, amount in values.items():
                    amounts[kind, resource] = amounts.get((kind, resource), 0.0) + number(amount)
    return amounts


def number(quantity: object) -> float:
    """Return an amount that the cluster's API gives as text, such as ``500m``."""
    from kubernetes.utils.quantity import parse_quantity

    return float(parse_quantity(quantity))


def _text(resource: str, amount: float | None) -> str:
    """Return an amount for people."""
    return f"{amount:g} cores" if resource == "cpu" else f"{(amount or 0) / 2**20:.0f} MiB"
