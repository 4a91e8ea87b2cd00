"""Runs training jobs as pods of a Kubernetes cluster, whose CPU limits change in place."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError, JobLostError, RuntimeUnavailableError
from paceline.runtime.base import Job, JobSpec
from paceline.runtime.checks import check_capacity, check_labels, check_spec, spec_digest
from paceline.runtime.kubernetes import _pod
from paceline.runtime.kubernetes._cluster import Cluster, ConflictError, ForbiddenError, read_pod
from paceline.runtime.kubernetes._files import send_checkpoint, send_job
from paceline.runtime.kubernetes._job import PodJob, delete_pod
from paceline.runtime.kubernetes._template import merge

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

log = logging.getLogger(__name__)

_SAY_EVERY_S = 15.0
_POLL_S = 0.1
# Reasons of a waiting container that do not pass by themselves.
_HOPELESS = {
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImagePullBackOff",
    "CreateContainerConfigError",
    "RunContainerError",
}


class KubernetesRuntime:
    """Runs each job in a pod of one namespace.

    Parameters
    ----------
    connect:
        Function that returns a client of the cluster, with its credentials.
    namespace:
        Namespace of the pods.
    template:
        A pod to whose metadata and spec the job's are added.
    pull:
        Whether the cluster pulls the image before each start, even if the node has it.
    max_output_bytes:
        Maximum size of the output that ``collect`` accepts.
    start_timeout_s:
        Longest time for which ``start`` waits for room on a node and for the image.

    Notes
    -----
    A pod keeps to the *restricted* Pod Security Standard. All files pass through the cluster's API, so no volume and no
    other object is needed; they are lost with the pod. The pod requests little CPU: its limit is the job's allocation.
    A cluster limits the processes of a pod for all pods of a node, so ``max_processes`` is ignored.
    """

    name = "kubernetes"

    def __init__(
        self,
        connect: Callable[[], ApiClient],
        *,
        namespace: str = "default",
        template: Mapping[str, Any] | None = None,
        pull: bool = False,
        max_output_bytes: int = 16 * 1024**3,
        start_timeout_s: float = 300.0,
    ) -> None:
        self._cluster = Cluster(connect, namespace)
        self._template = dict(template or {})
        self._pull = pull
        self._max_output_bytes = max_output_bytes
        self._start_timeout_s = start_timeout_s

    def capacity(self) -> float:
        """Return the number of cores of the largest node; infinity if the cluster does not let us list its nodes."""
        from kubernetes.utils.quantity import parse_quantity

        try:
            nodes = self._cluster.call("list the nodes", "list_node").items
        except ForbiddenError:
            return math.inf
        return max((float(parse_quantity(node.status.allocatable["cpu"])) for node in nodes), default=0.0)

    def check(self, spec: JobSpec) -> None:
        """Raise if ``spec`` cannot run. Whether the cluster can pull the image shows at the start."""
        check_spec(spec)
        check_capacity(spec, self.capacity())
        if spec.team_network is not None:
            raise InvalidInputError("team_network", spec.team_network.name, "None: pods do not form teams yet")
        if not spec.image:
            raise InvalidInputError("image", spec.image, "the name of a container image")

    def start(self, spec: JobSpec) -> PodJob:
        """Start ``spec``; reattach if another process has just started its pod."""
        self.check(spec)
        digest, existing = self._digest(spec), self._current(spec.name)
        if existing is not None:
            job = self._job(existing)
            if _pod.annotation(existing, _pod.SPEC) == digest:
                log.info("Pod %s already contains the same job: reattaching to it", existing["metadata"]["name"])
                return job
            if job.status().state == "running":
                job.close()
                raise RuntimeUnavailableError(
                    f"pod {existing['metadata']['name']} is running another job named {spec.name}"
                )
            job.remove()
        return self._start_new(spec, digest, None)

    def find_job(self, name: str, labels: Mapping[str, str]) -> PodJob | None:
        """Return the job of the pod with this job name. Complete an interrupted ``replace``."""
        pod = self._current(name)
        try:
            return None if pod is None else self._reattach(pod, labels)
        except JobLostError:
            return None

    def has_same_spec(self, job: Job, spec: JobSpec) -> bool:
        """Return whether the digest of ``spec`` is that in the pod's annotations."""
        pod = self._find(job.id)
        return _pod.annotation(pod, _pod.SPEC) == self._digest(spec)

    def replace(self, job: Job, spec: JobSpec) -> PodJob:
        """Start a pod with the checkpoint of an ended one, which keeps its files until the start."""
        self.check(spec)
        digest, existing = self._digest(spec), self._current(spec.name)
        if (
            existing is not None
            and _pod.annotation(existing, _pod.SPEC) == digest
            and _id(self._cluster, existing) != job.id
        ):
            started = self._reattach(existing, None)  # by an earlier call, which could not remove ``job``
        else:
            started = self._start_new(spec, digest, self._find(job.id))
        job.remove()
        return started

    def jobs(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the id and labels of every pod that any Paceline process created, also of one killed at the start."""
        for pod in self._list():
            yield _id(self._cluster, pod), _pod.labels_of(pod)

    def reattach(self, job_id: str, labels: Mapping[str, str] | None = None) -> PodJob:
        """Return the job of a pod that any process started with ``start``."""
        return self._reattach(self._find(job_id), labels)

    def remove_all(self, labels: Mapping[str, str]) -> None:
        """Remove all pods whose jobs have these labels, in any state."""
        for pod in self._list():
            if labels.items() <= _pod.labels_of(pod).items():
                delete_pod(self._cluster, pod["metadata"]["name"], pod["metadata"]["uid"])

    def _start_new(self, spec: JobSpec, digest: str, earlier: Mapping[str, Any] | None) -> PodJob:
        """Create a pod, give it the files, and start the job. ``earlier``: the pod whose checkpoint to copy."""
        starter, namespace, pod = uuid.uuid4().hex, self._cluster.namespace, None
        adopted = self._adopt(spec, digest, starter) if earlier is None else None
        if adopted is not None:
            name = adopted
        else:
            taken = earlier["metadata"]["name"] if earlier is not None else None
            slot = next(slot for slot in _pod.SLOTS if _pod.pod_name(spec.name, slot) != taken)
            body = merge(self._template, _pod.manifest(spec, digest, slot, pull=self._pull))
            body["metadata"]["annotations"][_pod.STARTER] = starter
            name = str(body["metadata"]["name"])
            try:
                self._cluster.call("create the pod", "create_namespaced_pod", namespace, body)
            except ConflictError:
                message = f"another process is starting pod {name}, or it is being deleted"
                raise RuntimeUnavailableError(message) from None
        try:
            pod = self._wait_until_running(name, spec)
            send_job(self._cluster, name, spec)
            if earlier is not None:
                send_checkpoint(self._cluster, earlier["metadata"]["name"], name)
            self._check_starter(name, starter)
            job = self._job(pod, is_new=True)
            if adopted is not None:  # the earlier process may have chosen other devices
                job.resize(spec.devices)
            ready = {"metadata": {"annotations": {_pod.READY: "true"}}}
            self._cluster.call("mark the pod as ready", "patch_namespaced_pod", name, namespace, ready)
            job.begin()
        except BaseException:
            found = read_pod(self._cluster, name)
            if found is not None and _pod.annotation(found, _pod.STARTER) == starter:
                delete_pod(self._cluster, name, found["metadata"]["uid"])
            raise
        return job

    def _adopt(self, spec: JobSpec, digest: str, starter: str) -> str | None:
        """Take over a pod that a killed process has created for the same job, so that it keeps its place in the queue.

        Return its name; ``None`` if there is none. Other pods that have not started are deleted.
        """
        adopted = None
        for pod in self._pods_of(spec.name):
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            if adopted is None and _pod.annotation(pod, _pod.SPEC) == digest and not _pod.removal(pod):
                log.info("Pod %s of an earlier process has not started its job: taking it over", name)
                body = {"metadata": {"uid": uid, "annotations": {_pod.STARTER: starter}}}
                self._cluster.call("take over the pod", "patch_namespaced_pod", name, self._cluster.namespace, body)
                adopted = str(name)
            else:
                delete_pod(self._cluster, name, uid)
        return adopted

    def _check_starter(self, name: str, starter: str) -> None:
        pod = read_pod(self._cluster, name)
        if pod is None or _pod.annotation(pod, _pod.STARTER) != starter:
            raise RuntimeUnavailableError(f"pod {name} was deleted, or another process has taken over its start")

    def _wait_until_running(self, name: str, spec: JobSpec) -> dict[str, Any]:
        began_s = said_s = time.monotonic()
        while True:
            pod = read_pod(self._cluster, name)
            if pod is None:
                raise RuntimeUnavailableError(f"pod {name} was deleted before it ran")
            containers = pod["status"].get("containerStatuses") or [{}]
            state = containers[0].get("state") or {}
            if "running" in state:
                return pod
            waiting = state.get("waiting") or {}
            if waiting.get("reason") in _HOPELESS:
                accepted = f"an image that the cluster can run ({waiting['reason']}: {waiting.get('message', '')})"
                raise InvalidInputError("image", spec.image, accepted)
            reason = _why_it_waits(pod) or waiting.get("reason") or "it starts"
            now_s = time.monotonic()
            if now_s - began_s > self._start_timeout_s:
                raise RuntimeUnavailableError(f"pod {name} did not start within {self._start_timeout_s:g} s: {reason}")
            if now_s - said_s > _SAY_EVERY_S:
                said_s = now_s
                log.info("Waiting for pod %s: %s", name, reason)
            time.sleep(_POLL_S)

    def _reattach(self, pod: Mapping[str, Any], labels: Mapping[str, str] | None) -> PodJob:
        name = pod["metadata"]["name"]
        if _pod.annotation(pod, _pod.JOB) is None:
            raise JobLostError(f"pod {name} was not started by Paceline")
        check_labels(f"pod {name}", _pod.labels_of(pod), labels)
        job = self._job(pod)
        if _pod.annotation(pod, _pod.READY) is not None and job.status().state == "running":
            job.begin()  # in case the process that made the pod ready was killed before this
        return job

    def _current(self, name: str) -> dict[str, Any] | None:
        """Return the pod of a job name. Of two, keep the one that is replacing the other if it is ready.

        A pod that is not ready is not returned, and remains if it is the only one: ``start`` takes it over.
        A pod that has ended, such as an evicted one, has lost its files and is removed.
        """
        found = self._pods_of(name)
        for pod in found:
            if reason := _pod.end_reason(pod):
                log.warning("Removing pod %s, whose files are lost: %s", pod["metadata"]["name"], reason)
        lives = [pod for pod in found if not _pod.end_reason(pod)]
        ready = [pod for pod in lives if _pod.annotation(pod, _pod.READY) is not None]
        newest = max(ready, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)
        for pod in found:
            is_waiting = newest is None and pod in lives  # ``start`` takes it over
            if pod is not newest and not is_waiting:
                delete_pod(self._cluster, pod["metadata"]["name"], pod["metadata"]["uid"])
        return newest

    def _pods_of(self, name: str) -> list[dict[str, Any]]:
        return [pod for slot in _pod.SLOTS if (pod := read_pod(self._cluster, _pod.pod_name(name, slot))) is not None]

    def _find(self, job_id: str) -> dict[str, Any]:
        namespace, _, rest = job_id.partition("/")
        uid, _, name = rest.partition("/")
        pod = read_pod(self._cluster, name, uid) if namespace == self._cluster.namespace and name else None
        if pod is None:
            raise JobLostError(f"there is no pod {job_id!r}")
        return pod

    def _list(self) -> list[dict[str, Any]]:
        options = {"label_selector": _pod.MANAGED, "_preload_content": False}
        found = self._cluster.call("list the pods", "list_namespaced_pod", self._cluster.namespace, **options)
        pods: list[dict[str, Any]] = json.loads(found.data)["items"]
        return pods

    def _digest(self, spec: JobSpec) -> str:
        template = json.dumps(self._template, sort_keys=True, default=str)
        return spec_digest(spec) + (hashlib.sha256(template.encode()).hexdigest()[:8] if self._template else "")

    def _job(self, pod: Mapping[str, Any], *, is_new: bool = False) -> PodJob:
        return PodJob(self._cluster, pod, max_output_bytes=self._max_output_bytes, is_new=is_new)


def _id(cluster: Cluster, pod: Mapping[str, Any]) -> str:
    return f"{cluster.namespace}/{pod['metadata']['uid']}/{pod['metadata']['name']}"


def _why_it_waits(pod: Mapping[str, Any]) -> str:
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""
