"""A cgroup of our own for one local job, where this machine permits: CPU quota, memory limit, exact CPU time.

Used by the process launcher; cgroups v1, v2 and both at once are served. Containers have the engine's cgroups instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

PERIOD_US = 100_000
_QUOTA_MIN_US = 1_000


@dataclass(frozen=True)
class Group:
    """The folders of one job's cgroup: one on v2 (``unified``), one for each controller on v1."""

    cpu: Path
    memory: Path | None
    account: Path | None
    processes: Path | None
    unified: bool

    @property
    def folders(self) -> list[Path]:
        """Every folder once."""
        paths = (self.cpu, self.memory, self.account, self.processes)
        return list(dict.fromkeys(path for path in paths if path is not None))

    def set_devices(self, devices: float, period_us: int = PERIOD_US) -> None:
        """Set the CFS quota, in each period anew."""
        quota = max(_QUOTA_MIN_US, round(devices * period_us))
        if self.unified:
            _write(self.cpu / "cpu.max", f"{quota} {period_us}")
        else:
            _write(self.cpu / "cpu.cfs_period_us", str(period_us))
            _write(self.cpu / "cpu.cfs_quota_us", str(quota))

    def set_memory(self, limit: int) -> bool:
        """Set the memory limit; return whether this cgroup can."""
        if self.memory is None:
            return False
        try:
            _write(self.memory / ("memory.max" if self.unified else "memory.limit_in_bytes"), str(limit))
        except OSError:
            return False
        swap = self.memory / ("memory.swap.max" if self.unified else "memory.memsw.limit_in_bytes")
        with contextlib.suppress(OSError):  # no swap accounting in this kernel
            _write(swap, "0" if self.unified else str(limit))
        if self.unified:
            with contextlib.suppress(OSError):
                _write(self.memory / "memory.oom.group", "1")
        return True

    def set_processes(self, limit: int) -> None:
        """Limit processes and threads, where this cgroup can."""
        if self.processes is not None:
            with contextlib.suppress(OSError):
                _write(self.processes / "pids.max", str(limit))

    def join(self, pid: int) -> None:
        """Move a process in."""
        for folder in self.folders:
            _write(folder / "cgroup.procs", str(pid))

    def members(self) -> list[int]:
        """Processes that are in it now."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text().split())
        return sorted(found)

    def cpu_seconds(self) -> float | None:
        """CPU time of everything that ever ran in it."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            if self.unified:
                return int(_table(self.cpu / "cpu.stat")["usage_usec"]) / 1e6
            if self.account is not None:
                return int((self.account / "cpuacct.usage").read_text()) / 1e9
        return None

    def memory_bytes(self) -> int | None:
        """Memory in use without what the kernel can drop at will."""
        if self.memory is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            usage = self.memory / ("memory.current" if self.unified else "memory.usage_in_bytes")
            details = _table(self.memory / "memory.stat")
            cache = details.get("inactive_file" if self.unified else "total_inactive_file", "0")
            return max(0, int(usage.read_text()) - int(cache))
        return None

    def killed_for_memory(self) -> bool:
        """Whether the kernel has killed a process in it for memory."""
        if self.memory is None:
            return False
        with contextlib.suppress(OSError, ValueError):
            events = self.memory / ("memory.events" if self.unified else "memory.oom_control")
            return int(_table(events).get("oom_kill", "0")) > 0
        return False

    def remove(self, patience_s: float = 2.0) -> bool:
        """Kill what is left in it and remove it; return whether it is gone."""
        limit = time.monotonic() + patience_s
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

    def to_json(self) -> dict[str, str | bool | None]:
        """What ``from_json`` makes the same group of, in another process."""
        return {
            "cpu": str(self.cpu),
            "memory": str(self.memory) if self.memory else None,
            "account": str(self.account) if self.account else None,
            "processes": str(self.processes) if self.processes else None,
            "unified": self.unified,
        }

    @classmethod
    def from_json(cls, data: dict[str, str | bool | None]) -> Group:
        """See ``to_json``."""
        optional = {key: Path(str(data[key])) if data[key] else None for key in ("memory", "account", "processes")}
        return cls(cpu=Path(str(data["cpu"])), unified=bool(data["unified"]), **optional)


def create(name: str, mounts: str | None = None, own: str | None = None) -> Group | None:
    """Make a cgroup with a CPU controller below our own, or return ``None`` where that is not permitted.

    Parameters
    ----------
    name:
        Name of the new folder.
    mounts, own:
        Contents of ``/proc/self/mountinfo`` and ``/proc/self/cgroup``; read from there if not given.
    """
    mounts = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    own = Path("/proc/self/cgroup").read_text() if own is None else own
    places = own_folders(mounts, own)
    if "cpu" in places:
        cpu = _make(places["cpu"] / name, "cpu.cfs_quota_us")
        if cpu is None:
            return None
        needed = {"memory": "memory.limit_in_bytes", "cpuacct": "cpuacct.usage", "pids": "pids.max"}
        made: dict[str, Path | None] = {}
        for controller, file in needed.items():
            folder = places[controller] / name if controller in places else None
            if folder is not None and folder in (cpu, *made.values()):  # controllers may be mounted together
                made[controller] = folder if os.access(folder / file, os.R_OK) else None
            else:
                made[controller] = _make(folder, file) if folder is not None else None
        return Group(cpu=cpu, memory=made["memory"], account=made["cpuacct"], processes=made["pids"], unified=False)
    if "" in places:
        return _create_unified(places[""], name)
    return None


