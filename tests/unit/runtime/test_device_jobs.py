"""A job whose further GPUs are in pods of their own, in a cluster that fails on demand.

The cluster and the log of each pod are simulated; the threads are real.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.errors import (
    JobLostError,
    PacelineError,
    ResizePendingError,
    RuntimeUnavailableError,
    TrainingFailedError,
)
from paceline.runtime import JobSpec, TeamNetwork
from paceline.runtime.kubernetes import KubernetesRuntime, _device_pod, _device_pods, _job
from paceline.runtime.kubernetes._cluster import QuotaError
from paceline.runtime.kubernetes._device_pods import FirstPodJob
from paceline.runtime.kubernetes._pod import label_value, manifest, pod_name
from paceline.train.job import EXIT_DEVICE_LOST
from paceline.train.progress import Progress

RUNS: dict[str, Any] = {"number": 1, "state": "running", "started_s": 1.0}
DEVICE_POD = manifest(
    JobSpec("train", ["python"], 1.0, image="i", gpus=1), "digest", "a", pull=False, reserve=False, gpu_resource="gpu"
)
ENDED: dict[str, Any] = {**RUNS, "state": "exited", "finished_s": 2.0, "out_of_memory": False, "stopped": False}


class Log:
    """The log of a pod, whose lines a test writes. It stands in for ``PodFollower``."""

    of: dict[str, Log] = {}  # noqa: RUF012, the newest of each pod
    made: list[str] = []  # noqa: RUF012, the pods of all

    def __init__(self, cluster: Any, pod: str, tail: int | None) -> None:
        self.ended, self.lines, self.disruption = threading.Event(), [], ""  # type: ignore[var-annotated]
        self.records = SimpleNamespace(usage=None)
        Log.of[pod] = self
        Log.made.append(pod)

    def start(self, after: int = 0) -> None:
        self.ended.clear()

    def take_lines(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def close(self) -> None:
        pass


class FakeCluster:
    """A namespace with pods; tests change what the supervisors answer, and let requests fail."""

    namespace = "training"

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.commands: list[tuple[str, str]] = []
        self.starting: dict[str, Any] = {}  # status of the next new pod
        self.away: dict[str, threading.Event] = {}  # pods whose nodes do not answer; the event ends the wait
        self.failures: dict[str, list[Exception]] = {}  # of the next requests with this method

    def add(self, name: str, annotations: dict[str, str], **status: Any) -> dict[str, Any]:
        pod = {
            "metadata": {
                "name": name,
                "uid": name,
                "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {},
                "annotations": {"paceline/job": "train", "paceline/cores-per-device": "1", **annotations},
            },
            "spec": {"containers": [{"name": "job", "resources": {"limits": {"memory": "1048576"}}}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "job", "state": {"running": {}}}], **status},
        }
        self.pods[name], self.runs[name] = pod, dict(RUNS)
        return pod

    def add_device(self, number: int, **annotations: str) -> dict[str, Any]:
        pod = self.add(f"device-{number}", {"paceline/device": str(number), "paceline/ready": "true", **annotations})
        pod["metadata"]["labels"]["paceline/device-of"] = "first"
        return pod

    def call(self, request: str, method: str, *arguments: Any, **options: Any) -> Any:
        if self.failures.get(method):
            raise self.failures[method].pop(0)
        return getattr(self, method)(*arguments, **options)

    def read_namespaced_pod(self, name: str, namespace: str, **options: Any) -> Any:
        if name not in self.pods:
            raise JobLostError(name)
        return SimpleNamespace(data=json.dumps(self.pods[name]))

    def list_namespaced_pod(self, namespace: str, **options: Any) -> Any:
        if "watch" in options:  # it ends without an event
            return SimpleNamespace(stream=lambda *_, **__: (), close=lambda: None)
        name = options.get("field_selector", "").removeprefix("metadata.name=")
        found = [pod for pod in self.pods.values() if name in ("", pod["metadata"]["name"])]
        if "label_selector" in options:
            key, _, value = options["label_selector"].partition("=")
            found = [pod for pod in found if pod["metadata"]["labels"].get(key) == value]
        return SimpleNamespace(data=json.dumps({"items": found, "metadata": {"resourceVersion": "1"}}))

    def create_namespaced_pod(self, namespace: str, body: Any, **options: Any) -> Any:
        pod = self.add(body["metadata"]["name"], body["metadata"]["annotations"], **self.starting)
        pod["metadata"]["labels"] = body["metadata"]["labels"]
        pod["spec"] = body["spec"]
        return SimpleNamespace(data=json.dumps(pod))

    def delete_namespaced_pod(self, name: str, namespace: str, body: Any) -> None:
        if self.pods.pop(name, None) is None:
            raise JobLostError(name)

    def patch_namespaced_pod(self, name: str, namespace: str, body: Any) -> None:
        self.pods[name]["metadata"]["annotations"] |= body["metadata"]["annotations"]

    def patch_namespaced_pod_resize(self, name: str, namespace: str, body: Any, **options: Any) -> Any:
        return SimpleNamespace(data=json.dumps(self.pods[name]))

    def run(self, request: str, pod: str, command: Sequence[str], stdin: Any = ()) -> Iterator[bytes]:
        if pod in self.away:
            self.away[pod].wait(60.0)
            raise RuntimeUnavailableError(f"{pod} does not answer")
        if "send" in request:
            if self.failures.get("send"):
                raise self.failures["send"].pop(0)
            self.commands.append((pod, command[-1]))
            if command[-1].startswith("stop"):
                self.end(pod, 143, stopped=True)
        yield json.dumps(self.runs[pod]).encode() if request == "read the job's state" else b""

    def end(self, pod: str, code: int | None, **run: Any) -> None:
        """End the job of a pod."""
        self.runs[pod] = {**ENDED, "code": code, **run}
        Log.of[pod].ended.set()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_job, "PodFollower", Log)
    monkeypatch.setattr(_device_pods, "_LOOK_S", 0.0)
    monkeypatch.setattr(_device_pods, "_LOOK_FIRST_S", 0.0)
    monkeypatch.setattr(_device_pod, "_RETRY_S", 0.01)
    monkeypatch.setattr(_device_pod, "_AGAIN_S", 0.0)


@pytest.fixture
def cluster() -> FakeCluster:
    found = FakeCluster()
    first = found.add(
        "first", {"paceline/device-pod": json.dumps(DEVICE_POD), "paceline/gpus": "1", "paceline/ready": "true"}
    )
    first["metadata"]["labels"]["paceline/network"] = label_value("paceline-train-devices")
    return found


def take_over(cluster: Any, *, is_new: bool = False) -> FirstPodJob:
    """Return the job as the next process finds it."""
    return FirstPodJob(cluster, cluster.pods["first"], max_output_bytes=1, is_new=is_new)


def wait_for_threads(device: str = "") -> None:
    """Wait until the threads of all further devices, or of this one, have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith(f"paceline-device-{device}"):
            thread.join(60.0)
            assert not thread.is_alive()


