"""The pod of a further device of a job, from its creation to its end. Used by ``_device_pods``.

The job's first pod has the manifest in an annotation and the files of the job, and owns the pods of the further
devices. So any process that controls the job can start them, and the cluster deletes them after the first pod.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import JobLostError, PacelineError
from paceline.runtime.base import JobSpec, TeamNetwork
from paceline.runtime.kubernetes import _pod, _team
from paceline.runtime.kubernetes._cluster import Cluster, read_pod
from paceline.runtime.kubernetes._files import copy_job
from paceline.runtime.kubernetes._job import PodJob, delete_pod
from paceline.runtime.kubernetes._start import create_pod, give_cpu, why_hopeless, why_it_waits
from paceline.runtime.kubernetes._watch import follow_pod
from paceline.train.job import ENV_DEVICE, ENV_DEVICE_PODS, ENV_DEVICE_PODS_KEY, ENV_LEAD_ADDRESS

log = logging.getLogger(__name__)

OF = "paceline/device-of"  # a label: unique id of the job's first pod
FIRST_HOST = "first-device"
_PORT = 29400
_COMMAND = ["python", "-m", "paceline.train.parallel.pod"]
_LEAVE_S = 60.0  # for the batch in progress, before a pod is removed
_AGAIN_S = 30.0  # before another pod takes the place of one that has failed
_RETRY_S = 5.0  # between two attempts to delete a pod
_LOOK_S = 5
STARTS, _USUAL = "its pod starts", ("it starts", "ContainerCreating", "PodInitializing")

MakeJob = Callable[[Mapping[str, Any], bool], PodJob]


def has_further_devices(spec: JobSpec) -> bool:
    """Return whether a job may get more GPUs than its first pod has."""
    most = spec.devices if spec.max_devices is None else spec.max_devices
    return bool(spec.gpus and spec.whole_devices and spec.team_network is None and most > spec.gpus)


def first_pod(spec: JobSpec) -> JobSpec:
    """Return the specification of the job's first pod, in the network of the pods of all its devices."""
    least = None if spec.min_devices is None else min(spec.min_devices, spec.gpus)
    return replace(
        spec,
        devices=min(spec.devices, spec.gpus),
        min_devices=least,
        max_devices=spec.gpus,
        team_network=_network(spec.name, FIRST_HOST),
        environment={
            **spec.environment,
            ENV_DEVICE_PODS: str(_PORT),
            ENV_DEVICE_PODS_KEY: secrets.token_hex(32),
        },
    )


def further_pod(spec: JobSpec) -> JobSpec:
    """Return the specification of the pod of a further device."""
    return replace(spec, name=f"{spec.name}-device", devices=1.0, gpus=1, min_devices=None, max_devices=None)


