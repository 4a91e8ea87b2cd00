"""The manifest of a job's pod, and what the pod's labels and annotations say about the job."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.runtime.base import JobSpec
from paceline.runtime.kubernetes import _supervisor
from paceline.runtime.kubernetes._cluster import CONTAINER

HOME = _supervisor.HOME
MOVED_HOSTS = "state/moved_hosts.json"  # below the home: new addresses of the team's names
GPU_RESOURCE = "nvidia.com/gpu"
MANAGED = "app.kubernetes.io/managed-by=paceline"
# Two pods can have one job's name, while one replaces the other.
SLOTS = ("a", "b")
JOB, LABELS, SPEC, CORES = "paceline/job", "paceline/labels", "paceline/spec", "paceline/cores-per-device"
# Of a job whose further GPUs are in pods of their own: the manifest of these pods, and the number of the first pod's
# GPUs. Of such a pod: the number of its device.
DEVICE_POD, GPUS, DEVICE = "paceline/device-pod", "paceline/gpus", "paceline/device"
READY = "paceline/ready"  # the pod has all files of the job
RECORD = "paceline/record"
RESERVE = "paceline/reserve"  # the request of CPU follows the limit
STARTER = "paceline/starter"  # unique name of the process that starts the job
# The request of CPU is small and fixed: only the limit changes, so no resize waits for room on the node. A pod that
# reserves its CPU requests a thousandth of a core less than its limit: requests that equal all limits would change the
# pod's class of service to Guaranteed, which the cluster rejects, and whose CPU a node with the static CPU manager
# policy does not resize.
_CPU_REQUEST_M, _CPU_MIN = 1, 0.01
_DISK_REQUEST = "64Mi"
_SHM_BYTES = 1024**3
_LOG_BYTES = 128 * 1024**2  # of the container's log, which counts as its disk space
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")
_START = 'exec "$(command -v python || command -v python3)" -u -c "$1"'


def pod_name(job: str, slot: str) -> str:
    """Return the name of a job's pod.

    >>> pod_name("retrain_daily-train-0b97", "a")
    'paceline-retrain-daily-train-0b97-3973dae3-a'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", job).strip("-")[:40].strip("-")
    return f"paceline-{readable}-{hashlib.sha256(job.encode()).hexdigest()[:8]}-{slot}"


def cpu_limit(cores: float) -> str:
    """Return a CPU limit in thousandths of a core, at least the smallest quota of a kernel.

    >>> cpu_limit(1.05), cpu_limit(0.0001)
    ('1050m', '10m')
    """
    return f"{round(1000 * max(cores, _CPU_MIN))}m"


def cpu_resources(cores: float, *, reserve: bool) -> dict[str, dict[str, str]]:
    """Return limit and request of a job's container.

    >>> cpu_resources(0.5, reserve=False), cpu_resources(0.5, reserve=True)["requests"]
    ({'limits': {'cpu': '500m'}, 'requests': {'cpu': '1m'}}, {'cpu': '499m'})
    """
    limit = cpu_limit(cores)
    request = int(limit[:-1]) - 1 if reserve else _CPU_REQUEST_M
    return {"limits": {"cpu": limit}, "requests": {"cpu": f"{request}m"}}


def annotation(pod: Mapping[str, Any], name: str) -> str | None:
    """Return an annotation of a pod; ``None`` if it has none of this name."""
    return (pod["metadata"].get("annotations") or {}).get(name)


def labels_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels with which the job was started. Kubernetes' own labels are too short for them."""
    return dict(json.loads(annotation(pod, LABELS) or "{}"))