def pin(group: Group, processor: int) -> bool:
    """Let everything in a cgroup run on one processor only; return whether that is possible here."""
    try:
        if group.unified:
            folder = group.cpu
            with contextlib.suppress(OSError):
                _write(folder.parent / "cgroup.subtree_control", "+cpuset")
        else:  # another hierarchy, where the same folder has to be made first
            mount = Path("/sys/fs/cgroup/cpuset")
            folder = mount / group.cpu.name
            folder.mkdir(exist_ok=True)
            _write(folder / "cpuset.mems", (mount / "cpuset.mems").read_text())
        _write(folder / "cpuset.cpus", str(processor))
    except OSError:
        return False
    return True


def own_quota(mounts: str | None = None, own: str | None = None) -> float | None:
    """Return how many cores the cgroups that we are in allow us, or ``None`` without such a limit.

    A limit counts on every cgroup from ours up to the root of what is mounted, at each place where it is mounted.
    """
    mounts = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    own = Path("/proc/self/cgroup").read_text() if own is None else own
    found: list[float] = []
    for controller, folder in _own_places(mounts, own):
        if controller not in ("", "cpu"):
            continue
        for place in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):
                if controller:
                    quota = (place / "cpu.cfs_quota_us").read_text()
                    period = (place / "cpu.cfs_period_us").read_text()
                else:
                    quota, period = (place / "cpu.max").read_text().split()
                if quota != "max" and int(quota) > 0:
                    found.append(int(quota) / int(period))
    return min(found, default=None)


def own_folders(mounts: str, own: str) -> dict[str, Path]:
    """Return where each v1 controller's folder of this process is; key ``""`` is v2's.

    >>> mounts = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
    >>> own_folders(mounts, "0::/user.slice/me")[""].as_posix()
    '/sys/fs/cgroup/user.slice/me'
    """
    found: dict[str, Path] = {}
    for controller, folder in _own_places(mounts, own):
        found.setdefault(controller, folder)
    return found


def _own_places(mounts: str, own: str) -> list[tuple[str, Path]]:
    """Return the controllers of every mount, and where our own cgroup is below it.

    A mount of some other cgroup is taken only for a controller that has no mount with our own: a container may see
    the host's path for a cgroup of which the mount shows the container's part.
    """
    paths = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):  # v2's line names none
            paths[controller] = path
    ours: list[tuple[str, Path]] = []
    others: list[tuple[str, Path]] = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        root, point = map(_unescaped, fields[3:5])
        top = root.rstrip("/")
        for controller in [""] if kind[0] == "cgroup2" else kind[2].split(","):
            here = paths.get(controller)
            if here is None or (kind[0] == "cgroup" and not controller):
                continue
            if here == root or here.startswith(top + "/"):
                ours.append((controller, Path(point + "/" + here[len(top) :].lstrip("/"))))
            else:
                others.append((controller, Path(point)))
    found = {controller for controller, _ in ours}
    return ours + [place for place in others if place[0] not in found]


def _unescaped(field: str) -> str:
    """Return a name as it is: ``mountinfo`` has spaces and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _create_unified(own: Path, name: str) -> Group | None:
    """v2: below the nearest ancestor that we may write and that hands the CPU controller down.

    Our own cgroup holds us, and one with processes in it cannot hand controllers down: the new one is mostly a sibling.
    What an ancestor hands down is its owner's choice and stays as it is.
    """
    for controller in ("+cpu", "+memory", "+pids"):
        with contextlib.suppress(OSError):
            _write(own / "cgroup.subtree_control", controller)
    for parent in (own, *own.parents):
        if not (parent / "cgroup.controllers").exists():
            return None
        folder = _make(parent / name, "cpu.max")
        if folder is not None:
            memory = folder if (folder / "memory.max").exists() else None
            processes = folder if (folder / "pids.max").exists() else None
            return Group(cpu=folder, memory=memory, account=None, processes=processes, unified=True)
    return None


def _make(folder: Path, needed: str) -> Path | None:
    try:
        folder.mkdir()
    except OSError:
        return None
    if os.access(folder / needed, os.R_OK) and os.access(folder / "cgroup.procs", os.W_OK):
        return folder
    with contextlib.suppress(OSError):
        folder.rmdir()
    return None


def _write(path: Path, value: str) -> None:
    # Not open("w"): O_CREAT and O_TRUNC mean nothing here, and a missing file must stay an error.
    handle = os.open(path, os.O_WRONLY)
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)


def _table(path: Path) -> dict[str, str]:
    return dict(line.split(None, 1) for line in path.read_text().splitlines() if " " in line)
