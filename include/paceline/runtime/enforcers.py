"""The two ways to keep a local job to its CPU share: the kernel's quota, or stopping and continuing it.

The process launcher makes one of them and calls ``step`` for as long as the job runs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Set
from typing import Protocol

import psutil

from paceline.runtime.cgroups import Group
from paceline.runtime.processes import cpu_seconds, family, newest_process, resident_bytes, send, waited_seconds
from paceline.runtime.throttle import DutyCycle

_LOOK_S = 0.05  # how often a changed share is looked for
_FRESH_S = 0.5  # how old a member's figures may be
_SOONEST_S = 0.05  # between two looks for new processes, however many are started on this machine,
_COST = 100  # and so many times what such a look costs: one percent of a core at worst


class Share(Protocol):
    """How a job is kept to its share."""

    def step(self, devices: float) -> float:
        """Keep the share at ``devices`` cores; return the seconds until the next call is due."""

    def lift(self) -> None:
        """Give the job all it wants from now on: it is about to end."""

    def used_s(self) -> float:
        """CPU time of the whole job until now."""

    def memory_bytes(self) -> int:
        """Memory of the whole job now."""

    def members(self) -> list[psutil.Process]:
        """The job's processes."""


class ProcessTree:
    """The processes of a job: who they are, their CPU time and memory.

    Parameters
    ----------
    root:
        The job's first process, which leads its group.
    apart:
        The launcher's own helpers, never of the job.
    """

    def __init__(self, root: int, apart: Set[int]) -> None:
        self.root = root
        self._apart = apart
        self._members: dict[psutil.Process, float] = {}  # and the CPU time of its reaped children
        self._newest = b""
        self._fresh_due = self._soonest = 0.0
        self._used_s = 0.0

    def members(self, now_s: float) -> list[psutil.Process]:
        """Return the processes of the job. New ones are found with a short delay."""
        if now_s >= self._soonest and (now_s >= self._fresh_due or self._newest != newest_process()):
            begun_s = time.thread_time()
            self._newest = newest_process()
            self._members = {process: waited_seconds(process) for process in family(self._apart)}
            self._fresh_due = now_s + _FRESH_S
            self._soonest = now_s + max(_SOONEST_S, _COST * (time.thread_time() - begun_s))
        return list(self._members)

    def used_s(self, now_s: float) -> float:
        """CPU time: of the living by their clocks, of the dead by those who waited for them."""
        mine = resource.getrusage(resource.RUSAGE_CHILDREN)  # what this process itself waited for
        total = mine.ru_utime + mine.ru_stime
        for process in self.members(now_s):
            used = cpu_seconds(process.pid)
            if used is None:
                self._fresh_due = 0.0  # it ended: see who accounts for it now
            else:
                total += used + self._members[process]
        self._used_s = max(self._used_s, total)
        return self._used_s

    def memory_bytes(self, now_s: float) -> int:
        """Resident memory, shared pages counted once for each process."""
        return sum(map(resident_bytes, self.members(now_s)))


class CgroupShare:
    """The kernel keeps the share: a CFS quota on the job's own cgroup."""

    def __init__(self, group: Group, tree: ProcessTree, devices: float) -> None:
        self._group = group
        self._tree = tree
        self._devices = devices
        self._lifted = False

    def step(self, devices: float) -> float:
        """See ``Share``."""
        if devices != self._devices and not self._lifted:
            self._group.set_devices(devices)
            self._devices = devices
        return _LOOK_S

    def lift(self) -> None:
        """See ``Share``."""
        self._lifted = True
        self._group.set_devices(os.cpu_count() or 1)

    def used_s(self) -> float:
        """See ``Share``."""
        used = self._group.cpu_seconds()
        return self._tree.used_s(time.monotonic()) if used is None else used

    def memory_bytes(self) -> int:
        """See ``Share``."""
        used = self._group.memory_bytes()
        return self._tree.memory_bytes(time.monotonic()) if used is None else used

    def members(self) -> list[psutil.Process]:
        """See ``Share``."""
        return self._tree.members(time.monotonic())


class SignalShare:
    """We keep the share: the whole job is stopped and continued many times a second, by the CPU time it used."""

    def __init__(self, tree: ProcessTree, devices: float, period_s: float) -> None:
        self._tree = tree
        self._cycle = DutyCycle(devices, period_s)
        self._stopped = False
        self._lifted = False

    def step(self, devices: float) -> float:
        """See ``Share``."""
        if self._lifted:
            return _LOOK_S
        now = time.monotonic()
        self._cycle.devices = devices
        pause = self._cycle.update(now, self._tree.used_s(now))
        if self._cycle.stopped:
            # At every step, not once: whoever left the group while it was being stopped would burn what the others
            # must then pay back, for ever.
            self._signal(signal.SIGSTOP, now)
        elif self._stopped:
            self._signal(signal.SIGCONT, now)
        self._stopped = self._cycle.stopped
        return min(pause, 2 * _LOOK_S)

    def lift(self) -> None:
        """See ``Share``."""
        self._lifted = True
        self._signal(signal.SIGCONT, time.monotonic())

    def used_s(self) -> float:
        """See ``Share``."""
        return self._tree.used_s(time.monotonic())

    def memory_bytes(self) -> int:
        """See ``Share``."""
        return self._tree.memory_bytes(time.monotonic())

    def members(self) -> list[psutil.Process]:
        """See ``Share``."""
        return self._tree.members(time.monotonic())

    def _signal(self, number: signal.Signals, now_s: float) -> None:
        # The group at once, so that a worker started a moment ago is not missed; then whoever has left it. Nobody is
        # told twice: a signal to who is at work on another processor costs a virtual machine 0.3 ms.
        send(-self._tree.root, number)
        for process in self._tree.members(now_s):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process.pid) != self._tree.root:
                    send(process.pid, number)
