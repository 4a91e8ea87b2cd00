"""What the kernel says of processes: who they are, who belongs together, what they use. Linux only.

Called by the process launcher (for its group) and by ``ProcessRuntime`` (to know a launcher again after its own death).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Identity:
    """A process beyond doubt: its number can be given to another one, but not with the same start time and boot."""

    pid: int
    start_ticks: int
    boot: str

    def alive(self) -> bool:
        """Whether exactly this process is there and has not ended (a zombie has)."""
        found = _stat(self.pid)
        return found is not None and found.state not in "ZX" and identify(self.pid) == self


@dataclass(frozen=True)
class Stat:
    """The fields of ``/proc/PID/stat`` that are used here."""

    pid: int
    state: str
    parent: int
    session: int
    waited_s: float  # CPU time of its children that have ended and were waited for
    start_ticks: int


def identify(pid: int) -> Identity | None:
    """Return who ``pid`` is now; ``None`` if there is no such process."""
    found = _stat(pid)
    if found is None:
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Identity(pid=pid, start_ticks=found.start_ticks, boot=boot)


def family(
    root: int, apart: Set[int], known: Iterable[int] = (), strangers: Set[int] = frozenset()
) -> tuple[dict[int, Stat], set[int]]:
    """Return the living processes of a job by their numbers, and the numbers of all that are not of it.

    A process is of the job if it is in session ``root``, or a child of one that is, or was orphaned and adopted by us.

    Parameters
    ----------
    root:
        The job's first process, which leads its session.
    apart:
        Our own helpers, never of the job.
    known:
        Processes that were of the job before.
    strangers:
        Processes that need not be looked at: they were not of the job before.
    """
    us = os.getpid()
    everyone = {int(name) for name in os.listdir("/proc") if name.isdigit()} - apart - {us}
    looked_at = {pid: stat for pid in everyone - strangers if (stat := _stat(pid)) is not None}
    ours = {pid for pid in known if pid in looked_at}
    ours |= {pid for pid, stat in looked_at.items() if stat.session == root or stat.parent == us}
    while fresh := {pid for pid, stat in looked_at.items() if stat.parent in ours} - ours:
        ours |= fresh
    members = {pid: looked_at[pid] for pid in ours if looked_at[pid].state not in "ZX"}
    return members, everyone - ours


def newest_process() -> bytes:
    """Return the number of the process that was started last, anywhere on this machine. Cheap."""
    with open("/proc/loadavg", "rb") as stream:
        return stream.read().rsplit(None, 1)[-1]


def carrying(variable: str) -> list[int]:
    """Return the processes that were started with ``variable`` ("NAME=value") in their environment.

    The surest mark of a job's processes: it is inherited across sessions and outlives parents. Dear to ask.
    """
    wanted = b"\0" + variable.encode() + b"\0"
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as stream:
                if wanted in b"\0" + stream.read() + b"\0":
                    found.append(int(name))
    return found


def kill_carrying(variable: str, patience_s: float = 2.0) -> bool:
    """SIGKILL everything that ``carrying`` finds until nothing is left; return whether nothing is."""
    limit = time.monotonic() + patience_s
    while True:
        left = [pid for pid in carrying(variable) if (stat := _stat(pid)) is not None and stat.state not in "ZX"]
        if not left:
            return True
        if time.monotonic() > limit:
            return False
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.01)


def cpu_seconds(pid: int) -> float | None:
    """CPU time of all threads of a process, exact to the nanosecond; ``None`` if it has gone.

    >>> import time
    >>> abs(cpu_seconds(os.getpid()) - time.process_time()) < 0.1
    True
    """
    try:
        # The kernel's number for another process's CPU clock, see clock_getcpuclockid(3): one cheap call,
        # where /proc/PID/stat counts in hundredths of a second.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def resident_bytes(pid: int) -> int:
    """Memory of a process, shared pages included; 0 if it has gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as stream:
            return int(stream.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    """Memory of a process, each shared page counted in parts; exact for a sum over a group, and dear to ask."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resident_bytes(pid)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has gone is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _stat(pid: int) -> Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            text = stream.read()
    except OSError:
        return None
    # The second field is the program's name in brackets and may hold anything, brackets and spaces too.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        waited_s=(int(fields[13]) + int(fields[14])) / _TICKS,
        start_ticks=int(fields[19]),
    )
