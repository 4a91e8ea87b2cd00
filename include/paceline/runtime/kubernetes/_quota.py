"""The cores that the quotas of a namespace leave to Paceline's pods."""

from __future__ import annotations

import json

from paceline.errors import InvalidInputError
from paceline.runtime.kubernetes._checks import applies_to_pods, number
from paceline.runtime.kubernetes._cluster import CONTAINER, Cluster, list_pods
from paceline.runtime.kubernetes._pod import JOB, annotation

_LIMIT = "limits.cpu"


def cores_of_quota(cluster: Cluster) -> float:
    """Return the cores of the tightest quota on CPU limits that no other pods use.

    Raises InvalidInputError if the namespace has no such quota, or the account may not list them.
    """
    found = cluster.call(
        "list the resource quotas", "list_namespaced_resource_quota", cluster.namespace, _preload_content=False
    )
    rules = [rule for rule in json.loads(found.data)["items"] if applies_to_pods(rule)]
    quotas = [rule for rule in rules if _LIMIT in (rule["spec"].get("hard") or {})]
    if not quotas:
        accepted = f"a namespace with a ResourceQuota on {_LIMIT}"
        raise InvalidInputError("namespace", cluster.namespace, accepted)
    others = 0.0
    for pod in list_pods(cluster, ""):
        if pod["status"].get("phase") in ("Failed", "Succeeded"):  # quotas do not count ended pods
            continue
        is_job = bool(annotation(pod, JOB))
        sidecars = [one for one in pod["spec"].get("initContainers") or () if one.get("restartPolicy") == "Always"]
        for container in (*pod["spec"]["containers"], *sidecars):
            if is_job and container["name"] == CONTAINER:
                continue
            others += number((container.get("resources", {}).get("limits") or {}).get("cpu", 0))
    return max(min(number(rule["spec"]["hard"][_LIMIT]) for rule in quotas) - others, 0.0)
