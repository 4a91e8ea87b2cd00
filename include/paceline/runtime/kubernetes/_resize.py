"""What a pod's status says about the resize that its specification asks for. ``PodJob`` and the runtime read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.runtime.kubernetes._pod import container, container_status

_UNDECIDED = "the node has not put it in force yet"


def cores_in_force(pod: Mapping[str, Any]) -> float | None:
    """Return the CPU limit in force, in cores; ``None`` if the status does not have it."""
    return _cores(container_status(pod), "limits")


def why_pending(pod: Mapping[str, Any]) -> str:
    """Return why the resources of the specification are not in force; empty if they are.

    >>> pod = {"metadata": {"generation": 2}, "status": {"conditions": [], "containerStatuses": [
    ...     {"name": "job", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1m"}}}]},
    ...     "spec": {"containers": [{"name": "job", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1m"}}}]}}
    >>> why_pending(pod)
    'the node has not put it in force yet'
    >>> pod["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Deferred",
    ...     "message": "Node did not have enough resource: cpu", "observedGeneration": 2}]
    >>> why_pending(pod)
    'Deferred: Node did not have enough resource: cpu'
    """
    asked = container(pod)
    status = container_status(pod)
    if all(_cores(asked, kind) == _cores(status, kind) for kind in ("limits", "requests")):
        return ""
    for condition in pod["status"].get("conditions") or []:
        # A condition of an earlier generation is about an earlier resize. Kubernetes 1.33 does not say which.
        if condition.get("observedGeneration", pod["metadata"]["generation"]) != pod["metadata"]["generation"]:
            continue
        is_failure = condition["type"] == "PodResizeInProgress" and condition.get("reason") == "Error"
        if condition["status"] == "True" and (condition["type"] == "PodResizePending" or is_failure):
            return ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    return _UNDECIDED


def is_decided(pod: Mapping[str, Any]) -> bool:
    """Return whether the node has decided about the resize: it is in force, or a condition says why it is not."""
    return why_pending(pod) != _UNDECIDED


def _cores(container: Mapping[str, Any], kind: str) -> float | None:
    from kubernetes.utils.quantity import parse_quantity

    value = ((container.get("resources") or {}).get(kind) or {}).get("cpu")
    return None if value is None else float(parse_quantity(value))
