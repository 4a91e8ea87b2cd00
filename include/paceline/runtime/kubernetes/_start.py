"""Steps of the start of a pod: create it, wait until it runs, and give it the CPU of its job."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime.kubernetes import _pod
from paceline.runtime.kubernetes._cluster import Cluster, ConflictError, ForbiddenError, QuotaError
from paceline.runtime.kubernetes._job import CPU_TO_COPY, set_cpu
from paceline.runtime.kubernetes._resize import cores_in_force, why_pending
from paceline.runtime.kubernetes._watch import follow_pod

log = logging.getLogger(__name__)

_SAY_EVERY_S = 15.0
_QUOTA_EVERY_S = 5.0
_RESIZE_S = 60.0
# Reasons of a waiting container that do not pass by themselves.
_HOPELESS = {
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImagePullBackOff",
    "CreateContainerConfigError",
    "RunContainerError",
}


def create_pod(cluster: Cluster, body: Mapping[str, Any], give_up_s: float) -> dict[str, Any]:
    """Create a pod, and return it. While a quota is full, wait until ``give_up_s`` of the monotonic clock.

    A pod with less CPU gets a core until ``give_cpu``, if the namespace admits that: its start and the copy of large
    inputs would take minutes.
    """
    cpu = _cpu(body)
    if float(cpu["limits"]["cpu"].rstrip("m")) < 1000 * CPU_TO_COPY:
        quick = copy.deepcopy(dict(body))
        _pod.container(quick)["resources"]["limits"]["cpu"] = _pod.cpu_limit(CPU_TO_COPY)
        try:
            return _create(cluster, quick)
        except (ForbiddenError, QuotaError):
            pass
    is_said = False
    while True:
        try:
            return _create(cluster, body)
        except QuotaError as error:
            left_s = give_up_s - time.monotonic()
            if left_s <= 0:
                raise
            if not is_said:
                log.info("Waiting for a quota: %s", error)
                is_said = True
            time.sleep(min(_QUOTA_EVERY_S, left_s))


def wait_until_running(cluster: Cluster, pod: dict[str, Any], image: str | None, give_up_s: float) -> dict[str, Any]:
    """Wait until a new pod runs, and return it. Logs why it waits.

    Raises RuntimeUnavailableError at ``give_up_s`` of the monotonic clock, InvalidInputError if it will never run. The
    time in which the pod has scheduling gates does not count.
    """
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    began_s = said_s = time.monotonic()
    limit_s = give_up_s - began_s
    again_s = max(1, min(int(_SAY_EVERY_S), int(limit_s)))
    for now in follow_pod(cluster, name, pod, again_s):
        if now is None or now["metadata"]["uid"] != uid:
            break
        if _pod.runs(now):
            return now
        if hopeless := why_hopeless(now):
            raise InvalidInputError("image", image, f"an image that the cluster can run ({hopeless})")
        reason = why_it_waits(now)
        now_s = time.monotonic()
        if now["spec"].get("schedulingGates"):  # a queue, such as Kueue's, decides when the pod may start
            began_s = now_s
        if now_s - began_s >= limit_s:
            raise RuntimeUnavailableError(f"pod {name} did not start within {limit_s:.0f} s: {reason}")
        if now_s - said_s >= _SAY_EVERY_S:
            said_s = now_s
            log.info("Waiting for pod %s: %s", name, reason)
    raise RuntimeUnavailableError(f"pod {name} was deleted before it ran")


def give_cpu(cluster: Cluster, pod: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    """Give a new pod the CPU of its manifest ``body``, and wait until this is in force: its job can then begin."""
    name, cpu = pod["metadata"]["name"], _cpu(body)
    if cpu == _cpu(pod):
        return
    give_up_s = time.monotonic() + _RESIZE_S
    for now in follow_pod(cluster, name, set_cpu(cluster, name, cpu)):
        if now is None or now["metadata"]["uid"] != pod["metadata"]["uid"]:
            raise RuntimeUnavailableError(f"pod {name} was deleted before its job began")
        reason = why_pending(now)
        if not reason:
            return
        if time.monotonic() > give_up_s:
            raise RuntimeUnavailableError(f"pod {name} kept {cores_in_force(now)} cores: {reason}")


def _create(cluster: Cluster, body: Mapping[str, Any]) -> dict[str, Any]:
    try:
        created = cluster.call(
            "create the pod", "create_namespaced_pod", cluster.namespace, body, _preload_content=False
        )
    except ConflictError:
        name = body["metadata"]["name"]
        raise RuntimeUnavailableError(f"another process is starting pod {name}, or it is being deleted") from None
    pod: dict[str, Any] = json.loads(created.data)
    return pod


def _cpu(pod: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the CPU limit and request of the job's container, as ``_pod.cpu_resources`` writes them."""
    from kubernetes.utils.quantity import parse_quantity

    resources = _pod.container(pod)["resources"]
    return {
        kind: {"cpu": f"{round(1000 * parse_quantity(resources[kind]['cpu']))}m"} for kind in ("limits", "requests")
    }


def why_hopeless(pod: Mapping[str, Any]) -> str:
    """Return why a pod will never run; empty if it may."""
    waiting = _waiting(pod)
    return f"{waiting['reason']}: {waiting.get('message', '')}" if waiting.get("reason") in _HOPELESS else ""


def why_it_waits(pod: Mapping[str, Any]) -> str:
    """Return why a pod does not run yet."""
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return _waiting(pod).get("reason") or "it starts"


def _waiting(pod: Mapping[str, Any]) -> dict[str, Any]:
    return (_pod.container_status(pod).get("state") or {}).get("waiting") or {}