def report(devices: int | None) -> str:
    return Progress(done=1, total=10, devices_in_force=devices).to_line()


def test_job_that_ends_because_a_device_was_lost_says_so_and_is_not_restarted_by_a_wait(cluster: FakeCluster) -> None:
    job = take_over(cluster)
    cluster.end("first", EXIT_DEVICE_LOST)
    assert job.wait(0)
    assert job.status().device_lost
    job.stop()
    assert cluster.commands == []
    cluster.end("first", 9)
    assert (job.status().device_lost, job.status().exit_code) == (False, 9)


def test_lines_of_the_run_before_a_restart_do_not_count_its_devices(cluster: FakeCluster) -> None:
    cluster.add_device(1)
    job = take_over(cluster)
    job.resize(2)
    cluster.end("first", EXIT_DEVICE_LOST)
    Log.of["first"].lines = [report(2)]
    job.restart()
    assert job.read_lines() == [report(2)]
    assert job.devices_in_force() == 1
    assert cluster.commands[-1] == ("first", "start 2")


def test_script_that_runs_out_of_memory_in_a_further_pod_fails_the_job(cluster: FakeCluster) -> None:
    cluster.add_device(1)
    job = take_over(cluster)
    job.resize(2)
    cluster.end("device-1", 137, out_of_memory=True)
    with pytest.raises(TrainingFailedError, match="device 1: ran out of memory"):  # noqa: PT012, a thread reads it
        job.devices_in_force()
        wait_for_threads()
        job.devices_in_force()


def in_force(job: FirstPodJob, devices: float) -> float:
    """Ask for an allocation, and return the one in force."""
    try:
        job.resize(devices)
    except ResizePendingError as pending:
        return pending.devices
    return devices


@pytest.mark.parametrize("method", ["read_namespaced_pod", "delete_namespaced_pod"])
def test_pod_that_cannot_be_deleted_at_once_is_deleted_later(cluster: FakeCluster, method: str) -> None:
    cluster.add_device(1)
    job = take_over(cluster)
    assert in_force(job, 2) == 2
    cluster.failures[method] = [RuntimeUnavailableError("away"), PacelineError("rejected"), ValueError("no JSON")]
    in_force(job, 1)
    wait_for_threads()
    assert list(cluster.pods) == ["first"]
    assert in_force(job, 1) == 1


def test_device_of_a_pod_that_still_exists_when_control_ends_is_not_gone(cluster: FakeCluster) -> None:
    cluster.add_device(1)
    job = take_over(cluster)
    in_force(job, 2)
    cluster.failures["read_namespaced_pod"] = [RuntimeUnavailableError("away")] * 1000
    in_force(job, 1)
    assert job.devices_in_force() == 2
    job.close()
    wait_for_threads()
    assert "device-1" in cluster.pods


