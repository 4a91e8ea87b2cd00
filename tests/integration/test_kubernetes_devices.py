"""Further GPUs of a training join and leave as pods. A resource of the nodes stands for GPUs; the pods have none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from kubernetes.client import CoreV1Api
from tests.conftest import connect_cluster
from tests.integration.clusters import account
from tests.integration.jobs import PodHarness
from tests.integration.kubernetes_guide import guide_rules
from tests.integration.test_whole_devices import SCRIPT as DIGITS
from tests.integration.test_whole_devices import DeadlineChangingState
from tests.waiting import until

from paceline.control import GPU_QUANTUM, Limits, make_controller
from paceline.errors import ResizePendingError, TaskStoppedError
from paceline.run import Exchange, Handover, PaceLoop, Surroundings
from paceline.runtime import JobSpec
from paceline.runtime.kubernetes import FirstPodJob, KubernetesRuntime
from paceline.testing.runtime_contract.harness import fail_on_leftovers

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).parent / "training" / "scattered.py"
RESOURCE = "paceline.test/gpu"
TOTAL = 1000


def offer(first: int, second: int = 0) -> None:
    """Let the first nodes of the cluster have these numbers of the resource."""
    core = CoreV1Api(connect_cluster())
    for node, amount in zip(core.list_node().items, (first, second), strict=False):
        body = {"status": {"capacity": {RESOURCE: str(amount)}, "allocatable": {RESOURCE: str(amount)}}}
        core.patch_node_status(node.metadata.name, body)


class Training:
    """A training under test: the job, the batches that it may train, and what it has written."""

    def __init__(self, pods: PodHarness, folder: Path) -> None:
        self.pods, self.folder = pods, folder
        self.runtime = KubernetesRuntime(
            account(pods.namespace, guide_rules()), namespace=pods.namespace, gpu_resource=RESOURCE
        )
        (folder / "allowed").write_text("0")
        self.lines: list[str] = []
        self.allowed = 0
        self.reasons: list[str] = []

    def spec(self, **changes: Any) -> JobSpec:
        files = {SCRIPT.name: SCRIPT, "allowed": self.folder / "allowed"}
        asked = {"devices": 1, "max_devices": 3, "gpus": 1, "cores_per_device": 0.5, "whole_devices": True, **changes}
        spec = self.pods.spec(command=["python", SCRIPT.name], files=files, memory_bytes=512 * 1024**2, **asked)
        return spec

    def start(self, **changes: Any) -> FirstPodJob:
        job = self.runtime.start(self.spec(**changes))
        assert isinstance(job, FirstPodJob)
        self.job = job
        return job

    def reattach(self) -> FirstPodJob:
        job = self.runtime.reattach(self.job.id)
        assert isinstance(job, FirstPodJob)
        return job

    def in_force(self, devices: float) -> float:
        """Ask for an allocation, and return the one in force."""
        try:
            self.job.resize(devices)
        except ResizePendingError as pending:
            self.reasons.append(pending.reason)
            return pending.devices
        return devices

    def allow(self, batches: int) -> None:
        self.allowed = batches
        self.pods.run(self.job, f"echo {batches} >/paceline/work/new && mv /paceline/work/new /paceline/work/allowed")

    def train_until(self, condition: Callable[[], bool]) -> None:
        """Allow one batch after the other until the condition is true."""

        def holds() -> bool:
            assert not self.job.wait(0.2), (self.lines[-20:], self.job.status())
            self.lines += self.job.read_lines()
            if condition():
                return True
            assert self.allowed < TOTAL - 1, (self.reasons[-3:], self.lines[-20:])
            self.allow(self.allowed + 1)
            return False

        until(holds)

    def finish(self) -> None:
        self.allow(TOTAL)
        until(lambda: self.job.wait(1.0))
        self.lines += self.job.read_lines()
        assert self.job.status().exit_code == 0, self.lines[-20:]

    def pods_of_devices(self) -> dict[str, Any]:
        found = self.pods.core.list_namespaced_pod(self.pods.namespace, label_selector="paceline/device-of").items
        return {one.metadata.annotations["paceline/device"]: one for one in found}

    def trained_counts(self) -> list[Counter[int]]:
        counts = [Counter[int]() for _ in range(TOTAL // 5)]
        for line in self.lines:
            if "seen [" in line:
                epoch, weight, samples = json.loads(line.partition("seen ")[2])
                counts[epoch].update(samples if weight > 0 else [])
        return counts

    def assert_same_result(self, alone: dict[str, torch.Tensor]) -> None:
        self.job.collect(self.folder / "collected")
        weights = torch.load(self.folder / "collected" / "model.pt", weights_only=True)
        for name, one in alone.items():
            assert torch.allclose(weights[name], one, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Return the weights of a training in one process."""
    folder = tmp_path_factory.mktemp("alone")
    environment = {**os.environ, "PACELINE_OUTPUT": str(folder)}
    subprocess.run([sys.executable, SCRIPT], cwd=folder, env=environment, check=True, capture_output=True, timeout=300)
    weights: dict[str, torch.Tensor] = torch.load(folder / "model.pt", weights_only=True)
    return weights


