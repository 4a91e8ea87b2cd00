"""Tests of the manifests of pods, without a cluster."""

from __future__ import annotations

from pathlib import Path

from paceline.elastic.nodes import node_spec
from paceline.runtime import JobSpec
from paceline.runtime.kubernetes._pod import manifest


def test_only_the_workers_of_a_team_request_gpus() -> None:
    training = JobSpec("train", ["python", "train.py"], 1.0, image="trainer", gpus=2)
    limits = {}
    for node in ("ps-0", "ps-1", "worker-0", "worker-1"):
        pod = manifest(node_spec(training, node, 1.0, Path()), "digest", "a", pull=False, reserve=False)
        limits[node] = pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
    assert limits == {"ps-0": None, "ps-1": None, "worker-0": "2", "worker-1": "2"}
