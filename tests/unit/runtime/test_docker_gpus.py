"""Tests of the GPUs that an engine reports. ``tests/integration/test_docker_gpus.py`` tests their assignment."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime import DockerRuntime, JobSpec, docker_gpus, gpus
from paceline.runtime._docker_container import create, file_entries
from paceline.runtime.docker_limits import WriteLimits

SHARES = JobSpec(
    "train", ["python"], 0.45, image="trainer", gpus=2, shares_gpus=True, cores_per_device=math.inf, disk_bytes=None
)


class RecordingClient(docker.APIClient):
    """A client that sends no request, and records how a container would be created."""

    def __init__(self) -> None:
        super().__init__(base_url="http://engine:1", version="1.41")
        self.created: dict[str, Any] = {}

    def info(self) -> dict[str, Any]:
        return {"NCPU": 16}

    def create_container(self, image: str, **arguments: Any) -> dict[str, Any]:
        self.created = arguments
        return {"Id": "c", "Warnings": None}


def engine(address: str, **info: Any) -> Any:
    return SimpleNamespace(info=lambda: info, base_url=address)


@pytest.mark.parametrize(
    ("info", "ids"),
    [
        ({}, []),
        ({"GenericResources": None, "DiscoveredDevices": None}, []),
        ({"GenericResources": [{"DiscreteResourceSpec": {"Kind": "SSD", "Value": 3}}]}, []),
        (
            {
                "GenericResources": [
                    {"NamedResourceSpec": {"Kind": "NVIDIA-GPU", "Value": f"GPU-{n}"}} for n in ("5b", "7c")
                ]
            },
            ["GPU-5b", "GPU-7c"],
        ),
        (
            {
                "DiscoveredDevices": [
                    {"Source": "cdi", "ID": f"nvidia.com/gpu={n}"} for n in ("0", "1", "GPU-5b", "all")
                ]
            },
            ["0", "1"],
        ),
        ({"DiscoveredDevices": [{"ID": "nvidia.com/gpu=GPU-5b"}, {"ID": "amd.com/gpu=0"}]}, ["GPU-5b"]),
    ],
)
def test_reported_gpus_are_read_from_generic_resources_or_discovered_devices(
    info: dict[str, Any], ids: list[str]
) -> None:
    assert gpus.reported_by(info) == ids


def test_report_overrides_the_declared_number_which_overrides_the_device_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "of_machine", lambda: ["0"])
    reports = {"DiscoveredDevices": [{"ID": "nvidia.com/gpu=GPU-5b"}]}
    local, remote = "http+docker://localhost", "https://gate-1:2376"
    assert docker_gpus.ids_of_engine(engine(local, **reports), 3) == ["GPU-5b"]
    assert docker_gpus.ids_of_engine(engine(local), 3) == ["0", "1", "2"]
    assert docker_gpus.ids_of_engine(engine(local), 0) == ["0"]
    assert docker_gpus.ids_of_engine(engine(remote), 0) == []


def test_container_with_a_share_of_its_gpus_reads_its_share_and_locks_their_volumes() -> None:
    client = RecordingClient()
    create(client, SHARES, "digest", WriteLimits(), SHARES.cores(16.0), ["0", "1"])
    host, environment = client.created["host_config"], client.created["environment"]
    assert host["Binds"] == ["paceline-gpu-0:/paceline/gpus/0:ro", "paceline-gpu-1:/paceline/gpus/1:ro"]
    assert (host["CpuQuota"], host["CapDrop"], host["SecurityOpt"]) == (1_600_000, ["ALL"], ["no-new-privileges"])
    assert environment["PACELINE_GPU_TURNS"] == "/paceline/gpus/0:/paceline/gpus/1"
    assert environment["PACELINE_CORES_PER_DEVICE"] == "8.0"
    (control,) = (one for one in file_entries(SHARES) if f"/{one.path}" == environment["PACELINE_CONTROL"])
    assert (json.loads(control.source), control.mode) == ({"devices": 0.45}, 0o644)


def test_container_without_a_share_has_no_volume_and_no_control_file() -> None:
    client = RecordingClient()
    spec = replace(SHARES, shares_gpus=False, cores_per_device=2.0, devices=2.0)
    create(client, spec, "digest", WriteLimits(), spec.cores(16.0), ["0", "1"])
    assert client.created["host_config"].get("Binds") is None
    assert client.created["host_config"]["CpuQuota"] == 400_000
    assert not {"PACELINE_GPU_TURNS", "PACELINE_CONTROL"} & set(client.created["environment"])
    assert not [one for one in file_entries(spec) if "control" in one.path]


def container(number: int, ids: str, part: float | None = None, state: str = "running") -> dict[str, Any]:
    labels = {"paceline.gpus": ids} | ({} if part is None else {"paceline.gpu_part": str(part)})
    return {"Id": f"container-{number}", "State": state, "Labels": labels}


@pytest.mark.parametrize(
    ("listed", "part", "gpu"),
    [
        ([], 0.5, "0"),
        ([container(1, "1", 0.5)], 0.5, "1"),
        ([container(1, "1", 0.6)], 0.5, "0"),
        ([container(1, "0,1")], 0.5, "2"),
        ([container(1, "1", 0.5, "exited")], 0.5, "0"),
        ([container(1, "1", 0.5), container(2, "1", 0.5, "exited")], 0.5, "0"),
        ([container(1, "0", 0.9), container(2, "1", 0.7), container(3, "2")], 0.3, "1"),
        ([container(1, "0", 0.9), container(2, "1", 0.8), container(3, "2")], 0.3, None),
    ],
)
def test_part_of_a_gpu_is_assigned_where_the_least_time_remains(listed, part, gpu) -> None:
    client: Any = SimpleNamespace(containers=lambda **_: listed)
    if gpu is not None:
        assert docker_gpus._choose(client, ["0", "1", "2"], part) == [gpu]
        return
    with pytest.raises(RuntimeUnavailableError, match=r"got 0.3, expected at most 0.2, .* free: 0.1 of GPU 0, 0.2 of"):
        docker_gpus._choose(client, ["0", "1", "2"], part)


def test_containers_with_parts_of_a_gpu_are_in_conflict_if_there_is_no_room_for_all() -> None:
    listed = [container(1, "0", 0.5), container(2, "0", 0.5), container(3, "1", 0.9)]
    client: Any = SimpleNamespace(containers=lambda **_: listed)
    assert docker_gpus.describe_conflicts(client, "container-1") == ""
    listed.append(container(4, "0", 0.1))
    assert docker_gpus.describe_conflicts(client, "container-1").count("GPU 0 by container") == 2
    listed[-1] = container(4, "0,1")
    assert "GPU 0,1 by container" in docker_gpus.describe_conflicts(client, "container-1")
    assert "GPU 1 by container" in docker_gpus.describe_conflicts(client, "container-4")


def test_container_with_a_part_of_a_gpu_is_labelled_with_it() -> None:
    client = RecordingClient()
    spec = replace(SHARES, gpus=0.5)
    create(client, spec, "digest", WriteLimits(), spec.cores(16.0), ["1"])
    labels, host = client.created["labels"], client.created["host_config"]
    assert (labels["paceline.gpus"], labels["paceline.gpu_part"]) == ("1", "0.5")
    assert host["DeviceRequests"][0]["DeviceIDs"] == ["1"]
    assert host["CpuQuota"] == 1_600_000


def test_share_needs_an_engine_whose_gpus_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "of_machine", lambda: [])
    runtime = DockerRuntime(RecordingClient())
    with pytest.raises(InvalidInputError, match="gpus: got 2, expected an engine whose GPUs are known, for a share"):
        runtime._create(SHARES, "digest")
