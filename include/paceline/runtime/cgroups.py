"""A cgroup for one local job, if this machine permits it: a CPU quota, a memory limit and exact CPU times.

Used by the process launcher, with cgroups v1, v2 or both. Containers use the engine's cgroups.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 100_000
_QUOTA_MIN_US = 1_000


@dataclass(frozen=True)
class Group:
    """The folders of one job's cgroup: a single folder on v2 (``unified``), one folder per controller on v1."""

    cpu: Path
    memory: Path | None
    account: Path | None
    processes: Path | None
    unified: bool

    @property
    def folders(self) -> list[Path]:
        """All folders of the cgroup, without duplicates."""
        paths = (self.cpu, self.memory, self.account, self.processes)
        return list(dict.fromkeys(path for path in paths if path is not None))

    def set_devices(self, devices: float, period_us: int = PERIOD_US) -> None:
        """Set the CFS quota to ``devices`` cores."""
        quota = max(_QUOTA_MIN_US, round(devices * period_us))
        if self.unified:
            _write(self.cpu / "cpu.max", f"{quota} {period_us}")
        else:
            _write(self.cpu / "cpu.cfs_period_us", str(period_us))
            try:
                _write(self.cpu / "cpu.cfs_quota_us", str(quota))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # v1 rejects a quota above that of an ancestor, whose quota then is the limit.
                _write(self.cpu / "cpu.cfs_quota_us", "-1")

    def set_memory(self, limit: int) -> bool:
        """Set the memory limit; return whether this cgroup supports a memory limit."""
        if self.memory is None:
            return False
        try:
            _write(self.memory / ("memory.max" if self.unified else "memory.limit_in_bytes"), str(limit))
        except OSError:
            return False
        swap = self.memory / ("memory.swap.max" if self.unified else "memory.memsw.limit_in_bytes")
        with contextlib.suppress(OSError):  # the kernel may have no swap accounting
            _write(swap, "0" if self.unified else str(limit))
        if self.unified:
            with contextlib.suppress(OSError):
                _write(self.memory / "memory.oom.group", "1")
        return True

    def set_processes(self, limit: int) -> None:
        """Limit the number of processes and threads, if this cgroup supports this limit."""
        if self.processes is not None:
            with contextlib.suppress(OSError):
                _write(self.processes / "pids.max", str(limit))

    def join(self, pid: int) -> None:
        """Move a process into the cgroup."""
        for folder in self.folders:
            _write(folder / "cgroup.procs", str(pid))

    def members(self) -> list[int]:
        """Return the PIDs of the processes in the cgroup."""
        pids: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                pids.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
        return sorted(pids)

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of all processes that have run in the cgroup; ``None`` without CPU accounting."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            if self.unified:
                return int(_read_table(self.cpu / "cpu.stat")["usage_usec"]) / 1e6
            if self.account is not None:
                return int((self.account / "cpuacct.usage").read_text()) / 1e9
        return None

    def memory_bytes(self) -> int | None:
        """Return the memory in use, less page cache that the kernel can reclaim."""
        if self.memory is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            usage = self.memory / ("memory.current" if self.unified else "memory.usage_in_bytes")
            details = _read_table(self.memory / "memory.stat")
            cache = details.get("inactive_file" if self.unified else "total_inactive_file", "0")
            return max(0, int(usage.read_text()) - int(cache))
        return None

    def killed_for_memory(self) -> bool:
        """Return whether the kernel has killed a process of the cgroup to enforce the memory limit."""
        if self.memory is None:
            return False
        with contextlib.suppress(OSError, ValueError):
            events = self.memory / ("memory.events" if self.unified else "memory.oom_control")
            return int(_read_table(events).get("oom_kill", "0")) > 0
        return False

    def remove(self, timeout_s: float = 2.0) -> bool:
        """Kill the remaining processes and remove the cgroup; return whether the removal succeeded."""
        limit = time.monotonic() + timeout_s
        while True:
            for pid in self.members():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for folder in self.folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if not any(folder.exists() for folder in self.folders):
                return True
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)

    def is_of(self, job: str) -> bool:
        """Return whether a launcher may have created all folders, below a mount of cgroups, for the job ``job``."""
        lines = _mount_lines(Path("/proc/self/mountinfo").read_text())
        mounts = {Path(_unescape(fields[4])) for fields, _ in lines}
        return all(
            re.fullmatch(re.escape(job) + "-[0-9]+", folder.name)
            and ".." not in folder.parts
            and not mounts.isdisjoint(folder.parents)
            for folder in self.folders
        )

    def to_json(self) -> dict[str, str | bool | None]:
        """Return the folders as JSON values, for ``from_json`` in another process."""
        return {
            "cpu": str(self.cpu),
            "memory": str(self.memory) if self.memory else None,
            "account": str(self.account) if self.account else None,
            "processes": str(self.processes) if self.processes else None,
            "unified": self.unified,
        }

    @classmethod
    def from_json(cls, data: dict[str, str | bool | None]) -> Group:
        """Return the group from the result of ``to_json``."""
        optional = {key: Path(str(data[key])) if data[key] else None for key in ("memory", "account", "processes")}
        return cls(cpu=Path(str(data["cpu"])), unified=bool(data["unified"]), **optional)


