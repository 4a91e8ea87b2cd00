"""``PodJob``: a job in a pod, through the cluster's API."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import JobLostError, ResizePendingError, RuntimeUnavailableError
from paceline.runtime._memory import out_of_memory
from paceline.runtime._work_files import entries_in_archive, newest_files
from paceline.runtime.archive import extract_output
from paceline.runtime.base import JobFolder, JobStatus, Usage
from paceline.runtime.checks import check_devices
from paceline.runtime.kubernetes import _pod, _team
from paceline.runtime.kubernetes._cluster import (
    CONTAINER,
    Cluster,
    ConflictError,
    ForbiddenError,
    QuotaError,
    read_pod,
)
from paceline.runtime.kubernetes._files import read_folder
from paceline.runtime.kubernetes._follower import PodFollower
from paceline.runtime.kubernetes._resize import cores_in_force, is_decided, why_pending
from paceline.runtime.kubernetes._watch import follow_pod

_TAIL_RUNNING, _TAIL_ENDED = 2_000, 10_000  # a running job adds a record of its usage every second
CPU_TO_COPY = 1.0  # cores of a pod while files are copied
_STOP_READ_S = 2.0  # read the state of a job that is being stopped, if its log does not say that it has ended
_CONFIRM_S = 1.0  # wait so long for a node's decision about a resize
_REMOVE_TIMEOUT_S = 60.0
_PAUSE_TIMEOUT_S, _POLL_S = 30.0, 0.1


class PodJob:
    """A job in a pod. The pod runs until ``remove``, so that the files of an ended job can be read.

    Parameters
    ----------
    cluster:
        The pod's namespace.
    pod:
        The pod, as the cluster describes it.
    max_output_bytes:
        Limit on the size of the collected output.
    is_new:
        Whether this process has just started the job: its output is then read from the start.
    only_new_output:
        Whether to read only what the job writes from now on.
    """

    def __init__(
        self,
        cluster: Cluster,
        pod: Mapping[str, Any],
        *,
        max_output_bytes: int,
        is_new: bool,
        only_new_output: bool = False,
    ) -> None:
        self._cluster = cluster
        self._pod, self._uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._max_output_bytes = max_output_bytes
        self._cores_per_device = float(_pod.annotation(pod, _pod.CORES) or 1)
        self._reserve = _pod.annotation(pod, _pod.RESERVE) is not None
        self._cpu: dict[str, Any] = {}  # resources that the cluster has accepted from this process
        self._limit = _pod.container(pod)["resources"]["limits"].get("memory")
        run = {} if is_new or not _pod.runs(pod) else self._read_run()
        tail = _TAIL_RUNNING if run.get("state") == "running" else _TAIL_ENDED
        self._follower = PodFollower(cluster, self._pod, None if is_new else tail)
        if only_new_output:
            self._follower.skip()
        self._follower.start(after=max(run.get("number", 1) - 1, 0))

    @property
    def id(self) -> str:
        """The namespace, the unique id and the name of the pod."""
        return f"{self._cluster.namespace}/{self._uid}/{self._pod}"

    @property
    def has_engine(self) -> bool:
        """True: the cluster ends the pod with its node."""
        return True

    def read_lines(self) -> list[str]:
        """Return the lines written since the last call. Once ``wait`` has returned True, return all remaining lines."""
        return self._follower.take_lines()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the log reports the end of the job."""
        return self._follower.ended.wait(timeout_s)

    def resize(self, devices: float) -> None:
        """Change the CPU limit of the running container in place."""
        check_devices(devices)
        wanted, pod = _pod.cpu_resources(devices * self._cores_per_device, reserve=self._reserve), None
        try:
            if wanted != self._cpu:
                pod = self._set_cpu(wanted)
        except (ForbiddenError, QuotaError) as error:  # the rules of the namespace have changed since the start
            raise ResizePendingError(self._devices_in_force(), str(error)) from error
        if self._reserve:
            self._confirm(pod)

    def pause(self) -> None:
        """Suspend all processes of the job. Those of the pod that copy files go on."""
        self._set_paused(True)

    def unpause(self) -> None:
        """Continue a suspended job."""
        self._set_paused(False)

    def status(self) -> JobStatus:
        """Return the state of the job, read from the pod."""
        pod = self._read_pod()
        if pod is None:
            return JobStatus("gone", reason=self._follower.disruption or "the pod was deleted")
        if reason := _pod.end_reason(pod):
            return JobStatus("gone", reason=reason)
        reason = _pod.removal(pod)
        try:
            run = self._read_run() if pod["status"].get("phase") != "Pending" else {}
        except RuntimeUnavailableError:
            if reason and self._follower.ended.is_set():  # the container has ended, and its pod is about to
                return JobStatus("gone", reason=reason)
            raise
        if reason and run.get("state") == "exited" and (run.get("stopped") or run["code"] != 0):
            return JobStatus("gone", reason=reason)  # it cannot start again here; its files can be copied for a moment
        if not run.get("number"):
            return JobStatus("running")  # the pod waits for room on a node, or for its files
        if run["state"] == "running":
            return JobStatus("running", started_s=run["started_s"], reason="paused" if run.get("paused") else "")
        code, is_killed = run["code"], run["out_of_memory"]
        if code is None:  # the kernel has killed the whole container
            last = (_pod.container_status(pod).get("lastState") or {}).get("terminated") or {}
            code = last.get("exitCode", 137)
            is_killed = last.get("reason") == "OOMKilled" or (code == 137 and is_killed)
        return JobStatus(
            "exited",
            exit_code=code,
            started_s=run["started_s"],
            finished_s=run["finished_s"],
            out_of_memory=is_killed and code != 0,
            reason=out_of_memory(self._limit and int(self._limit)) if is_killed and code != 0 else _reason(code),
            stopped=run.get("stopped", False),
        )

    def usage(self) -> Usage:
        """Return the usage that the pod has reported last, about once a second."""
        usage = self._follower.records.usage
        if usage is None:
            return Usage(0.0, 0, 0.0)
        network = int(usage["received_bytes"]), int(usage["sent_bytes"])
        return Usage(usage["cpu_s"], int(usage["memory_bytes"]), usage["measured_s"], *network)

    def restart(self) -> None:
        """Start the job again in its pod.

        If its team's names have other addresses now, remove the pod instead, and raise RuntimeUnavailableError: the
        team then starts another pod in its place.
        """
        pod = self._read_pod()
        if pod is not None and _team.has_outdated_names(self._cluster, pod):
            delete_pod(self._cluster, self._pod, self._uid)
            raise RuntimeUnavailableError(f"removed pod {self._pod}, because the address of a job of its team changed")
        if pod is not None:  # after a restart of its node, it has another address
            _team.tell_team(self._cluster, pod, is_new=False)
        number = self._read_run()["number"]
        self._command(f"start {number + 1}")
        self._follower.start(after=number)

    def begin(self) -> None:
        """Start the job for the first time. Does nothing if it has been started."""
        self._command("start 1")

    def collect(self, destination: Path, folder: JobFolder = "output") -> list[str]:
        """Copy a folder out of the pod."""
        try:
            self._speed_up()
            chunks = read_folder(self._cluster, self._pod, folder)
            return extract_output(chunks, destination, root=folder, max_bytes=self._max_output_bytes)
        except (RuntimeUnavailableError, JobLostError) as error:
            status = self.status()
            if status.state == "gone":
                raise JobLostError(f"could not read the job's {folder}: {status.reason}") from error
            raise

    def work_files(self, placed: Collection[str]) -> list[str]:
        """Return a few of the newest files in the working folder."""
        try:
            chunks = read_folder(self._cluster, self._pod, "work")
            return newest_files(entries_in_archive(chunks, root="work"), placed)
        except JobLostError:
            return []

    def stop(self, grace_s: float = 5.0) -> None:
        """Send SIGTERM, then SIGKILL after ``grace_s``, and wait for the end."""
        try:
            run = self._read_run()
            if run.get("state") != "running":
                return
            self._command(f"stop {grace_s:f}")
            give_up_s = time.monotonic() + grace_s + _REMOVE_TIMEOUT_S
            while True:
                is_told = self.wait(_STOP_READ_S)
                now = self._read_run()
                if now.get("number") != run["number"] or now.get("state") != "running":
                    break
                if time.monotonic() > give_up_s:
                    raise RuntimeUnavailableError("could not stop the job: it has not ended")
                if is_told:  # the log is not followed any more
                    time.sleep(_STOP_READ_S)
            if self._reserve:  # a preempted job leaves its cores to others, and asks for them before its restart
                with contextlib.suppress(ForbiddenError):  # the namespace has a minimum: then the pod keeps them
                    self._set_cpu({"requests": {"cpu": "1m"}})
        except JobLostError:
            pass

    def remove(self) -> None:
        """Delete the pod and wait until it is gone."""
        self.close()
        delete_pod(self._cluster, self._pod, self._uid)

    def close(self) -> None:
        """End the thread that reads the log; the pod continues."""
        self._follower.close()

    def renew(self, lease_s: float) -> None:
        """Tell the pod's supervisor when the lease now ends."""
        self._command(f"lease {lease_s:f}")

    def save_record(self, record: Mapping[str, Any]) -> None:
        """Store the record as an annotation of the pod, out of reach of the job."""
        body = {"metadata": {"uid": self._uid, "annotations": {_pod.RECORD: json.dumps(record)}}}
        self._cluster.call("write the job's record", "patch_namespaced_pod", self._pod, self._cluster.namespace, body)

    def load_record(self) -> dict[str, Any] | None:
        """Return the record in the pod's annotation."""
        pod = self._read_pod()
        value = json.loads((pod and _pod.annotation(pod, _pod.RECORD)) or "null")
        return value if isinstance(value, dict) else None

    def _read_pod(self) -> dict[str, Any] | None:
        return read_pod(self._cluster, self._pod, self._uid)

    def _read_run(self) -> dict[str, Any]:
        """Return what the supervisor has stored about the newest run; an empty mapping before the first."""
        command = ["/bin/sh", "-c", f"cat {_pod.HOME}/state/run.json 2>/dev/null || echo '{{}}'"]
        answer = b"".join(self._cluster.run("read the job's state", self._pod, command))
        run: dict[str, Any] = json.loads(answer)
        return run

    def _command(self, text: str) -> None:
        """Send a command to the supervisor."""
        command = ["/bin/sh", "-c", f'echo "$1" >{_pod.HOME}/state/control', "sh", text]
        for _ in self._cluster.run(f"send {text.partition(' ')[0]!r} to the pod", self._pod, command):
            pass

    def _set_paused(self, paused: bool) -> None:
        self._command("pause" if paused else "unpause")
        give_up_s = time.monotonic() + _PAUSE_TIMEOUT_S
        while (run := self._read_run()).get("state") == "running" and run.get("paused", False) != paused:
            if time.monotonic() > give_up_s:
                raise RuntimeUnavailableError("could not suspend or continue the job: its pod does not answer")
            time.sleep(_POLL_S)

    def _set_cpu(self, resources: dict[str, Any]) -> dict[str, Any]:
        self._cpu = {}
        pod = set_cpu(self._cluster, self._pod, resources)
        self._cpu = resources
        return pod

    def _confirm(self, pod: dict[str, Any] | None) -> None:
        """Wait until the node has put the last resize in force. ``pod``: the answer to it; ``None`` to look again.

        Raises ResizePendingError if the node has decided otherwise, or not decided in time.
        """
        give_up_s = time.monotonic() + _CONFIRM_S
        for now in follow_pod(self._cluster, self._pod, pod, again_s=1):
            if now is None or now["metadata"]["uid"] != self._uid:
                raise JobLostError("the pod was deleted")
            reason = why_pending(now)
            if not reason:
                return
            if is_decided(now) or time.monotonic() > give_up_s:
                raise ResizePendingError(self._devices_in_force(now), reason)

    def _devices_in_force(self, pod: dict[str, Any] | None = None) -> float:
        pod = pod or self._read_pod()
        cores = cores_in_force(pod) if pod is not None else None
        if cores is None:
            raise RuntimeUnavailableError("the cluster does not say which CPU limit is in force")
        return cores / self._cores_per_device

    def _speed_up(self) -> None:
        """Give an ended job a core, because its pod copies the files: at its last allocation, this may take minutes."""
        if self._follower.ended.is_set():
            with contextlib.suppress(ForbiddenError, QuotaError):  # then it takes longer
                self._set_cpu(_pod.cpu_resources(CPU_TO_COPY, reserve=False))