def test_pods_of_devices_that_appear_later_are_counted_and_removed(cluster: FakeCluster) -> None:
    job = take_over(cluster)
    assert in_force(job, 1) == 1
    cluster.add_device(1)
    cluster.add_device(2)
    del cluster.pods["device-2"]["metadata"]["annotations"]["paceline/ready"]
    assert in_force(job, 1) == 2
    wait_for_threads()
    assert in_force(job, 1) == 1
    assert list(cluster.pods) == ["first"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            {"phase": "Failed", "reason": "UnexpectedAdmissionError", "containerStatuses": []},
            "UnexpectedAdmissionError",
        ),
        (
            {
                "containerStatuses": [
                    {"name": "agent", "state": {"running": {}}},
                    {"name": "job", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
                ]
            },
            "ImagePullBackOff: no such image",
        ),
    ],
    ids=["the node refuses the pod", "only another container of the template runs"],
)
def test_pod_that_will_never_run_its_job_is_removed(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, status: dict[str, Any], reason: str
) -> None:
    job = take_over(cluster, is_new=True)
    cluster.starting = status
    assert in_force(job, 2) == 1
    wait_for_threads()
    assert f"Device 1 of the job: {'the pod has ended: ' if 'phase' in status else ''}{reason}" in caplog.text
    assert list(cluster.pods) == ["first"]
    cluster.starting = {"phase": "Pending", "containerStatuses": []}
    with pytest.raises(ResizePendingError, match=reason):  # the next pod starts; this is no other reason
        job.resize(2)
    job.close()
    wait_for_threads()


@pytest.mark.parametrize("scatters", [True, False])
def test_only_a_starting_pod_that_is_prepared_for_further_pods_is_taken_over(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, scatters: bool
) -> None:
    spec = JobSpec("train", ["python"], 1.0, image="i", gpus=1, team_network=TeamNetwork("net", "first-device"))
    runtime = KubernetesRuntime(lambda: None)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(runtime, "_cluster", cluster)
    for prepared in (True, False):
        pod = cluster.add(pod_name("train", "a"), {"paceline/spec": "digest"})
        pod["metadata"]["annotations"] |= {"paceline/device-pod": "{}"} if prepared else {}
        adopted = runtime._adopt(spec, "digest", "starter", scatters=scatters)
        assert (adopted is not None) == (prepared == scatters)
        assert (pod_name("train", "a") in cluster.pods) == (prepared == scatters)


def test_pods_do_not_count_if_the_script_of_a_taken_over_job_trains_on_one_device(
    cluster: FakeCluster,
) -> None:
    cluster.add_device(1)
    job = take_over(cluster)
    assert in_force(job, 2) == 2
    Log.of["first"].lines = [report(None)]
    job.read_lines()
    assert in_force(job, 2) == 1


def test_pending_resize_of_the_first_pod_counts_the_further_devices(cluster: FakeCluster) -> None:
    cluster.add_device(1)
    cluster.pods["first"]["status"]["containerStatuses"][0]["resources"] = {"limits": {"cpu": "1"}}
    job = take_over(cluster)
    cluster.failures["patch_namespaced_pod_resize"] = [QuotaError("exceeded quota")]
    with pytest.raises(ResizePendingError, match="exceeded quota") as pending:
        job.resize(2)
    assert pending.value.devices == 2


def test_node_that_does_not_answer_does_not_delay_the_process_that_takes_over(cluster: FakeCluster) -> None:
    cluster.add_device(1)
    cluster.add_device(2)
    cluster.away["device-1"] = threading.Event()
    job = take_over(cluster)
    assert in_force(job, 3) == 3
    wait_for_threads("2")
    job.renew(60.0)
    wait_for_threads("2")
    assert cluster.commands[-1] == ("device-2", "lease 60.000000")
    cluster.away.pop("device-1").set()
    wait_for_threads()
    in_force(job, 1)
    wait_for_threads()
    assert {pod for pod, command in cluster.commands if command.startswith("stop")} == {"device-1", "device-2"}
    assert list(cluster.pods) == ["first"]


def test_lease_of_a_pod_is_renewed_without_waiting_for_its_node(cluster: FakeCluster) -> None:
    cluster.add_device(1)
    job = take_over(cluster)
    assert in_force(job, 2) == 2
    wait_for_threads()
    cluster.away["device-1"] = threading.Event()
    for _ in range(3):
        job.renew(60.0)
    assert sum("lease" in thread.name for thread in threading.enumerate()) == 1
    cluster.away.pop("device-1").set()
    wait_for_threads()
    job.renew(60.0)
    wait_for_threads()
    assert cluster.commands[-1] == ("device-1", "lease 60.000000")


def test_pod_leaves_between_two_batches_although_its_process_was_not_reached_yet(cluster: FakeCluster) -> None:
    cluster.add_device(1)
    job = take_over(cluster)
    in_force(job, 1)
    wait_for_threads()
    assert [command[:5] for pod, command in cluster.commands if pod == "device-1"] == ["start", "stop "]
    assert list(cluster.pods) == ["first"]


def test_log_of_a_pod_is_followed_once_although_its_first_answer_fails(cluster: FakeCluster) -> None:
    cluster.add_device(1)
    cluster.failures["send"] = [RuntimeUnavailableError("away")] * 2
    job = take_over(cluster)
    Log.made.clear()
    assert in_force(job, 2) == 2
    wait_for_threads()
    assert Log.made == ["device-1"]
    assert cluster.commands == [("device-1", "start 1")]
