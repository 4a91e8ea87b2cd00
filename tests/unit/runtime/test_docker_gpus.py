"""Tests of the GPUs that an engine reports. ``tests/integration/test_docker_gpus.py`` tests their assignment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.runtime import docker_gpus, gpus


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
