"""A part of this machine in place of a machine: containers in it truly compete for its cores and its memory.

Used by tests, benchmarks and the demo of a fleet.
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
from paceline.fleet.machine import Fleet, Machine
from paceline.runtime import cgroups
from paceline.runtime.base import Usage

_PREFIX = "/paceline-device-"
# The kernel shares out what a device has in a period at its ticks (every 4 ms or so) and forgets at the period's end
# who had less: with less than a tick in each, one of three busy containers got a tenth of what each of the others got.
# So it is a few ticks; and no more, as a quick device that stands still would not look like a slow one that goes on.
_QUOTA_MS = 16
_SHORTEST_PERIOD_MS, _LONGEST_PERIOD_MS = 20, 1000  # the kernel takes none longer
# Devices of one period keep step, and who is at work while its neighbour stands still stays a tenth quicker than its
# twin; so five in a row differ.
_STRETCH = itertools.cycle((1.0, 1.15, 1.05, 1.2, 1.1))
_ANY_PATH = re.compile(r"^(\d+:[^:]*:).*$", re.MULTILINE)


class EmulatedDevice:
    """A control group with so many cores and so much memory, as the parent of containers.

    Containers that are started with its ``cgroup_parent`` share what it has; each alone may have all of it, not more.
    It needs root, and an engine on this machine that manages control groups itself (driver ``cgroupfs``).

    Parameters
    ----------
    name:
        Unique on this machine.
    cores, memory_bytes:
        What it has.
    processor:
        Which one of this machine's processors it is a part of; without one, its containers run on any. On one
        processor who gets how much of a device is the scheduler's doing alone; on several it is chance as well.

    Raises
    ------
    PacelineError
        Where control groups cannot be made.

    Examples
    --------
    >>> with EmulatedDevice("gate-1", cores=0.6, memory_bytes=2**30) as device:  # doctest: +SKIP
    ...     worker = Machine(name="gate-1", kind="nano", cores=0.6, memory_gib=1, cgroup_parent=device.cgroup_parent)
    """

    def __init__(self, name: str, cores: float, memory_bytes: int, processor: int | None = None) -> None:
        if processor is not None and cores > 1:
            raise InvalidInputError("cores", cores, "at most 1 for a device that is a part of one processor")
        self.cgroup_parent = _PREFIX + name
        # Engines count from the top of the hierarchy, wherever in it this process is.
        top = _ANY_PATH.sub(r"\1/", Path("/proc/self/cgroup").read_text())
        group = cgroups.create(self.cgroup_parent.lstrip("/"), own=top)
        if group is None:
            raise PacelineError(
                f"no control group for device {name}: is there one of that name, or is this process not root?"
            )
        self._group = group
        try:
            group.set_devices(cores, _period_us(cores))
            if not group.set_memory(memory_bytes):
                raise PacelineError(f"no memory limit for device {name}: this kernel's control groups have none")
            if processor is not None and not cgroups.pin(group, processor):
                raise PacelineError(f"device {name} cannot be put on processor {processor} of this machine")
        except BaseException:
            self.close()
            raise

    def read(self) -> Usage:
        """What all containers in it have used up to now."""
        cpu_s, memory_bytes = self._group.cpu_seconds() or 0.0, self._group.memory_bytes() or 0
        return Usage(cpu_s, memory_bytes, measured_s=time.monotonic())

    def close(self) -> None:
        """Remove it; its containers have to be gone."""
        self._group.remove()
        remove_left(self.cgroup_parent.removeprefix(_PREFIX))

    def __enter__(self) -> EmulatedDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def emulate(fleet: Fleet) -> Iterator[dict[str, EmulatedDevice]]:
    """Make a device for each machine of a fleet whose ``cgroup_parent`` is that of one: ``/paceline-device-NAME``.

    Each is a part of one processor, the next one where that is full. What somebody who was killed has left of them is
    removed first, if no container is in it.

    Raises
    ------
    InvalidInputError
        If a machine is larger than what is left of every processor here.
    """
    machines = {machine.name: machine for machine in (*fleet.machines, fleet.parameter_server)}
    wanted = [one for one in machines.values() if (one.cgroup_parent or "").startswith(_PREFIX)]
    with ExitStack() as stack:
        made = {}
        for machine, processor in _on_processors(wanted):
            name = str(machine.cgroup_parent).removeprefix(_PREFIX)
            remove_left(name)
            device = EmulatedDevice(name, machine.cores, int(machine.memory_gib * 2**30), processor)
            made[machine.name] = stack.enter_context(device)
        yield made


def _period_us(cores: float) -> int:
    """How long a period is: whole milliseconds, so that thousandths of a core are no fractions."""
    period_ms = next(_STRETCH) * max(_QUOTA_MS / cores, _SHORTEST_PERIOD_MS)
    return 1000 * min(round(period_ms), _LONGEST_PERIOD_MS)


def _on_processors(machines: list[Machine]) -> Iterator[tuple[Machine, int]]:
    free = dict.fromkeys(sorted(os.sched_getaffinity(0)), 1.0)
    for machine in sorted(machines, key=lambda one: -one.cores):
        processor = max(free, key=lambda one: free[one])
        if machine.cores > free[processor]:
            accepted = f"at most {free[processor]:.2g} cores: {len(free)} processors are not enough for the whole fleet"
            raise InvalidInputError(f"fleet.{machine.name}.cores", machine.cores, accepted)
        free[processor] -= machine.cores
        yield machine, processor


def remove_left(name: str) -> None:
    """Remove what is left of a device unless a container is in it: every controller's group (v1), and those below."""
    for top in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")):
        folder = top / (_PREFIX + name).lstrip("/")
        if folder.is_dir():
            for found in sorted(folder.glob("**/"), key=lambda one: -len(one.parts)):
                with contextlib.suppress(OSError):
                    found.rmdir()
