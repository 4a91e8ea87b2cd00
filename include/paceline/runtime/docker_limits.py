"""Limits what a container can use and write, and where. Used by ``DockerRuntime`` and ``paceline fleet check``."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError
from paceline.runtime.base import JobSpec
from paceline.runtime.checks import placed_files
from paceline.runtime.docker_errors import engine_call

if TYPE_CHECKING:
    from docker import APIClient

log = logging.getLogger(__name__)

# Storage drivers that limit a container's disk space or reject the limit. The snapshotters of containerd ignore it.
# Btrfs ignores it after a container is removed, because the kernel then marks its quotas as inconsistent.
_DRIVERS = ("overlay2", "zfs")
# Answers of engines whose file system does not support the limit, for a container's layer and for a volume.
_REJECTED = re.compile(r"--storage-opt|no quota support")
_TMP_BYTES = 1024**3
# What an engine reports about a limit that it can apply: the field of a job with the limit, its cgroup controller, and
# the option with which a kernel has the limit.
_CAN_LIMIT = {
    "CpuCfsQuota": ("devices", "cpu", "CONFIG_CFS_BANDWIDTH"),
    "MemoryLimit": ("memory_bytes", "memory", "cgroup_enable=memory"),
    "PidsLimit": ("max_processes", "pids", "CONFIG_CGROUP_PIDS"),
}


def missing_limits(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each limit that an engine would discard, as the field of a job, and what the engine needs for it.

    ``info``: what the engine reports about itself. Podman does not report which limits it can apply.
    """
    for key, (field, controller, option) in _CAN_LIMIT.items():
        if info.get(key) is False:
            delegation = f"the cgroup controller {controller!r} delegated to a rootless engine"
            yield field, f"a kernel with {option}, and {delegation}"


def check_limits(info: Mapping[str, Any], spec: JobSpec) -> None:
    """Raise if the engine would start the job without one of its limits. The engine itself only warns about that."""
    for field, needed in missing_limits(info):
        limit = getattr(spec, field)
        if limit is not None:
            raise InvalidInputError(field, limit, f"an engine that applies this limit: {needed}")


class WriteLimits:
    """Limits the disk space and the writable folders of a runtime's containers.

    If the engine cannot limit the disk space, a warning says so once, and containers start without this limit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_unlimited = False

    def host_options(self, client: APIClient, spec: JobSpec, home: str) -> dict[str, Any]:
        """Return the arguments of ``create_host_config`` that limit what the job of ``spec`` can write.

        With a read-only root, ``home`` is an anonymous volume. Unlike a tmpfs, it keeps the checkpoint and the output
        when the container stops, and the engine accepts files for it before the start.
        """
        from docker.types import DriverConfig, Mount, Ulimit

        options: dict[str, Any] = {}
        size = self._disk_size(client, spec)
        if spec.disk_bytes is not None:
            options["ulimits"] = [Ulimit(name="fsize", soft=spec.disk_bytes, hard=spec.disk_bytes)]
        if spec.read_only:
            quota = None if size is None else DriverConfig("local", {"size": str(size)})
            options["mounts"] = [Mount(home, None, type="volume", no_copy=True, driver_config=quota)]
            tmp_bytes = _TMP_BYTES if spec.memory_bytes is None else min(spec.memory_bytes, _TMP_BYTES)
            # exec: PyTorch compiles libraries to this folder and loads them.
            options["tmpfs"] = {"/tmp": f"size={tmp_bytes},mode=1777,exec"}  # noqa: S108 - inside the container
            options["read_only"] = True
        elif size is not None:
            options["storage_opt"] = {"size": str(size)}
        return options

    def create(self, client: APIClient, image: str, *, host_config: dict[str, Any], **arguments: Any) -> str:
        """Create a container and return its id; without the limit on disk space if the engine does not support it."""
        from docker.errors import APIError

        try:
            created = client.create_container(image, host_config=host_config, **arguments)
        except APIError as error:
            if not _REJECTED.search(str(error.explanation)):
                raise
            self._warn(str(error.explanation))
            created = client.create_container(image, host_config=_without_disk_limit(host_config), **arguments)
        for warning in created.get("Warnings") or ():
            log.warning("The engine warns about the job's container: %s", warning)
        return str(created["Id"])

    def _disk_size(self, client: APIClient, spec: JobSpec) -> int | None:
        """Return the limit for the engine; ``None`` for no limit. The files that the job starts with do not count."""
        if spec.disk_bytes is None or self._is_unlimited:
            return None
        if not spec.read_only:
            with engine_call("read the engine's storage driver"):
                info = client.info()
                driver = info["Driver"]
                if driver not in _DRIVERS or any(row[0] == "driver-type" for row in info.get("DriverStatus") or ()):
                    self._warn(f"storage driver {driver}")
                    return None
        return spec.disk_bytes + sum(local.stat().st_size for _, local in placed_files(spec))

    def _warn(self, reason: str) -> None:
        with self._lock:
            if not self._is_unlimited:
                self._is_unlimited = True
                log.warning(
                    "disk: the engine does not limit the total disk space of jobs (%s), so a job can fill the "
                    "engine's disk. The size of each file, the log and the collected output remain limited",
                    reason,
                )


def _without_disk_limit(host_config: dict[str, Any]) -> dict[str, Any]:
    mounts = [
        {**mount, "VolumeOptions": {**mount["VolumeOptions"], "DriverConfig": None}}
        for mount in host_config.get("Mounts") or ()
    ]
    return {**host_config, "StorageOpt": None, "Mounts": mounts}