def container(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's container in the specification of a pod, to which templates and clusters may add others."""
    return next(one for one in pod["spec"]["containers"] if one["name"] == CONTAINER)


def container_status(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of the job's container; empty if the pod has not been on a node yet.

    >>> container_status({"status": {"containerStatuses": [{"name": "proxy"}, {"name": "job", "restartCount": 1}]}})
    {'name': 'job', 'restartCount': 1}
    """
    statuses = pod["status"].get("containerStatuses") or []
    return next((one for one in statuses if one["name"] == CONTAINER), {})


def runs(pod: Mapping[str, Any]) -> bool:
    """Return whether the job's container of a pod runs."""
    return "running" in (container_status(pod).get("state") or {})


def end_reason(pod: Mapping[str, Any]) -> str:
    """Return why a pod has ended for good, or is about to be deleted after its container; empty if it has not."""
    status, is_deleted = pod["status"], bool(pod["metadata"].get("deletionTimestamp"))
    has_ended = status.get("phase") in ("Failed", "Succeeded")
    if not has_ended and (runs(pod) or not is_deleted):
        return ""
    details = status.get("message") or status.get("reason") or "without a reason"
    return removal(pod) or f"the pod has ended: {details}"


def removal(pod: Mapping[str, Any]) -> str:
    """Return why a pod is being deleted, also while its container still runs; empty if it is not."""
    return disruption(pod) or ("the pod was deleted" if pod["metadata"].get("deletionTimestamp") else "")


def disruption(pod: Mapping[str, Any]) -> str:
    """Return why the cluster removes a pod: eviction, preemption, loss of its node; empty if it does not.

    >>> disruption({"status": {"conditions": [{"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI"}]}})
    'the cluster removed the pod: EvictionByEvictionAPI'
    """
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "DisruptionTarget":
            words = [condition["reason"], *filter(None, [condition.get("message")])]
            return f"the cluster removed the pod: {': '.join(words)}"
    return ""


def command() -> list[str]:
    """Return the command of a job's container: the supervisor."""
    return ["/bin/sh", "-c", _START, "sh", Path(_supervisor.__file__).read_text()]


def manifest(
    spec: JobSpec, digest: str, slot: str, *, pull: bool, reserve: bool, gpu_resource: str | None = GPU_RESOURCE
) -> dict[str, Any]:
    """Return the manifest of a pod that keeps to the *restricted* Pod Security Standard, unless the user is root.

    ``gpu_resource``: name of the resource that stands for a GPU; ``None`` if the template of the pod claims the GPUs.
    """
    uid, _, gid = spec.user.partition(":")
    memory = spec.memory_bytes
    cpu = cpu_resources(spec.devices * spec.cores_per_device, reserve=reserve)
    limits, requests = cpu["limits"], {**cpu["requests"], "ephemeral-storage": _DISK_REQUEST}
    if memory is not None:
        limits["memory"] = requests["memory"] = str(memory)
    if spec.disk_bytes is not None:
        limits["ephemeral-storage"] = str(spec.disk_bytes + _LOG_BYTES)
    if spec.gpus and gpu_resource is not None:
        limits[gpu_resource] = str(spec.gpus)
    shm = min(memory, _SHM_BYTES) if memory is not None else _SHM_BYTES
    in_memory = {"medium": "Memory", "sizeLimit": str(shm)}
    volumes = {HOME: {}, "/dev/shm": in_memory, **({"/tmp": in_memory} if spec.read_only else {})}  # noqa: S108
    return {
        "metadata": {
            "name": pod_name(spec.name, slot),
            "labels": {
                **dict([MANAGED.split("=")]),
                **{name: _label(value) for name, value in spec.labels.items() if _LABEL_NAME.fullmatch(name)},
            },
            "annotations": {
                JOB: spec.name,
                LABELS: json.dumps(dict(spec.labels), sort_keys=True),
                SPEC: digest,
                CORES: str(spec.cores_per_device),
                **({RESERVE: "true"} if reserve else {}),
            },
        },
        "spec": {
            "restartPolicy": "Always",  # the supervisor restarts, not the job, if the kernel kills both for memory
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30,
            "securityContext": {
                "runAsUser": int(uid),
                "runAsGroup": int(gid or 0),
                "runAsNonRoot": int(uid) != 0,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": CONTAINER,
                    "image": spec.image,
                    "imagePullPolicy": "Always" if pull else "IfNotPresent",
                    "command": command(),
                    "resources": {"limits": limits, "requests": requests},
                    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": spec.read_only,
                    },
                    "volumeMounts": [
                        {"name": f"volume-{number}", "mountPath": path} for number, path in enumerate(volumes)
                    ],
                }
            ],
            "volumes": [{"name": f"volume-{number}", "emptyDir": one} for number, one in enumerate(volumes.values())],
        },
    }


def label_value(name: str) -> str:
    """Return the value of a label for a name that may be longer than a label, such as that of a network.

    >>> label_value("paceline-retrain_daily-train-0b97")
    'paceline-retrain-daily-train-0b97-6f3da828'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-")
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _label(value: str) -> str:
    """Return a text that Kubernetes accepts as a label, for people and tools that list pods."""
    return _LABEL_CHARACTERS.sub("-", value)[:63].strip("-_.")