def create(name: str, mounts: str | None = None, own_cgroups: str | None = None) -> Group | None:
    """Create a cgroup with a CPU controller; return ``None`` if this process may not create one.

    Parameters
    ----------
    name:
        Name of the new folder.
    mounts, own_cgroups:
        Contents of ``/proc/self/mountinfo`` and ``/proc/self/cgroup``; read from these files by default.
    """
    mounts = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    own_cgroups = Path("/proc/self/cgroup").read_text() if own_cgroups is None else own_cgroups
    folders = own_folders(mounts, own_cgroups)
    if "cpu" in folders:
        cpu = _create_folder(folders["cpu"] / name, "cpu.cfs_quota_us")
        if cpu is None:
            return None
        needed = {"memory": "memory.limit_in_bytes", "cpuacct": "cpuacct.usage", "pids": "pids.max"}
        new: dict[str, Path | None] = {}
        for controller, file in needed.items():
            folder = folders[controller] / name if controller in folders else None
            if folder is not None and folder in (cpu, *new.values()):  # v1 may mount several controllers together
                new[controller] = folder if os.access(folder / file, os.R_OK) else None
            else:
                new[controller] = _create_folder(folder, file) if folder is not None else None
        return Group(cpu=cpu, memory=new["memory"], account=new["cpuacct"], processes=new["pids"], unified=False)
    if "" in folders:
        return _create_unified(folders[""], name)
    return None


def pin(group: Group, processor: int) -> bool:
    """Restrict a cgroup to one processor; return whether this machine permits it."""
    try:
        if group.unified:
            folder = group.cpu
            with contextlib.suppress(OSError):
                _write(folder.parent / "cgroup.subtree_control", "+cpuset")
        else:  # on v1, cpuset is a separate hierarchy
            mount = Path("/sys/fs/cgroup/cpuset")
            folder = mount / group.cpu.name
            folder.mkdir(exist_ok=True)
            _write(folder / "cpuset.mems", (mount / "cpuset.mems").read_text())
        _write(folder / "cpuset.cpus", str(processor))
    except OSError:
        return False
    return True


def own_quota(mounts: str | None = None, own_cgroups: str | None = None) -> float | None:
    """Return the CPU limit of this process's cgroups in cores; ``None`` without a limit.

    The result is the tightest limit of all ancestors in every mount of the hierarchy.
    """
    mounts = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    own_cgroups = Path("/proc/self/cgroup").read_text() if own_cgroups is None else own_cgroups
    quotas: list[float] = []
    for controller, folder in _own_locations(mounts, own_cgroups):
        if controller not in ("", "cpu"):
            continue
        for ancestor in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):
                if controller:
                    quota = (ancestor / "cpu.cfs_quota_us").read_text()
                    period = (ancestor / "cpu.cfs_period_us").read_text()
                else:
                    quota, period = (ancestor / "cpu.max").read_text().split()
                if quota != "max" and int(quota) > 0:
                    quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def own_folders(mounts: str, own_cgroups: str) -> dict[str, Path]:
    """Return this process's cgroup folder for each v1 controller; the key ``""`` is the v2 hierarchy.

    >>> mounts = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
    >>> own_folders(mounts, "0::/user.slice/me")[""].as_posix()
    '/sys/fs/cgroup/user.slice/me'
    """
    folders: dict[str, Path] = {}
    for controller, folder in _own_locations(mounts, own_cgroups):
        folders.setdefault(controller, folder)
    return folders


