"""Runs training jobs as pods of a Kubernetes cluster, whose CPU limits change in place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime._kubernetes_options import KubernetesOptions
from paceline.runtime.base import Job, JobSpec
from paceline.runtime.checks import check_capacity, check_labels, check_spec, spec_digest
from paceline.runtime.kubernetes import _device_pod, _pod, _team
from paceline.runtime.kubernetes._checks import allocatable, check_cluster, check_memory, check_rules, list_nodes
from paceline.runtime.kubernetes._cluster import Cluster, list_pods, read_pod
from paceline.runtime.kubernetes._device_pods import FirstPodJob
from paceline.runtime.kubernetes._files import send_checkpoint, send_job
from paceline.runtime.kubernetes._job import PodJob, delete_pod
from paceline.runtime.kubernetes._placement import largest, node_filter, place, runs_there
from paceline.runtime.kubernetes._quota import cores_of_quota
from paceline.runtime.kubernetes._start import create_pod, give_cpu, wait_until_running
from paceline.runtime.kubernetes._template import check_template, merge
from paceline.runtime.kubernetes._watch import why_removed

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

log = logging.getLogger(__name__)


class KubernetesRuntime:
    """Runs each job in a pod of one namespace. The jobs can form teams.

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
    reserve:
        Whether a pod requests its allocation, so that its node reserves these cores, instead of a thousandth of a core.
    gpu_resource:
        Name of the resource that stands for a GPU; ``None`` if the template claims a pod's GPUs.
    scatters_above:
        Number of GPUs of a job's pod: a job that may get more whole GPUs has the others in further pods;
        ``None`` if the jobs have no GPUs.
    max_output_bytes:
        Maximum size of the output that ``collect`` accepts.
    start_timeout_s:
        Longest time for which ``start`` waits for a full quota, for room on a node and for the image. The time in which
        the pod has scheduling gates, such as that of a queue, does not count.

    Notes
    -----
    A pod keeps to the *restricted* Pod Security Standard. All files pass through the cluster's API, so no volume and no
    other object is needed, except a network policy for each pod of a team; they are lost with the pod. The pod's CPU
    limit is the job's allocation. A cluster limits the processes of a pod for all pods of a node, so ``max_processes``
    is ignored.
    """

    name = "kubernetes"

    def __init__(
        self,
        connect: Callable[[], ApiClient],
        *,
        namespace: str = "default",
        template: Mapping[str, Any] | None = None,
        pull: bool = False,
        reserve: bool = False,
        gpu_resource: str | None = _pod.GPU_RESOURCE,
        scatters_above: int | None = None,
        max_output_bytes: int = 16 * 1024**3,
        start_timeout_s: float = 300.0,
    ) -> None:
        self._cluster = Cluster(connect, namespace)
        self._template = dict(template or {})
        self._pull = pull
        self._reserve = reserve
        self._gpu_resource = gpu_resource
        self.scatters_above = scatters_above
        self._cluster_checked_for: set[bool] = set()  # for jobs without and with a team
        self._checked: JobSpec | None = None
        self._max_output_bytes = max_output_bytes
        self._start_timeout_s = start_timeout_s

    def capacity(self) -> float:
        """Return the number of cores of the largest node; infinity if the cluster does not let us list its nodes."""
        return max(allocatable(self._cluster)["cpu"], default=0.0)

    def team_capacity(self) -> float:
        """Return the number of cores of all nodes; infinity if the cluster does not let us list its nodes."""
        return sum(allocatable(self._cluster)["cpu"])

    def quota(self) -> float:
        """Return the cores of the namespace's tightest quota on CPU limits that no other pods than Paceline's use.

        Raises InvalidInputError if the namespace has no such quota, or the account may not list its quotas.
        """
        return cores_of_quota(self._cluster)

    def check(self, spec: JobSpec) -> None:
        """Raise if ``spec`` cannot run, or not with its smallest or largest allocation.

        Needs Kubernetes 1.33, the account's rights, and that the namespace admits the pod; says all missing rights at
        once. Whether the cluster can pull the image shows at the start.
        """
        checked = spec
        check_spec(spec)
        if _device_pod.has_further_devices(spec):
            spec = _device_pod.first_pod(spec)
        if spec.shares_gpus:
            raise InvalidInputError("shares_gpus", True, "False, because a pod has whole GPUs")
        check_template(self._template)
        _team.check(spec, self._template)
        if not spec.image:
            raise InvalidInputError("image", spec.image, "the name of a container image")
        is_team = spec.team_network is not None
        if is_team not in self._cluster_checked_for:
            check_cluster(self._cluster, is_team=is_team)
            self._cluster_checked_for.add(is_team)
        options = KubernetesOptions.of(spec.options)
        node = largest(allocatable(self._cluster, **node_filter(options)), options)
        check_capacity(spec, node["cpu"])
        check_memory(spec.memory_bytes, node["memory"])
        manifests = {"devices": self._manifest(spec)}
        if spec.max_devices is not None and spec.max_devices > spec.devices:
            manifests = {"max_devices": self._manifest(replace(spec, devices=spec.max_devices)), **manifests}
        if spec.min_devices is not None and spec.min_devices < spec.devices:
            manifests["min_devices"] = self._manifest(replace(spec, devices=spec.min_devices))
        check_rules(self._cluster, manifests, reserve=self._reserve)
        self._checked = checked

    def start(self, spec: JobSpec) -> PodJob:
        """Start ``spec``; reattach if another process has just started its pod."""
        if self._checked is not spec:
            self.check(spec)
        digest, existing = self._digest(spec), self._current(spec.name)
        if existing is not None:
            job = self._job(existing)
            state = job.status().state
            if _pod.annotation(existing, _pod.SPEC) == digest and state != "gone":
                log.info("Pod %s already contains the same job: reattaching to it", existing["metadata"]["name"])
                return job
            if state == "running":
                job.close()
                raise RuntimeUnavailableError(
                    f"pod {existing['metadata']['name']} is running another job named {spec.name}"
                )
            job.remove()
        return self._start_new(spec, digest, None)

    def find_job(self, name: str, labels: Mapping[str, str]) -> PodJob | None:
        """Return the job of the pod with this job name. Complete an interrupted ``replace``.

        A pod whose job cannot start again there is removed: the cluster is about to delete it, or the job has failed
        and would not find its team, whose addresses have changed.
        """
        pod = self._current(name)
        if pod is None:
            return None
        try:
            job = self._reattach(pod, labels)
            status = job.status()
            has_failed = status.state == "exited" and (status.exit_code != 0 or status.stopped)
            reason = status.reason if status.state == "gone" else ""
            if has_failed and _team.has_outdated_names(self._cluster, pod):
                reason = "the address of a job of its team has changed"
            if not reason:
                return job
            log.warning("Removing pod %s: %s", job.id, reason)
            job.remove()
        except JobLostError:
            pass
        return None

    def has_same_spec(self, job: Job, spec: JobSpec) -> bool:
        """Return whether the digest of ``spec`` is that in the pod's annotations."""
        pod = self._find(job.id)
        return _pod.annotation(pod, _pod.SPEC) == self._digest(spec)

    def replace(self, job: Job, spec: JobSpec) -> PodJob:
        """Start a pod with the checkpoint of an ended one, which keeps its files until the start."""
        if self._checked is not spec:
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

    def find(self, labels: Mapping[str, str], options: object | None = None) -> PodJob | None:
        """Return a running job with these labels, which reads only its new output; ``None`` if there is none.

        Other programs than Paceline's jobs cannot be found: a pod reports its usage only if Paceline started it.
        """
        placed = KubernetesOptions.of(options)
        for pod in self._list():
            if _is_started(pod) and labels.items() <= _pod.labels_of(pod).items() and runs_there(pod, placed):
                job = self._job(pod, only_new_output=True)
                if job.status().state == "running":
                    return job
                job.close()
        return None

    def find_all(self, labels: Mapping[str, str]) -> list[tuple[PodJob, Mapping[str, str], float]]:
        """Return every started job with these labels: the job, all its labels and its allocation."""
        from kubernetes.utils.quantity import parse_quantity

        jobs: list[tuple[PodJob, Mapping[str, str], float]] = []
        for pod in self._list():
            if _is_started(pod) and labels.items() <= _pod.labels_of(pod).items():
                cores = parse_quantity(_pod.container(pod)["resources"]["limits"]["cpu"])
                devices = float(cores) / float(_pod.annotation(pod, _pod.CORES) or 1)
                with contextlib.suppress(JobLostError):  # the pod was deleted after the listing
                    jobs.append((self._reattach(pod, None), _pod.labels_of(pod), devices))
        return jobs

    def labels_of(self, job_id: str) -> Mapping[str, str]:
        """Return the labels with which a job was started. Raises JobLostError if its pod does not exist."""
        return _pod.labels_of(self._find(job_id))

    def nodes(self) -> list[dict[str, Any]]:
        """Return the cluster's nodes as its API describes them. Raises InvalidInputError without the right to list."""
        return list_nodes(self._cluster)

    def node_of(self, job: Job) -> str:
        """Return the name of the node that runs a started job. Raises JobLostError if its pod does not exist."""
        return str(self._find(job.id)["spec"]["nodeName"])

    def has_network(self, name: str) -> bool:
        """Return whether there is a job with an address in the private network with this name."""
        return _team.has_members(self._cluster, name)

    def remove_all(self, labels: Mapping[str, str]) -> None:
        """Remove all pods whose jobs have these labels, in any state, and with them their network policies."""
        for pod in self._list():
            if labels.items() <= _pod.labels_of(pod).items():
                delete_pod(self._cluster, pod["metadata"]["name"], pod["metadata"]["uid"])

    def _start_new(self, spec: JobSpec, digest: str, earlier: Mapping[str, Any] | None) -> PodJob:
        """Create a pod, give it the files, and start the job. ``earlier``: the pod whose checkpoint to copy."""
        starter, namespace = uuid.uuid4().hex, self._cluster.namespace
        give_up_s = time.monotonic() + self._start_timeout_s
        taken = earlier["metadata"]["name"] if earlier is not None else None
        scattered: dict[str, str] = {}
        if _device_pod.has_further_devices(spec):
            scattered = _device_pod.first_annotations(spec, self._manifest(_device_pod.further_pod(spec), digest))
            spec = _device_pod.first_pod(spec)
        slot = next(slot for slot in _pod.SLOTS if _pod.pod_name(spec.name, slot) != taken)
        body = self._manifest(spec, digest, slot)
        pod = self._adopt(spec, digest, starter, scatters=bool(scattered)) if earlier is None else None
        if pod is None:
            if spec.team_network is not None:
                body = _team.join(self._cluster, body, spec.team_network)
            body["metadata"]["annotations"] |= {_pod.STARTER: starter, **scattered}
            pod = create_pod(self._cluster, body, give_up_s)
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        try:
            pod = wait_until_running(self._cluster, pod, spec.image, give_up_s)
            if spec.team_network is not None:
                _team.restrict(self._cluster, pod, spec.team_network)
            send_job(self._cluster, name, spec)
            if earlier is not None:
                send_checkpoint(self._cluster, earlier["metadata"]["name"], name)
            give_cpu(self._cluster, pod, body)
            _team.tell_team(self._cluster, pod, is_new=True)
            self._check_starter(name, starter)
            job = self._job(pod, is_new=True)
            ready = {"metadata": {"annotations": {_pod.READY: "true"}}}
            self._cluster.call("mark the pod as ready", "patch_namespaced_pod", name, namespace, ready)
            job.begin()
        except BaseException as error:
            reason = ""
            with contextlib.suppress(PacelineError):  # the next start takes over a pod that remains
                is_permanent = isinstance(error, InvalidInputError) or not isinstance(error, PacelineError)
                reason = "" if is_permanent else why_removed(self._cluster, pod)
                found = read_pod(self._cluster, name, uid)
                if found is not None and _pod.annotation(found, _pod.STARTER) == starter:
                    delete_pod(self._cluster, name, uid)
            if reason:
                raise RuntimeUnavailableError(f"pod {name} did not start its job: {reason}") from error
            raise
        return job

    def _adopt(self, spec: JobSpec, digest: str, starter: str, *, scatters: bool) -> dict[str, Any] | None:
        """Take over a pod that a killed process has created for the same job, so that it keeps its place in the queue.

        Return the pod; ``None`` if there is none. Other pods that have not started are deleted, and those of a team,
        because the team's other pods may have new addresses. ``scatters``: whether the job may have further pods.
        """
        adopted = None
        for pod in self._pods_of(spec.name):
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            is_alone = spec.team_network is None or spec.team_network.alias == _device_pod.FIRST_HOST
            scattered = _pod.annotation(pod, _pod.DEVICE_POD) is not None  # an earlier version of Paceline has no such
            is_same = _pod.annotation(pod, _pod.SPEC) == digest and is_alone and scattered == scatters
            if adopted is None and is_same and not _pod.removal(pod):
                log.info("Pod %s of an earlier process has not started its job: taking it over", name)
                body = {"metadata": {"uid": uid, "annotations": {_pod.STARTER: starter}}}
                self._cluster.call("take over the pod", "patch_namespaced_pod", name, self._cluster.namespace, body)
                adopted = pod
            else:
                delete_pod(self._cluster, name, uid)
        return adopted

    def _check_starter(self, name: str, starter: str) -> None:
        pod = read_pod(self._cluster, name)
        if pod is None or _pod.annotation(pod, _pod.STARTER) != starter:
            raise RuntimeUnavailableError(f"pod {name} was deleted, or another process has taken over its start")

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
        """Return the pods of jobs. Those of further devices belong to the job's first pod."""
        return list_pods(self._cluster, f"{_pod.MANAGED},!{_device_pod.OF}")

    def _manifest(self, spec: JobSpec, digest: str = "", slot: str = _pod.SLOTS[0]) -> dict[str, Any]:
        how: dict[str, Any] = {"pull": self._pull, "reserve": self._reserve, "gpu_resource": self._gpu_resource}
        pod = merge(self._template, _pod.manifest(spec, digest, slot, **how))
        return place(pod, KubernetesOptions.of(spec.options))

    def _digest(self, spec: JobSpec) -> str:
        template = json.dumps(self._template, sort_keys=True, default=str)
        digest = spec_digest(spec) + ("-reserve" if self._reserve else "")
        digest += "" if self._gpu_resource == _pod.GPU_RESOURCE else f"-{self._gpu_resource}"
        return digest + (hashlib.sha256(template.encode()).hexdigest()[:8] if self._template else "")

    def _job(self, pod: Mapping[str, Any], *, is_new: bool = False, only_new_output: bool = False) -> PodJob:
        how: dict[str, Any] = {"is_new": is_new, "only_new_output": only_new_output}
        kind = PodJob if _pod.annotation(pod, _pod.DEVICE_POD) is None else FirstPodJob
        return kind(self._cluster, pod, max_output_bytes=self._max_output_bytes, **how)


def _is_started(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod has a job with all its files, which have not been lost with the pod's end."""
    return _pod.annotation(pod, _pod.READY) is not None and not _pod.end_reason(pod)


def _id(cluster: Cluster, pod: Mapping[str, Any]) -> str:
    return f"{cluster.namespace}/{pod['metadata']['uid']}/{pod['metadata']['name']}"
