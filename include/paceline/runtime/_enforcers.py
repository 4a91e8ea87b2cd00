"""Enforcement of a local job's CPU allocation, by the kernel's quota or by stopping and continuing the job.

The process launcher creates one enforcer and calls ``step`` while the job runs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from typing import Protocol

import psutil

from paceline.runtime._throttle import DutyCycle
from paceline.runtime.cgroups import Group
from paceline.runtime.processes import cpu_seconds, descendants, newest_pid, reaped_seconds, resident_bytes, send

_CHECK_S = 0.05  # interval between checks for a changed allocation
_MAX_AGE_S = 0.5  # maximum age of the list of processes
# Limits on scans for new processes while many processes start on this machine: the minimum interval between scans, and
# the minimum ratio of the interval to the CPU time of a scan. The ratio limits scans to one percent of a core.
_SCAN_INTERVAL_S = 0.05
_SCAN_COST_RATIO = 100


class Enforcer(Protocol):
    """Limits a job to its CPU allocation."""

    def step(self, devices: float) -> float:
        """Enforce an allocation of ``devices`` cores; return the seconds until the next call is due."""

    def lift(self) -> None:
        """Remove the limit permanently, because the job is about to end."""

    def used_s(self) -> float:
        """Return the CPU time of the whole job."""

    def memory_bytes(self) -> int:
        """Return the memory that the whole job uses now."""

    def members(self) -> list[psutil.Process]:
        """Return the job's processes."""


class ProcessTree:
    """The processes of a job, with their CPU time and memory.

    Parameters
    ----------
    root:
        The job's first process, which leads its process group.
    """

    def __init__(self, root: int) -> None:
        self.root = root
        self._members: dict[psutil.Process, float] = {}  # CPU time of the children that each process reaped
        self._newest = b""
        self._scan_due = self._next_scan = 0.0
        self._used_s = 0.0

    def members(self, now_s: float) -> list[psutil.Process]:
        """Return the processes of the job. New processes appear with a short delay."""
        if now_s >= self._next_scan and (now_s >= self._scan_due or self._newest != newest_pid()):
            started_s = time.thread_time()
            self._newest = newest_pid()
            self._members = {process: reaped_seconds(process) for process in descendants()}
            self._scan_due = now_s + _MAX_AGE_S
            self._next_scan = now_s + max(_SCAN_INTERVAL_S, _SCAN_COST_RATIO * (time.thread_time() - started_s))
        return list(self._members)

    def used_s(self, now_s: float) -> float:
        """Return the CPU time of all live and ended processes; parents report the CPU time of ended processes."""
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN)  # children that this process reaped
        total = reaped.ru_utime + reaped.ru_stime
        for process in self.members(now_s):
            used = cpu_seconds(process.pid)
            if used is None:
                self._scan_due = 0.0  # the process has ended: a scan reads its CPU time from the parent
            else:
                total += used + self._members[process]
        self._used_s = max(self._used_s, total)
        return self._used_s

    def memory_bytes(self, now_s: float) -> int:
        """Return the sum of the resident memory of all processes, which counts a shared page once per process."""
        return sum(map(resident_bytes, self.members(now_s)))


class CgroupEnforcer:
    """Enforces the allocation with a CFS quota on the job's own cgroup."""

    def __init__(self, group: Group, tree: ProcessTree, devices: float) -> None:
        self._group = group
        self._tree = tree
        self._devices = devices
        self._lifted = False

    def step(self, devices: float) -> float:
        """See ``Enforcer``."""
        if devices != self._devices and not self._lifted:
            self._group.set_devices(devices)
            self._devices = devices
        return _CHECK_S

    def lift(self) -> None:
        """See ``Enforcer``."""
        self._lifted = True
        self._group.set_devices(os.cpu_count() or 1)

    def used_s(self) -> float:
        """See ``Enforcer``."""
        used = self._group.cpu_seconds()
        return self._tree.used_s(time.monotonic()) if used is None else used

    def memory_bytes(self) -> int:
        """See ``Enforcer``."""
        used = self._group.memory_bytes()
        return self._tree.memory_bytes(time.monotonic()) if used is None else used

    def members(self) -> list[psutil.Process]:
        """See ``Enforcer``."""
        return self._tree.members(time.monotonic())


class SignalEnforcer:
    """Enforces the allocation by stopping and continuing the job several times a second, based on its CPU time."""

    def __init__(self, tree: ProcessTree, devices: float, period_s: float) -> None:
        self._tree = tree
        self._cycle = DutyCycle(devices, period_s)
        self._stopped = False
        self._lifted = False

    def step(self, devices: float) -> float:
        """See ``Enforcer``."""
        if self._lifted:
            return _CHECK_S
        now = time.monotonic()
        self._cycle.devices = devices
        pause = self._cycle.update(now, self._tree.used_s(now))
        if self._cycle.stopped:
            # Repeat this at every step: a process that left the group during the first signal would keep running, and
            # its CPU time would keep the other processes stopped.
            self._signal_all(signal.SIGSTOP, now)
        elif self._stopped:
            self._signal_all(signal.SIGCONT, now)
        self._stopped = self._cycle.stopped
        return min(pause, 2 * _CHECK_S)

    def lift(self) -> None:
        """See ``Enforcer``."""
        self._lifted = True
        self._signal_all(signal.SIGCONT, time.monotonic())

    def used_s(self) -> float:
        """See ``Enforcer``."""
        return self._tree.used_s(time.monotonic())

    def memory_bytes(self) -> int:
        """See ``Enforcer``."""
        return self._tree.memory_bytes(time.monotonic())

    def members(self) -> list[psutil.Process]:
        """See ``Enforcer``."""
        return self._tree.members(time.monotonic())

    def _signal_all(self, number: signal.Signals, now_s: float) -> None:
        # A signal to the group also reaches new processes. Individually signal only the processes outside the
        # group: on a virtual machine, a signal to a process on another processor costs 0.3 ms.
        send(-self._tree.root, number)
        for process in self._tree.members(now_s):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process.pid) != self._tree.root:
                    send(process.pid, number)
