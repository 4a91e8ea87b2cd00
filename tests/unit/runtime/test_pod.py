"""Tests of the manifests of pods, without a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.elastic.nodes import node_spec
from paceline.runtime import JobSpec, TeamNetwork
from paceline.runtime.kubernetes import _device_pod
from paceline.runtime.kubernetes._pod import manifest


def test_only_the_workers_of_a_team_request_gpus() -> None:
    training = JobSpec("train", ["python", "train.py"], 1.0, image="trainer", gpus=2)
    limits = {}
    for node in ("ps-0", "ps-1", "worker-0", "worker-1"):
        pod = manifest(node_spec(training, node, 1.0, Path()), "digest", "a", pull=False, reserve=False)
        limits[node] = pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
    assert limits == {"ps-0": None, "ps-1": None, "worker-0": "2", "worker-1": "2"}


@pytest.mark.parametrize(
    ("resource", "limits"),
    [("nvidia.com/gpu", {"nvidia.com/gpu": "2"}), ("amd.com/gpu", {"amd.com/gpu": "2"}), (None, {})],
)
def test_gpus_are_requested_as_the_resource_of_the_cluster_or_claimed_by_the_template(
    resource: str | None, limits: dict[str, str]
) -> None:
    spec = JobSpec("train", ["python", "train.py"], 1.0, image="trainer", gpus=2)
    pod = manifest(spec, "digest", "a", pull=False, reserve=False, gpu_resource=resource)
    found = pod["spec"]["containers"][0]["resources"]["limits"]
    assert {name: amount for name, amount in found.items() if "gpu" in name} == limits


WHOLE = JobSpec("train", ["python"], 3.0, image="i", gpus=1, whole_devices=True, min_devices=1.0, max_devices=4.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"max_devices": 1.0}, False),
        ({"whole_devices": False}, False),
        ({"gpus": 0}, False),
        ({"team_network": TeamNetwork("net")}, False),
    ],
    ids=["more devices than GPUs", "as many", "cores", "no GPU", "team"],
)
def test_only_a_job_with_more_whole_devices_than_gpus_has_further_pods(
    changes: dict[str, object], expected: bool
) -> None:
    assert _device_pod.has_further_devices(replace(WHOLE, **changes)) is expected  # type: ignore[arg-type]


def test_first_pod_has_its_own_devices_only_and_a_secret_of_its_own() -> None:
    first, second = (_device_pod.first_pod(replace(WHOLE, gpus=2)) for _ in range(2))
    assert (first.devices, first.min_devices, first.max_devices) == (2, 1.0, 2)
    assert first.team_network is not None
    assert first.team_network.external_access
    keys = {one.environment["PACELINE_DEVICE_PODS_KEY"] for one in (first, second)}
    assert len(keys) == 2
    pod = manifest(_device_pod.further_pod(WHOLE), "digest", "a", pull=False, reserve=False)
    text = json.dumps(
        _device_pod.first_annotations(WHOLE, pod) | manifest(first, "digest", "a", pull=False, reserve=False)
    )
    assert not any(key in text for key in keys), "no manifest has the secret"
    further = json.loads(_device_pod.first_annotations(WHOLE, pod)["paceline/device-pod"])
    assert further["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
