"""Access to a job's processes through psutil on Linux: identity, process tree, CPU time, memory.

The launcher uses this module for its job's processes. ``ProcessJob`` uses it to find the launcher from another process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Identity:
    """The identity of a process: its PID, which the kernel reuses, and its start in seconds after boot.

    Setting the clock does not change the seconds after boot.
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

    def is_alive(self) -> bool:
        """Return whether this process is running; a zombie process does not count."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return identify(self.pid) == self and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        return False

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the process to end; return whether it was alive at the start.

        ``psutil.Process.wait`` also waits for the parent to reap the process, which never happens in many containers.
        """
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return False
        try:
            if not self.is_alive():
                return False
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll(1000 * timeout_s)
            return True
        finally:
            os.close(handle)


def identify(pid: int) -> Identity | None:
    """Return the identity of ``pid``; ``None`` if there is no such process.

    >>> identify(os.getpid()).is_alive()
    True
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        while True:
            booted_s = psutil.boot_time()
            born_s = psutil.Process(pid).create_time()
            if psutil.boot_time() == booted_s:  # otherwise the clock was set between the two calls
                return Identity(pid, round(born_s - booted_s, 2))
    return None


def descendants() -> list[psutil.Process]:
    """Return the running descendants of this process.

    The launcher is the subreaper of its job: orphans become its children, so the process tree is complete.
    """
    running = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


def kill_descendants(timeout_s: float = 5.0) -> None:
    """Kill and reap the descendants of this process, a subreaper, until none is left.

    A process that forks and exits in a loop is never seen twice. But each orphan becomes a child of the subreaper, so
    no descendant is left when there is no child to wait for. This function does not sleep, because the signal has to
    arrive before the next fork.
    """
    limit = time.monotonic() + timeout_s
    while time.monotonic() < limit:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _children():
            send(pid, signal.SIGKILL)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as stream:
            return [int(pid) for pid in stream.read().split()]
    except OSError:  # an optional file of the kernel
        return [process.pid for process in psutil.Process().children()]


def newest_pid() -> bytes:
    """Return the PID of the newest process on this machine, at low cost."""
    with open("/proc/loadavg", "rb") as stream:
        return stream.read().rsplit(None, 1)[-1]


def find_by_environment(name: str, value: str) -> list[psutil.Process]:
    """Return the processes that were started with this environment variable.

    This expensive scan finds a job's processes in every session, even if their parents have ended.
    """
    matching = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                matching.append(process)
    return matching


def kill_by_environment(name: str, value: str, timeout_s: float = 2.0) -> bool:
    """Repeatedly kill all processes that ``find_by_environment`` returns; return whether none remains."""
    limit = time.monotonic() + timeout_s
    while remaining := find_by_environment(name, value):
        if time.monotonic() > limit:
            return False
        for process in remaining:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.01)
    return True


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of all threads of a process, exact to the nanosecond; ``None`` if it has ended.

    >>> abs(cpu_seconds(os.getpid()) - time.process_time()) < 0.1
    True
    """
    try:
        # Use the kernel's clock of the process, see clock_getcpuclockid(3). psutil's resolution of 10 ms is too coarse
        # to stop and continue a job ten times a second.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def reaped_seconds(process: psutil.Process) -> float:
    """Return the CPU time of the children that a process has reaped; 0 if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.children_user + times.children_system)
    return 0.0


def resident_bytes(process: psutil.Process) -> int:
    """Return the resident memory, including shared pages; 0 if the process has ended."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def proportional_bytes(process: psutil.Process) -> int:
    """Return the proportional set size, which is slow to read but adds up exactly over processes."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return resident_bytes(process)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; do nothing if the process does not exist or this user may not signal it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
