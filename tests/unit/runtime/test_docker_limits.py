"""Tests of the limits of containers, with recorded answers of engines whose storage this machine does not have."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, NotFound

from paceline.errors import InvalidInputError
from paceline.runtime import DockerRuntime, JobSpec
from paceline.runtime._docker_container import LABEL_JOB, LABEL_SPEC
from paceline.runtime.checks import spec_digest
from paceline.runtime.docker_limits import WriteLimits, check_limits

SPEC = JobSpec("job", ["python"], 1, image="image", disk_bytes=2**30, memory_bytes=2**28)
NO_PQUOTA = "--storage-opt is supported only for overlay over xfs with 'pquota' mount option"
NO_VOLUME_QUOTA = "create 5e4736418033: quota size requested but no quota support"
FULL = "mkdir /data/overlay2/5e47: disk quota exceeded"
SNAPSHOTTER = {"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}


class Engine:
    """An engine with recorded answers: ``info`` and, for a request with a limit on disk space, ``error``."""

    def __init__(self, info: dict[str, Any], error: str = "") -> None:
        self._info, self._error = info, error
        self.created: list[dict[str, Any]] = []
        self.warnings: list[str] | None = None
        self.container: dict[str, Any] | None = None

    def info(self) -> dict[str, Any]:
        return self._info

    def inspect_container(self, name: str) -> dict[str, Any]:
        if self.container is None:
            raise NotFound(f"no container {name}")
        return self.container

    def create_container(self, _image: str, *, host_config: dict[str, Any]) -> dict[str, str]:
        self.created.append(host_config)
        if self._error and (host_config.get("StorageOpt") or "size" in str(host_config.get("Mounts"))):
            raise APIError("500 Server Error", explanation=self._error)
        return {"Id": "container", "Warnings": self.warnings}


@pytest.mark.parametrize("driver", ["overlay2", "zfs"])
def test_engine_with_a_limit_gets_it_in_addition_to_the_files(
    driver: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine: Any = Engine({"Driver": driver, "DriverStatus": [["Backing Filesystem", "xfs"]]})
    data = tmp_path / "data"
    data.write_bytes(bytes(5))
    options = WriteLimits().host_options(engine, replace(SPEC, inputs={"data": data}), "/home")
    assert options["storage_opt"] == {"size": str(2**30 + 5)}
    assert not caplog.records


@pytest.mark.parametrize("info", [SNAPSHOTTER, {"Driver": "btrfs", "DriverStatus": None}], ids=["snapshotter", "btrfs"])
def test_engine_that_would_ignore_the_limit_does_not_get_it(
    info: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine: Any = Engine(info)
    limits = WriteLimits()
    for _ in range(2):
        assert list(limits.host_options(engine, SPEC, "/home")) == ["ulimits"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"storage driver {info['Driver']}" in caplog.text


def test_container_is_created_without_a_limit_that_the_engine_rejects(caplog: pytest.LogCaptureFixture) -> None:
    engine: Any = Engine({"Driver": "overlay2"}, NO_PQUOTA)
    limits = WriteLimits()
    host = {"StorageOpt": {"size": "9"}, "Memory": 1}
    assert limits.create(engine, "image", host_config=host) == "container"
    assert engine.created[1]["Memory"] == 1
    assert "storage_opt" not in limits.host_options(engine, SPEC, "/home")
    assert len(caplog.records) == 1
    assert NO_PQUOTA in caplog.text


def test_volume_of_a_read_only_job_is_created_without_a_limit_that_the_engine_rejects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine: Any = Engine({"Driver": "overlay2"}, NO_VOLUME_QUOTA)
    limits = WriteLimits()
    options = limits.host_options(engine, replace(SPEC, read_only=True), "/home")
    assert options["tmpfs"] == {"/tmp": f"size={2**28},mode=1777,exec"}
    assert limits.create(engine, "image", host_config={"Mounts": options["mounts"]}) == "container"
    first, second = (created["Mounts"][0] for created in engine.created)
    assert first["VolumeOptions"]["DriverConfig"] == {"Name": "local", "Options": {"size": str(2**30)}}
    assert second == {**first, "VolumeOptions": {"NoCopy": True, "DriverConfig": None}}
    assert len(caplog.records) == 1


def test_full_disk_is_not_taken_for_a_missing_limit() -> None:
    engine: Any = Engine({"Driver": "overlay2"}, FULL)
    with pytest.raises(APIError, match="500"):
        WriteLimits().create(engine, "image", host_config={"StorageOpt": {"size": "9"}})
    assert len(engine.created) == 1


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        (
            "CpuCfsQuota",
            "devices: got 1, expected an engine that applies this limit: a kernel with CONFIG_CFS_BANDWIDTH, and the "
            "cgroup controller 'cpu' delegated to a rootless engine",
        ),
        ("MemoryLimit", "memory_bytes: got 268435456, expected .* cgroup_enable=memory, .* 'memory' delegated"),
        ("PidsLimit", "max_processes: got 512, expected an engine .* controller 'pids' delegated"),
    ],
)
def test_engine_that_would_discard_a_limit_is_rejected(reported: str, message: str) -> None:
    """As a rootless engine without a delegated control group, or a kernel without the limit."""
    engine: Any = Engine({"NCPU": 4, "CpuCfsQuota": True, "MemoryLimit": True, "PidsLimit": True, reported: False})
    with pytest.raises(InvalidInputError, match=message):
        DockerRuntime(engine).check(SPEC)


def test_running_job_without_a_limit_is_no_obstacle_to_reattach_to_it() -> None:
    """A version of Paceline that did not check the limits may have started it."""
    engine: Any = Engine({"NCPU": 4, "MemoryLimit": False})
    labels = {LABEL_JOB: SPEC.name, LABEL_SPEC: spec_digest(SPEC)}
    engine.container = {"Config": {"Labels": labels}, "State": {"Status": "running"}}
    DockerRuntime(engine).check(SPEC)
    with pytest.raises(InvalidInputError, match="memory_bytes"):
        DockerRuntime(engine).check(replace(SPEC, environment={"TRY": "2"}))


def test_limit_that_a_job_does_not_have_or_an_engine_does_not_report_is_no_obstacle() -> None:
    check_limits({"NCPU": 4, "MemoryLimit": False}, replace(SPEC, memory_bytes=None))


def test_warnings_of_the_engine_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    engine: Any = Engine({"Driver": "overlay2"})
    engine.warnings = ["Memory limited without swap."]
    WriteLimits().create(engine, "image", host_config={})
    assert "The engine warns about the job's container: Memory limited without swap." in caplog.text
