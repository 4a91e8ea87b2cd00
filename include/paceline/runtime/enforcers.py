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

from paceline.runtime.cgroups import Group
from paceline.runtime.procfs import Stat, cpu_seconds, family, newest_process, resident_bytes, send
from paceline.runtime.throttle import DutyCycle

_LOOK_S = 0.05  # how often a changed share is looked for
_FRESH_S = 0.5  # how old a member's figures may be
_SOONEST_S = 0.05  # between two looks for new processes, however many are started on this machine,
_COST = 100  # and so many times what such a look costs: one percent of a core at worst
_ANEW_S = 5.0  # how often all processes of the machine are looked at, should one have been missed,
_ANEW_COST = 500  # and so many times what that costs


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

    def members(self) -> list[int]:
        """The job's processes."""


class Crowd:
    """The processes of a job as /proc tells them: who they are, their CPU time and memory.

    Parameters
    ----------
    root:
        The job's first process, which leads its session.
    apart:
        The launcher's own helpers, never of the job.
    """

    def __init__(self, root: int, apart: Set[int]) -> None:
        self.root = root
        self._apart = apart
        self._members: dict[int, Stat] = {}
        self._strangers: set[int] = set()
        self._newest = b""
        self._fresh_due = 0.0
        self._anew_due = 0.0
        self._soonest = 0.0
        self._used_s = 0.0

    def stats(self, now_s: float) -> list[Stat]:
        """The members. A process that was just started is seen within a tenth of a second."""
        if now_s < self._soonest or (now_s < self._fresh_due and self._newest == newest_process()):
            return list(self._members.values())
        everybody = now_s >= self._anew_due
        if everybody:
            # A stranger's number may have been given to a member since: now and then, nobody is taken for known.
            self._strangers.clear()
        begun = time.thread_time()
        self._newest = newest_process()
        self._members, self._strangers = family(self.root, self._apart, self._members, self._strangers)
        cost = time.thread_time() - begun
        self._fresh_due = now_s + _FRESH_S
        self._soonest = now_s + (_SOONEST_S if everybody else max(_SOONEST_S, _COST * cost))
        if everybody:
            self._anew_due = now_s + max(_ANEW_S, _ANEW_COST * cost)
        return list(self._members.values())

    def used_s(self, now_s: float) -> float:
        """CPU time: of the living by their clocks, of the dead by those who waited for them."""
        mine = resource.getrusage(resource.RUSAGE_CHILDREN)  # what this process itself waited for
        total = mine.ru_utime + mine.ru_stime
        for stat in self.stats(now_s):
            used = cpu_seconds(stat.pid)
            if used is None:
                self._fresh_due = 0.0  # it ended: see who accounts for it now
            else:
                total += used + stat.waited_s
        self._used_s = max(self._used_s, total)
        return self._used_s

    def memory_bytes(self, now_s: float) -> int:
        """Resident memory, shared pages counted once for each process."""
        return sum(resident_bytes(stat.pid) for stat in self.stats(now_s))


class CgroupShare:
    """The kernel keeps the share: a CFS quota on the job's own cgroup."""

    def __init__(self, group: Group, crowd: Crowd, devices: float) -> None:
        self._group = group
        self._crowd = crowd
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
        return self._crowd.used_s(time.monotonic()) if used is None else used

    def memory_bytes(self) -> int:
        """See ``Share``."""
        used = self._group.memory_bytes()
        return self._crowd.memory_bytes(time.monotonic()) if used is None else used

    def members(self) -> list[int]:
        """See ``Share``."""
        return self._group.members()


class SignalShare:
    """We keep the share: the whole job is stopped and continued many times a second, by the CPU time it used."""

    def __init__(self, crowd: Crowd, devices: float, period_s: float) -> None:
        self._crowd = crowd
        self._cycle = DutyCycle(devices, period_s)
        self._stopped = False
        self._lifted = False

    def step(self, devices: float) -> float:
        """See ``Share``."""
        if self._lifted:
            return _LOOK_S
        now = time.monotonic()
        self._cycle.devices = devices
        pause = self._cycle.update(now, self._crowd.used_s(now))
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
        return self._crowd.used_s(time.monotonic())

    def memory_bytes(self) -> int:
        """See ``Share``."""
        return self._crowd.memory_bytes(time.monotonic())

    def members(self) -> list[int]:
        """See ``Share``."""
        return [stat.pid for stat in self._crowd.stats(time.monotonic())]

    def _signal(self, number: signal.Signals, now_s: float) -> None:
        # The group at once, so that a worker started a moment ago is not missed; then whoever has left it. Nobody is
        # told twice: a signal to who is at work on another processor costs a virtual machine 0.3 ms.
        send(-self._crowd.root, number)
        for stat in self._crowd.stats(now_s):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(stat.pid) != self._crowd.root:
                    send(stat.pid, number)
