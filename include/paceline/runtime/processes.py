"""A job's processes as psutil tells them: who they are, who belongs together, what they use. Linux only.

Called by the process launcher (for its job) and by ``ProcessRuntime`` (to know a launcher again after its own death).
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
    """A process beyond doubt: its number can be given to another one, but not with the same moment of birth.

    That is in seconds since the machine's start, which a clock that is set does not move.
    """

    pid: int
    born_s: float

    @classmethod
    def read(cls, stored: object) -> Identity | None:
        """Read what was stored of one; ``None`` for anything else."""
        try:
            return cls(int(stored["pid"]), float(stored["born_s"]))  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            return None

    def alive(self) -> bool:
        """Whether exactly this process is there and has not ended (a zombie has)."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return identify(self.pid) == self and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        return False

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end, for so long at most; returns whether it was alive.

        psutil would wait until somebody has collected it, which in many containers nobody ever does.
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
    """Return who ``pid`` is now; ``None`` if there is no such process.

    >>> identify(os.getpid()).alive()
    True
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        while True:
            booted_s = psutil.boot_time()
            born_s = psutil.Process(pid).create_time()
            if psutil.boot_time() == booted_s:  # else the clock was set just now
                return Identity(pid, round(born_s - booted_s, 2))
    return None


def family(apart: Set[int]) -> list[psutil.Process]:
    """Return all living processes below this one, but for those ``apart``.

    This process is the subreaper of its job: whoever is orphaned becomes its child, so nobody is missed.
    """
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.pid not in apart and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def newest_process() -> bytes:
    """Return the number of the process that was started last, anywhere on this machine. Cheap."""
    with open("/proc/loadavg", "rb") as stream:
        return stream.read().rsplit(None, 1)[-1]


def carrying(name: str, value: str) -> list[psutil.Process]:
    """Return the processes that were started with this environment variable.

    The surest mark of a job's processes: it is inherited across sessions and outlives parents. Dear to ask.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                found.append(process)
    return found


def kill_carrying(name: str, value: str, patience_s: float = 2.0) -> bool:
    """SIGKILL everything that ``carrying`` finds until nothing is left; return whether nothing is."""
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
    """CPU time of all threads of a process, exact to the nanosecond; ``None`` if it has gone.

    >>> abs(cpu_seconds(os.getpid()) - time.process_time()) < 0.1
    True
    """
    try:
        # The kernel's number for another process's CPU clock, see clock_getcpuclockid(3). psutil counts in hundredths
        # of a second, too coarse for a job that is stopped and continued ten times in one.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def waited_seconds(process: psutil.Process) -> float:
    """CPU time of its children that have ended and were waited for; 0 if it has gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.children_user + times.children_system)
    return 0.0


def resident_bytes(process: psutil.Process) -> int:
    """Memory of a process, shared pages included; 0 if it has gone."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def proportional_bytes(process: psutil.Process) -> int:
    """Memory of a process, each shared page counted in parts; exact for a sum over a group, and dear to ask."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return resident_bytes(process)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
