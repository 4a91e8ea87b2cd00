"""Allocations of pods: what a job gets at its start, and what is in force while a node or a quota has no room."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import connect_cluster

from paceline.errors import ResizePendingError
from paceline.runtime import Job
from paceline.runtime.kubernetes import KubernetesRuntime
from paceline.testing.runtime_contract.harness import RESUMES, WAITS, read_to_end, until, wait_for_line

from .jobs import PodHarness

pytestmark = pytest.mark.kubernetes
FIRST_SHARE = "from paceline.train.pacing.share import CpuShare\nprint(round(CpuShare().read(), 3))"


@pytest.fixture
def reserving(pods: PodHarness) -> KubernetesRuntime:
    """Return a runtime that reserves the CPU of its pods, which all run on one node."""
    node = pods.core.list_node().items[0].metadata.labels["kubernetes.io/hostname"]
    template = {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}
    return KubernetesRuntime(connect_cluster, namespace=pods.namespace, template=template, reserve=True)


def pod(pods: PodHarness, job: Job) -> dict[str, Any]:
    found = pods.core.read_namespaced_pod(job.id.split("/")[2], pods.namespace, _preload_content=False)
    read: dict[str, Any] = json.loads(found.data)
    return read


def request(pods: PodHarness, job: Job) -> str:
    return str(pod(pods, job)["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def runs_again(pods: PodHarness, job: Job) -> bool:
    (container,) = pod(pods, job)["status"]["containerStatuses"]
    return container["restartCount"] == 1 and "running" in container["state"]


def in_force(resize: Callable[[], None]) -> bool:
    with contextlib.suppress(ResizePendingError):
        resize()
        return True
    return False


def test_job_begins_with_its_allocation_after_its_pod_had_a_core_for_the_copy(pods: PodHarness) -> None:
    job = pods.runtime.start(pods.spec(FIRST_SHARE, devices=0.2))
    assert pod(pods, job)["metadata"]["generation"] == 2, "the pod was created with another limit"
    assert read_to_end(job) == ["0.2"]
    job.remove()


def test_pod_has_no_core_for_the_copy_if_a_quota_does_not_admit_it(pods: PodHarness) -> None:
    body = {"metadata": {"name": "budget"}, "spec": {"hard": {"limits.cpu": "500m"}}}
    pods.core.create_namespaced_resource_quota(pods.namespace, body)
    job = pods.runtime.start(pods.spec(FIRST_SHARE + "\nopen('../output/a', 'w').close()", devices=0.4))
    assert pod(pods, job)["metadata"]["generation"] == 1
    assert read_to_end(job) == ["0.4"]
    assert job.collect(pods.folder / "out") == ["a"]
    job.remove()


def test_resize_to_the_same_thousandth_of_a_core_is_not_sent(pods: PodHarness) -> None:
    job = pods.runtime.start(pods.spec(WAITS, devices=1.5))
    wait_for_line(job, "up")
    for devices in (0.7, 0.7004, 0.6996):
        job.resize(devices)
    assert pod(pods, job)["metadata"]["generation"] == 2
    again = pods.runtime.reattach(job.id)
    again.resize(0.8)
    job.remove()
    again.close()


def test_resize_that_a_full_quota_refuses_leaves_the_allocation(pods: PodHarness) -> None:
    body = {"metadata": {"name": "budget"}, "spec": {"hard": {"limits.cpu": "2"}}}
    pods.core.create_namespaced_resource_quota(pods.namespace, body)
    job = pods.runtime.start(pods.spec(WAITS, devices=0.5))
    other = pods.runtime.start(pods.spec(WAITS, devices=1.2, name=f"{pods.mark}-other"))
    with pytest.raises(ResizePendingError, match="exceeded quota: budget") as raised:
        job.resize(1.5)
    assert raised.value.devices == 0.5
    assert pods.quota_of(job) == 0.5
    other.remove()
    until(lambda: in_force(lambda: job.resize(1.5)))
    job.remove()


@pytest.mark.parametrize("memory_bytes", [2**28, None], ids=["memory limit", "no memory limit"])
def test_request_follows_the_limit(pods: PodHarness, reserving: KubernetesRuntime, memory_bytes: int | None) -> None:
    job = reserving.start(pods.spec(WAITS, devices=0.3, memory_bytes=memory_bytes))
    wait_for_line(job, "up")
    for devices, wanted in ((0.5, "499m"), (0.2, "199m"), (0.0001, "9m")):
        until(lambda devices=devices: in_force(lambda: job.resize(devices)))
        assert request(pods, job) == wanted
        assert pod(pods, job)["status"]["qosClass"] == "Burstable"
        assert pods.quota_of(job) == max(devices, 0.01)
    job.remove()


def test_deferred_resize_says_what_is_in_force_until_the_node_has_room(
    pods: PodHarness, reserving: KubernetesRuntime
) -> None:
    cores = pods.core.list_node().items[0].status.allocatable["cpu"]
    small, large = 0.1 * float(cores), 0.7 * float(cores)
    other = reserving.start(pods.spec(WAITS, devices=0.5 * float(cores), name=f"{pods.mark}-other"))
    job = reserving.start(pods.spec(RESUMES, devices=small))
    lines = wait_for_line(job, "saved")
    for _ in range(2):
        with pytest.raises(ResizePendingError, match="Deferred: Node didn't have enough resource: cpu") as raised:
            job.resize(large)
        assert raised.value.devices == pytest.approx(small)
    again = reserving.reattach(job.id)
    with pytest.raises(ResizePendingError, match="Deferred"):
        again.resize(large)
    again.close()
    # A restart of the container must not put the deferred resize in force.
    pods.run(job, "kill -TERM 1")
    assert job.wait(120)
    until(lambda: runs_again(pods, job))
    with pytest.raises(ResizePendingError) as raised:
        job.resize(large)
    assert raised.value.devices == pytest.approx(small)
    assert pods.quota_of(job) == pytest.approx(small)
    job.restart()
    assert lines + read_to_end(job) == ["resumed at 0", "saved", "resumed at 41"]
    other.remove()
    until(lambda: in_force(lambda: job.resize(large)))
    assert pods.quota_of(job) == pytest.approx(large)
    job.remove()


def test_withdrawn_resize_is_in_force_at_once_and_a_stopped_job_reserves_nothing(
    pods: PodHarness, reserving: KubernetesRuntime
) -> None:
    cores = float(pods.core.list_node().items[0].status.allocatable["cpu"])
    other = reserving.start(pods.spec(WAITS, devices=0.5 * cores, name=f"{pods.mark}-other"))
    wait_for_line(other, "up")
    job = reserving.start(pods.spec(WAITS, devices=0.3))
    wait_for_line(job, "up")
    with pytest.raises(ResizePendingError):
        job.resize(0.7 * cores)
    until(lambda: in_force(lambda: job.resize(0.3)))
    other.stop(0)
    assert request(pods, other) == "1m"
    until(lambda: in_force(lambda: job.resize(0.7 * cores)))
    with pytest.raises(ResizePendingError):
        other.resize(0.5 * cores)
    job.remove()
    other.remove()