def _reason(code: int) -> str:
    reasons = {137: "killed (SIGKILL)", 143: "stopped (SIGTERM)"}
    reasons |= dict.fromkeys((126, 127), "the command could not be run in this image")
    return reasons.get(code, "")


def set_cpu(cluster: Cluster, pod: str, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Change the CPU limit and request of a pod in place, and return the pod."""
    body = {"spec": {"containers": [{"name": CONTAINER, "resources": resources}]}}
    request, method = "change the pod's CPU limit", "patch_namespaced_pod_resize"
    answer = cluster.call(request, method, pod, cluster.namespace, body, _preload_content=False)
    changed: dict[str, Any] = json.loads(answer.data)
    return changed


def delete_pod(cluster: Cluster, name: str, uid: str) -> None:
    """Delete a pod without grace, and wait until it is gone."""
    give_up_s = time.monotonic() + _REMOVE_TIMEOUT_S
    body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
    try:
        cluster.call("delete the pod", "delete_namespaced_pod", name, cluster.namespace, body=body)
    except (JobLostError, ConflictError):  # it is gone, or another pod has its name
        return
    for pod in follow_pod(cluster, name):
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        if time.monotonic() > give_up_s:
            raise RuntimeUnavailableError(f"could not delete pod {name}: it still exists")