@pytest.fixture
def training(namespace: str, trainer_image: str, tmp_path: Path) -> Iterator[Training]:
    with fail_on_leftovers(PodHarness(namespace, trainer_image, tmp_path)) as pods:
        yield Training(pods, tmp_path)
        offer(0)


def test_devices_join_and_leave_as_pods(training: Training, alone: dict[str, torch.Tensor]) -> None:
    offer(2)
    job = training.start()
    assert training.in_force(1) == 1
    training.train_until(lambda: training.in_force(3) == 2)
    training.train_until(lambda: "Insufficient paceline.test/gpu" in training.reasons[-1])
    assert job.devices_in_force() == 2, "the third device waits for a node"
    offer(2, 1)
    training.train_until(lambda: training.in_force(3) == 3)
    assert sorted(training.pods_of_devices()) == ["1", "2"]
    for pod in training.pods_of_devices().values():
        assert [one.name for one in pod.metadata.owner_references] == [job.id.split("/")[2]]
        assert pod.spec.containers[0].resources.limits[RESOURCE] == "1"
    job.close()
    training.job = job = training.reattach()
    training.lines.clear()  # the next process reads the earlier output again
    assert training.in_force(3) == job.devices_in_force() == 3, "the next process takes over all pods"
    training.train_until(lambda: training.in_force(2) == 2)
    assert list(training.pods_of_devices()) == ["1"]
    training.finish()
    training.assert_same_result(alone)
    assert training.trained_counts() == [Counter(range(40))] * (TOTAL // 5)
    job.remove()
    assert training.pods.core.list_namespaced_pod(training.pods.namespace).items == []


@pytest.mark.parametrize("grace_s", [30, 0], ids=["evicted", "lost"])
def test_job_goes_on_without_a_deleted_device_and_gets_another_one(
    training: Training, alone: dict[str, torch.Tensor], grace_s: int
) -> None:
    offer(2)
    job = training.start(max_devices=2)
    training.train_until(lambda: training.in_force(2) == 2)
    (pod,) = training.pods_of_devices().values()
    training.pods.core.delete_namespaced_pod(pod.metadata.name, training.pods.namespace, grace_period_seconds=grace_s)
    training.train_until(lambda: job.devices_in_force() == 1)
    training.train_until(lambda: training.in_force(2) == 2)
    (other,) = training.pods_of_devices().values()
    assert other.metadata.name != pod.metadata.name
    training.finish()
    training.assert_same_result(alone)
    if grace_s:
        assert training.trained_counts() == [Counter(range(40))] * (TOTAL // 5), "no batch was trained again"
    job.remove()


def test_devices_end_with_a_deleted_first_pod_and_the_job_resumes(
    training: Training, alone: dict[str, torch.Tensor]
) -> None:
    offer(2)
    job = training.start(max_devices=2)
    training.train_until(lambda: training.in_force(2) == 2)
    done = training.allowed
    until(lambda: "step" in training.pods.run(job, "ls /paceline/checkpoint; echo step"))
    job.collect(training.folder / "checkpoint", "checkpoint")
    training.pods.core.delete_namespaced_pod(job.id.split("/")[2], training.pods.namespace, grace_period_seconds=0)
    until(lambda: job.status().state == "gone")
    until(lambda: not training.pods_of_devices())
    job.close()
    training.start(max_devices=2, checkpoint=training.folder / "checkpoint")
    training.train_until(lambda: training.in_force(2) == 2)
    assert done > 0
    training.finish()
    training.assert_same_result(alone)
    training.job.remove()


def test_device_joins_as_a_pod_for_an_earlier_deadline(training: Training) -> None:
    offer(2)
    state = DeadlineChangingState()
    controller = make_controller("default", Limits(1, 2, GPU_QUANTUM), deadline_s=3600.0)
    devices = controller.start(0.0)
    command = ["python", DIGITS.name, "--whole", "--batches", "10000"]
    spec = replace(training.spec(max_devices=2), command=command, files={DIGITS.name: DIGITS}, devices=devices)
    job = training.runtime.start(spec)
    exchange = Exchange(state)
    try:
        origin = datetime.now(timezone.utc)
        surroundings = Surroundings(stopped=state.second_process_joined)
        loop = PaceLoop(job, controller, exchange, Handover(origin, devices), surroundings=surroundings)
        with pytest.raises(TaskStoppedError, match="was stopped"):  # the second device has joined
            loop.run()
    finally:
        exchange.close()
        job.remove()
    waiting = [sample["devices"] for sample in state.seen if sample["devices_in_force"] == 1]
    assert set(waiting) == {1.0}, "the page shows the devices that have joined"
    assert "resize_pending" in [event["kind"] for event in state["history"]["events"]]