def first_annotations(spec: JobSpec, further: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of the first pod, with the manifest of the ``further`` pods."""
    (container, *others) = further["spec"]["containers"]
    bare = {name: value for name, value in container.items() if name != "command"}  # the supervisor's source is long
    body = {**further, "spec": {**further["spec"], "containers": [bare, *others]}}
    return {_pod.DEVICE_POD: json.dumps(body), _pod.GPUS: str(int(spec.gpus))}


def _network(job: str, alias: str | None) -> TeamNetwork:
    return TeamNetwork(f"paceline-{job}-devices", alias, external_access=True)


class FurtherDevice:
    """A further device of a job. Threads start and remove its pod.

    Parameters
    ----------
    cluster:
        The pod's namespace.
    first:
        The job's first pod.
    device:
        Number of the device, from that after the devices of the first pod.
    make_job:
        Function that returns the job of a pod, and whose second argument says whether it is new.
    reason:
        Why the device has not joined, until its pod has another reason: that of the pod before, if it has failed.
    """

    def __init__(
        self, cluster: Cluster, first: Mapping[str, Any], device: int, make_job: MakeJob, reason: str = STARTS
    ) -> None:
        self._cluster, self._first, self._make_job = cluster, first, make_job
        self.device = device
        self.name = f"{_pod.pod_name(str(_pod.annotation(first, _pod.JOB)), str(device))}-{uuid.uuid4().hex[:6]}"
        self.reason = self._usual_reason = reason
        self.job: PodJob | None = None
        """The job of the pod, once it has started, and this process is connected to it."""
        self.has_started = False
        """Whether the job of the pod has started."""
        self.is_leaving = False
        """Whether the pod is being removed."""
        self.is_lost = False
        """Whether the cluster removes the pod, or its process has failed."""
        self.is_gone = False
        """Whether the pod is gone, and another one may take its place."""
        self.failure = ""
        """Why the script has failed in the pod, if this is its fault and not that of the cluster."""
        self._ends = threading.Event()
        self._closed = threading.Event()
        self._opening: threading.Thread | None = None  # of a pod that another process has started
        self._renewing: threading.Thread | None = None

    @classmethod
    def of(cls, cluster: Cluster, first: Mapping[str, Any], pod: Mapping[str, Any], make_job: MakeJob) -> FurtherDevice:
        """Return the device of a pod that another process has started."""
        found = cls(cluster, first, int(_pod.annotation(pod, _pod.DEVICE) or 0), make_job)
        found.name = pod["metadata"]["name"]
        if _pod.annotation(pod, _pod.READY) is not None and not _pod.removal(pod):
            found.has_started = True
            found._opening = found._start_thread(found._open, "open", pod)
        else:
            found.leave()
        return found

    def start(self) -> None:
        """Start the pod."""
        self._start_thread(self._run, "start")

    def leave(self) -> None:
        """Remove the pod after the batch in progress."""
        if not self.is_leaving:
            self.is_leaving, self.reason = True, "its pod is being removed"
            self._ends.set()
            self._start_thread(self._remove, "end")

    def renew(self, lease_s: float) -> None:
        """Renew the lease of the pod, in a thread: its node may not answer."""
        if self.job is not None and not self.is_leaving and not (self._renewing and self._renewing.is_alive()):
            self._renewing = self._start_thread(self._renew, "lease", self.job, lease_s)

    def close(self) -> None:
        """Let go of the pod, which continues."""
        self._ends.set()
        self._closed.set()
        if self.job is not None:
            self.job.close()

    def observe(self, pod: Mapping[str, Any] | None) -> None:
        """Look at the pod, ``None`` if it does not exist, and at the end of its job."""
        if not self.has_started or self.is_gone:
            return  # the thread that starts it looks
        if pod is None:
            self._lose("the pod was deleted")
            self._ends.set()
            if self.job is not None:
                self.job.close()
            self.is_gone = True
        elif reason := _pod.removal(pod):
            self._lose(reason)
        elif self.job is not None and self.job.wait(0) and not (self.is_leaving or self.is_lost):
            self.is_lost = True  # another pod takes its place later: it may fail, too
            self._start_thread(self._end, "end", self.job)

    def _lose(self, reason: str) -> None:
        if not self.is_leaving:
            log.warning("Device %d of the job is lost: %s", self.device, reason)
        self.reason, self.is_leaving, self.is_lost = reason, True, True

    def _run(self) -> None:
        try:
            self.job = self._start()
            self.has_started = True
            if self._closed.is_set():
                self.job.close()
        except Exception as error:
            self._fail(str(error) or repr(error))

    def _start_thread(self, run: Callable[..., None], does: str, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments, name=f"paceline-device-{self.device}-{does}", daemon=True)
        thread.start()
        return thread

    def _open(self, pod: Mapping[str, Any]) -> None:
        """Connect to the job of a pod that another process has started. Try again while its node does not answer."""
        job: PodJob | None = None
        while True:
            try:
                job = job or self._make_job(pod, False)
                job.begin()  # in case the process that made the pod ready was killed before this
                break
            except Exception as error:
                log.warning("Pod %s of device %d does not answer: %s", self.name, self.device, error)
                if self._ends.wait(_RETRY_S):
                    break
        self.job = job
        if job is not None and self._closed.is_set():
            job.close()

    def _renew(self, job: PodJob, lease_s: float) -> None:
        with contextlib.suppress(Exception):  # the pod may just be lost
            job.renew(lease_s)

    def _start(self) -> PodJob:
        cluster, first = self._cluster, self._first
        network = _network(str(_pod.annotation(first, _pod.JOB)), None)
        body = _team.join(cluster, self._manifest(), network)
        pod = create_pod(cluster, body, time.monotonic())
        for now in follow_pod(cluster, self.name, pod, _LOOK_S):
            if now is None or _pod.removal(now) or self._ends.is_set():
                raise JobLostError("its pod was deleted")
            pod = now
            if reason := _pod.end_reason(now) or why_hopeless(now):
                raise PacelineError(reason)
            if _pod.runs(now):
                break
            reason = why_it_waits(now)
            self.reason = self._usual_reason if reason in _USUAL else reason
        self.reason = self._usual_reason
        _team.restrict(cluster, pod, network)
        environment = {
            ENV_DEVICE_PODS: None,
            ENV_LEAD_ADDRESS: f"{FIRST_HOST}:{_PORT}",
            ENV_DEVICE: str(self.device),
        }
        copy_job(cluster, first["metadata"]["name"], self.name, _COMMAND, environment)
        give_cpu(cluster, pod, body)
        job = self._make_job(pod, True)
        ready = {"metadata": {"annotations": {_pod.READY: "true"}}}
        cluster.call("mark the pod as ready", "patch_namespaced_pod", self.name, cluster.namespace, ready)
        job.begin()
        return job

    def _manifest(self) -> dict[str, Any]:
        first = self._first["metadata"]
        body: dict[str, Any] = json.loads(_pod.annotation(self._first, _pod.DEVICE_POD) or "{}")
        body["metadata"]["name"] = self.name
        body["metadata"]["labels"][OF] = first["uid"]
        body["metadata"]["annotations"] |= {_pod.DEVICE: str(self.device)}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": first["name"], "uid": first["uid"]}
        body["metadata"]["ownerReferences"] = [owner]
        body["spec"]["hostname"] = f"device-{self.device}"
        _pod.container(body)["command"] = _pod.command()
        return body

    def _end(self, job: PodJob) -> None:
        """Remove a pod whose process has ended."""
        with contextlib.suppress(Exception):  # its node may be lost
            status = job.status()
            self.failure = status.reason if status.out_of_memory else ""
        self._fail("its process has ended")

    def _fail(self, reason: str) -> None:
        """Remove a pod that has failed. After a while, another one may take its place."""
        if not self._ends.is_set():
            log.warning("Device %d of the job: %s", self.device, reason)
        self.reason = reason
        is_gone = self._delete()
        self._ends.wait(_AGAIN_S)
        self.is_gone = is_gone

    def _remove(self) -> None:
        if self._opening is not None:
            self._opening.join()
        if self.job is not None:
            with contextlib.suppress(Exception):
                self.job.stop(_LEAVE_S)
        self.is_gone = self._delete()

    def _delete(self) -> bool:
        """Delete the pod; return whether it is gone. Try again while the cluster fails, until ``close``."""
        if self.job is not None:
            self.job.close()
        while True:
            try:
                pod = read_pod(self._cluster, self.name)
                if pod is not None:
                    delete_pod(self._cluster, self.name, pod["metadata"]["uid"])
            except Exception as error:
                log.warning("Pod %s of device %d is not deleted yet: %s", self.name, self.device, error)
                if self._closed.wait(_RETRY_S):  # the next process finds it; the cluster deletes it after the first pod
                    return False
            else:
                return True