def _own_locations(mounts: str, own_cgroups: str) -> list[tuple[str, Path]]:
    """Return the mounted controllers, each with the folder of this process's cgroup below its mount.

    If no mount of a controller contains this process's cgroup, use the top of another mount: in a container,
    ``/proc/self/cgroup`` may show the host's path while the mount shows only the container's subtree.
    """
    paths = {}
    for line in own_cgroups.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):  # v2 lists no controllers
            paths[controller] = path
    ours: list[tuple[str, Path]] = []
    others: list[tuple[str, Path]] = []
    for fields, kind in _mount_lines(mounts):
        root, mount_point = map(_unescape, fields[3:5])
        top = root.rstrip("/")
        for controller in [""] if kind[0] == "cgroup2" else kind[2].split(","):
            own_path = paths.get(controller)
            if own_path is None or (kind[0] == "cgroup" and not controller):
                continue
            if own_path == root or own_path.startswith(top + "/"):
                ours.append((controller, Path(mount_point + "/" + own_path[len(top) :].lstrip("/"))))
            else:
                others.append((controller, Path(mount_point)))
    located = {controller for controller, _ in ours}
    return ours + [location for location in others if location[0] not in located]


def _mount_lines(mounts: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words before and after the separator of each line of ``mountinfo`` that mounts cgroups."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            yield fields, kind


def _unescape(field: str) -> str:
    """Decode the octal escape sequences that replace spaces and other characters in ``mountinfo``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _create_unified(own_folder: Path, name: str) -> Group | None:
    """Create a v2 cgroup below the nearest writable ancestor that delegates the CPU controller.

    A cgroup with processes in it cannot delegate controllers, so the new cgroup is usually a sibling of this process's
    cgroup. The delegation settings of ancestors belong to their owners and remain unchanged.
    """
    # In any cgroup but the root, which has no type, "+cpu" would make this process's cgroup threaded. A cgroup below it
    # then accepts no processes.
    if not (own_folder / "cgroup.type").exists():
        for controller in ("+cpu", "+memory", "+pids"):
            with contextlib.suppress(OSError):
                _write(own_folder / "cgroup.subtree_control", controller)
    for parent in (own_folder, *own_folder.parents):
        if not (parent / "cgroup.controllers").exists():
            return None
        folder = _create_folder(parent / name, "cpu.max")
        if folder is not None:
            memory = folder if (folder / "memory.max").exists() else None
            processes = folder if (folder / "pids.max").exists() else None
            return Group(cpu=folder, memory=memory, account=None, processes=processes, unified=True)
    return None


def _create_folder(folder: Path, required_file: str) -> Path | None:
    try:
        folder.mkdir()
    except OSError:
        return None
    if os.access(folder / required_file, os.R_OK) and _accepts_processes(folder):
        return folder
    with contextlib.suppress(OSError):
        folder.rmdir()
    return None


def _accepts_processes(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # v1 has no types
        if (folder / "cgroup.type").read_text().strip() == "domain invalid":
            return False
    return os.access(folder / "cgroup.procs", os.W_OK)


def _write(path: Path, value: str) -> None:
    # Do not use open("w"): O_CREAT and O_TRUNC do not apply to cgroup files, and a missing file must be an error.
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)


def _read_table(path: Path) -> dict[str, str]:
    return dict(line.split(None, 1) for line in path.read_text().splitlines() if " " in line)
