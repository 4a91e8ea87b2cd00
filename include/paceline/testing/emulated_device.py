"""Emulates a machine with a control group on this computer. Containers share the group's cores and memory.

Used by tests, benchmarks and the fleet demo.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from paceline.errors import InvalidInputError, PacelineError
from paceline.fleet import Fleet, Machine
from paceline.runtime import Usage, cgroups

_PREFIX = "/paceline-device-"
# The kernel distributes a period's quota among containers at its ticks (about every 4 ms), and carries no deficit into
# the next period. With less than a tick per container, one of three busy containers got a tenth of the others'
# share. A quota of a few ticks prevents this; a larger quota would make a slow device jump between full speed and idle.
_QUOTA_MS = 16
_MIN_PERIOD_MS, _MAX_PERIOD_MS = 20, 1000  # 1000 ms is the kernel's maximum
# Devices with equal periods remain in phase: a device that runs while its neighbour is throttled remains 10 % faster
# than its neighbour. Five consecutive devices therefore have different periods.
_PERIOD_FACTORS = itertools.cycle((1.0, 1.15, 1.05, 1.2, 1.1))
_CGROUP_PATH = re.compile(r"^(\d+:[^:]*:).*$", re.MULTILINE)


class EmulatedDevice:
    """A control group with limited cores and memory, as the parent of containers.

    Containers whose parent group is ``cgroup_parent`` share the limits. The class needs root, and an engine on this
    machine that manages control groups itself (driver ``cgroupfs``).

    Parameters
    ----------
    name:
        Name, unique on this machine.
    cores, memory_bytes:
        Limits of the device.
    processor:
        Processor of this machine on which the containers run; by default, all processors. On a single processor, only
        the scheduler determines the containers' shares. On several, the shares also depend on random placement.

    Raises
    ------
    PacelineError
        If the control group cannot be created.

    Examples
    --------
    >>> with EmulatedDevice("gate-1", cores=0.6, memory_bytes=2**30) as device:  # doctest: +SKIP
    ...     worker = Machine(name="gate-1", kind="nano", cores=0.6, memory_gib=1, cgroup_parent=device.cgroup_parent)
    """

    def __init__(self, name: str, cores: float, memory_bytes: int, processor: int | None = None) -> None:
        if processor is not None and cores > 1:
            raise InvalidInputError("cores", cores, "at most 1 for a device on one processor")
        self.cgroup_parent = _PREFIX + name
        # Engines resolve the path from the root of the hierarchy, not from this process's group.
        top = _CGROUP_PATH.sub(r"\1/", Path("/proc/self/cgroup").read_text())
        group = cgroups.create(self.cgroup_parent.lstrip("/"), own_cgroups=top)
        if group is None:
            raise PacelineError(
                f"cannot create the control group of device {name}: the name is in use, or this process is not root"
            )
        self._group = group
        try:
            group.set_devices(cores, _period_us(cores))
            if not group.set_memory(memory_bytes):
                raise PacelineError(f"device {name}: this kernel's control groups have no memory limit")
            if processor is not None and not cgroups.pin(group, processor):
                raise PacelineError(f"device {name} cannot be pinned to processor {processor} of this machine")
        except BaseException:
            self.close()
            raise

    def read(self) -> Usage:
        """Return the CPU time and memory that all containers of the device use, up to now."""
        cpu_s, memory_bytes = self._group.cpu_seconds() or 0.0, self._group.memory_bytes() or 0
        return Usage(cpu_s, memory_bytes, measured_s=time.monotonic())

    def close(self) -> None:
        """Remove the control group. The caller must remove the containers first."""
        self._group.remove()
        remove_old_groups(self.cgroup_parent.removeprefix(_PREFIX))

    def __enter__(self) -> EmulatedDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def emulate_devices(fleet: Fleet) -> Iterator[dict[str, EmulatedDevice]]:
    """Create a device for each machine of a fleet whose ``cgroup_parent`` is ``/paceline-device-NAME``.

    Assign each device to one processor with enough free capacity. First remove old control groups of the same devices
    that contain no container.

    Raises
    ------
    InvalidInputError
        If a machine needs more cores than are free on every processor.
    """
    machines = {machine.name: machine for machine in (*fleet.machines, fleet.parameter_server)}
    emulated = [machine for machine in machines.values() if (machine.cgroup_parent or "").startswith(_PREFIX)]
    with ExitStack() as stack:
        devices = {}
        for machine, processor in _assign_processors(emulated):
            name = str(machine.cgroup_parent).removeprefix(_PREFIX)
            remove_old_groups(name)
            device = EmulatedDevice(name, machine.cores, int(machine.memory_gib * 2**30), processor)
            devices[machine.name] = stack.enter_context(device)
        yield devices


def _period_us(cores: float) -> int:
    """Return a period in whole milliseconds, so that the quota of 0.001 cores is a whole number of microseconds."""
    period_ms = next(_PERIOD_FACTORS) * max(_QUOTA_MS / cores, _MIN_PERIOD_MS)
    return 1000 * min(round(period_ms), _MAX_PERIOD_MS)


def _assign_processors(machines: list[Machine]) -> Iterator[tuple[Machine, int]]:
    free = dict.fromkeys(sorted(os.sched_getaffinity(0)), 1.0)
    for machine in sorted(machines, key=lambda one: -one.cores):
        processor = max(free, key=lambda one: free[one])
        if machine.cores > free[processor]:
            accepted = f"at most {free[processor]:.2g} cores; {len(free)} processors are too few for the whole fleet"
            raise InvalidInputError(f"fleet.{machine.name}.cores", machine.cores, accepted)
        free[processor] -= machine.cores
        yield machine, processor


def remove_old_groups(name: str) -> None:
    """Remove a device's control groups under all controllers (v1), and their children. Skip groups with containers."""
    for top in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")):
        folder = top / (_PREFIX + name).lstrip("/")
        if folder.is_dir():
            for group in sorted(folder.glob("**/"), key=lambda one: -len(one.parts)):
                with contextlib.suppress(OSError):
                    group.rmdir()
