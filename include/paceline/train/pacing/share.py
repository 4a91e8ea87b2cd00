"""Reads the CPU share of this process, in cores, which its runtime sets. Called by ``threads``.

The source is the runtime's control file, else the CPU quota of the process's control groups (version 1 or 2).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from paceline.train.job import ENV_CONTROL, ENV_CORES_PER_DEVICE, ENV_GPU_TURNS


class CpuShare:
    """The share of the processor that this process may use, in cores.

    The processes that ``torchrun`` starts on a machine divide the share of their job.

    Parameters
    ----------
    environ:
        Environment of the process.
    root:
        Root of the file system.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> None:
        control = environ.get(ENV_CONTROL)
        self._control = Path(control) if control else None
        self._cores_per_device = float(environ.get(ENV_CORES_PER_DEVICE) or 1)
        self._groups = [] if control else list(_groups_of_process(root))
        turns = environ.get(ENV_GPU_TURNS)
        self._gpus = len(turns.split(os.pathsep)) if turns else None  # whose time the job shares
        self._processes = int(environ.get("LOCAL_WORLD_SIZE") or 1)

    def read(self) -> float | None:
        """Return the share in cores; ``None`` if there is no limit or the limit cannot be read."""
        of_the_job = self._read_job()
        return None if of_the_job is None else of_the_job / self._processes

    def read_devices(self) -> float | None:
        """Return the share in devices: in cores, or in GPUs, each of which comes with a number of cores.

        A job with a share of the time of its GPUs has all of them.
        """
        cores = self.read()
        return None if cores is None else cores / self._cores_per_device

    def _read_job(self) -> float | None:
        if self._gpus is not None:  # the cores do not depend on the share
            return self._gpus * self._cores_per_device
        if self._control is not None:
            devices = read_control(self._control)
            return None if devices is None else devices * self._cores_per_device
        quotas = [quota for group in self._groups if (quota := _read_quota(group)) is not None]
        return min(quotas, default=None)


def whole_cores(share: float) -> int:
    """Return a share of the processor, rounded up to whole cores.

    >>> [whole_cores(share) for share in (0.05, 1.0, 1.05)]
    [1, 1, 2]
    """
    # The quotient of quota and period may exceed a whole number by a rounding error.
    return max(1, math.ceil(share - 1e-9))


def read_control(path: Path) -> float | None:
    """Return the number of devices in a control file; ``None`` if the file has none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        devices = float(content["devices"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return devices if math.isfinite(devices) and devices > 0 else None


def _read_quota(group: Path) -> float | None:
    """Return the quota in cores from ``cpu.max`` (version 2) or ``cpu.cfs_quota_us`` and its period (version 1)."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max": no limit
        return None
    return cores if cores > 0 else None  # version 1: -1 means no limit


def _groups_of_process(root: Path) -> Iterator[Path]:
    """Yield the control groups that can have a CPU quota, from the process's group up to the root of the mount."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    own: dict[int, str] = {}  # the group's path by control group version
    for line in memberships:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            own[2] = path
        elif "cpu" in controllers.split(","):
            own[1] = path
    # keyed by whether the mount contains the process's group
    candidates: dict[bool, list[tuple[int, Path, PurePosixPath]]] = {True: [], False: []}
    for line in mounts:
        fields, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        version = {"cgroup2": 2, "cgroup": 1}.get(kind)
        if version not in own or (version == 1 and "cpu" not in options.split(" ")[-1].split(",")):
            continue
        mounted, mount_point = (_unescape(field) for field in fields.split(" ")[3:5])
        top = root / mount_point.lstrip("/")
        try:
            candidates[True].append((version, top, PurePosixPath(own[version]).relative_to(mounted)))
        except ValueError:
            candidates[False].append((version, top, PurePosixPath()))
    # In a container, the group's path may be the path on the host, while the mount shows only the container's subtree.
    # If one mount contains the process's group, ignore the other mounts of that version.
    matched = {version for version, _, _ in candidates[True]}
    for _, top, below in candidates[True] + [mount for mount in candidates[False] if mount[0] not in matched]:
        for depth in range(len(below.parts), -1, -1):
            group = top.joinpath(*below.parts[:depth])
            if (group / "cpu.max").exists() or (group / "cpu.cfs_quota_us").exists():
                yield group


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
