"""Processes of a job, through psutil: identity, process tree, CPU time, memory. Linux only.

Used by the launcher for the processes of its job, and by ``ProcessRuntime`` to recognise a launcher after a restart.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Set
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Identity:
    """A process: its PID, which the kernel reuses, and its start in seconds after boot.

    Seconds after boot do not change when the clock is set.
    """

    pid: int
    born_s: float

    @classmethod
    def read(cls, stored: object) -> Identity | None:
        """Read a stored identity; ``None`` if it is invalid."""
        try:
            return cls(int(stored["pid"]), float(stored["born_s"]))  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            return None

    def alive(self) -> bool:
        """Whether this very process runs. A zombie does not."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return identify(self.pid) == self and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        return False

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process, at most ``timeout_s``; return whether it was alive at first.

        ``psutil.Process.wait`` would also wait for its parent to reap it, which in many containers never happens.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.alive():
                return False
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll(1000 * timeout_s)
            return True
        finally:
            os.close(handle)


def identify(pid: int) -> Identity | None:
    """Return the identity of ``pid``; ``None`` if there is no such process.

    >>> identify(os.getpid()).alive()
    True
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        while True:
            booted_s = psutil.boot_time()
            born_s = psutil.Process(pid).create_time()
            if psutil.boot_time() == booted_s:  # otherwise the clock was set in between
                return Identity(pid, round(born_s - booted_s, 2))
    return None


def family(apart: Set[int]) -> list[psutil.Process]:
    """Return the running descendants of this process, without those ``apart``.

    The launcher is the subreaper of its job: orphans become its children, so the tree is complete.
    """
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid not in apart and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def newest_process() -> bytes:
    """Return the PID of the newest process on this machine. Cheap."""
    with open("/proc/loadavg", "rb") as stream:
        return stream.read().rsplit(None, 1)[-1]


def carrying(name: str, value: str) -> list[psutil.Process]:
    """Return the processes that were started with this environment variable.

    It identifies a job's processes in every session, also without their parents. Expensive.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                found.append(process)
    return found


def kill_carrying(name: str, value: str, patience_s: float = 2.0) -> bool:
    """Send SIGKILL to what ``carrying`` finds until nothing is left; return whether nothing is left."""
    limit = time.monotonic() + patience_s
    while left := carrying(name, value):
        if time.monotonic() > limit:
            return False
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.01)
    return True


def cpu_seconds(pid: int) -> float | None:
    """CPU time of all threads of a process, exact to the nanosecond; ``None`` if the process is gone.

    >>> abs(cpu_seconds(os.getpid()) - time.process_time()) < 0.1
    True
    """
    try:
        # The kernel's clock id of another process, see clock_getcpuclockid(3). psutil has a resolution of 10 ms, too
        # coarse for a job that is stopped and continued ten times a second.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def waited_seconds(process: psutil.Process) -> float:
    """CPU time of the children that it has reaped; 0 if the process is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.children_user + times.children_system)
    return 0.0


def resident_bytes(process: psutil.Process) -> int:
    """Resident memory, including shared pages; 0 if the process is gone."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def proportional_bytes(process: psutil.Process) -> int:
    """Proportional set size: exact when summed over a group, and expensive."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return resident_bytes(process)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal. Ignores processes that are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
