"""The process that stays with one local job: starts it, keeps it to its CPU share and memory, writes down its end.

Started by ``ProcessRuntime`` as ``python -m paceline.runtime.launcher SCRATCH``; it outlives whoever started it.
Cheap, as it looks some twenty times a second: it imports little.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.runtime import cgroups, guardian
from paceline.runtime.enforcers import CgroupShare, ProcessTree, Share, SignalShare
from paceline.runtime.processes import family, identify, proportional_bytes, send
from paceline.runtime.scratch import USAGE_BYTES, Scratch, read_json, write_json

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_USAGE_S = 0.1
_GRACE_S = 5.0
_NOT_FOUND = 127  # as a shell says it


def main(folder: str) -> int:
    """Detach, and run the job in ``folder`` to its end. Returns 0 as soon as the job has been started."""
    ready, tell = os.pipe()
    if os.fork():
        # Whoever called waits for this process only; the one that stays is nobody's child.
        os.close(tell)
        return 0 if os.read(ready, 1) == b"+" else 1
    os.close(ready)
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    scratch = Scratch(Path(folder))
    order = read_json(scratch.order)
    if order is None:
        raise SystemExit(f"{scratch.order} cannot be read")
    _Launch(scratch, order).run(lambda: os.write(tell, b"+"))
    return 0


class _Launch:
    """One run of one job."""

    def __init__(self, scratch: Scratch, order: dict[str, Any]) -> None:
        self._scratch = scratch
        self._order = order
        self._devices = float(order["devices"])
        self._control = str(scratch.control)
        self._control_changed = -1
        self._kill_at: float | None = None
        self._out_of_memory = False
        self._group = self._make_group()

    def run(self, ready: Callable[[], object]) -> None:
        wake, poke = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(poke, False)
        signal.set_wakeup_fd(poke, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self._read_control()
        if self._group is not None:
            self._group.set_devices(self._devices)
        watch = guardian.start(self._scratch, self._group)
        started = time.time()
        self._child = self._spawn()
        share = self._make_share(watch.pid)
        self._write_state(started, watch.pid)
        ready()
        status = self._attend(share, wake)
        finished = time.time()
        used = share.used_s()
        self._clear_up(watch.pid)
        used = max(used, _children_s())
        killed = self._group is not None and self._group.killed_for_memory()
        if self._group is not None:
            self._group.remove()
        code = os.waitstatus_to_exitcode(status)
        self._out_of_memory = (self._out_of_memory or killed) and code != 0
        end = {
            "exit_code": code if code >= 0 else 128 - code,
            "started_s": started,
            "finished_s": finished,
            "cpu_s": used,
            "max_rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            "out_of_memory": self._out_of_memory,
            "reason": self._reason(code),
        }
        write_json(self._scratch.end, end)
        watch.dismiss()

    def _attend(self, share: Share, wake: int) -> int:
        """Keep the share until the job's first process ends; return its wait status."""
        ended = os.pidfd_open(self._child)
        usage = os.open(self._scratch.usage, os.O_WRONLY | os.O_CREAT, 0o600)
        watch_memory = self._order["memory_bytes"] is not None and not self._kernel_limits_memory
        usage_due = 0.0
        while True:
            pause = share.step(self._read_control())
            now = time.monotonic()
            if now >= usage_due:
                usage_due = now + _USAGE_S
                memory = share.memory_bytes()
                used_s = round(share.used_s(), 4)
                said = json.dumps({"cpu_s": used_s, "memory_bytes": memory, "measured_s": round(now, 4)})
                os.pwrite(usage, said.encode().ljust(USAGE_BYTES), 0)
                if watch_memory:
                    self._check_memory(share, memory)
                self._reap_orphans()
            if self._kill_at is not None and now >= self._kill_at:
                send(self._child, signal.SIGKILL)
                self._kill_at = now + 1.0
            timeout = max(0.0, min(pause, usage_due - now))
            readable, _, _ = select.select([wake, ended], [], [], timeout)
            if ended in readable:
                return os.waitpid(self._child, 0)[1]
            if wake in readable:
                os.read(wake, 512)
                if self._kill_at is None:
                    asked = read_json(self._scratch.stop) or {}
                    self._kill_at = time.monotonic() + float(asked.get("grace_s", _GRACE_S))
                    # Only the first process is told, as in a container: it ends its own workers, once it has saved.
                    send(self._child, signal.SIGTERM)
                    share.lift()

    def _make_group(self) -> cgroups.Group | None:
        self._kernel_limits_memory = False
        if self._order["mechanism"] == "signal":
            return None
        group = cgroups.create(f"{self._scratch.path.name}-{os.getpid()}")
        if group is None and self._order["mechanism"] == "cgroup":
            raise SystemExit("mechanism: a cgroup with a CPU quota cannot be made here")
        if group is not None:
            group.set_processes(int(self._order["max_processes"]))
            if self._order["memory_bytes"] is not None:
                self._kernel_limits_memory = group.set_memory(int(self._order["memory_bytes"]))
        return group

    def _make_share(self, watch: int) -> Share:
        tree = ProcessTree(self._child, frozenset({watch}))
        if self._group is not None:
            return CgroupShare(self._group, tree, self._devices)
        return SignalShare(tree, self._devices, float(self._order["period_s"]))

    def _spawn(self) -> int:
        us = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != us:
                os._exit(1)  # the launcher died in between
            if self._group is not None:
                self._group.join(os.getpid())
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and an ignored signal is inherited
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _point(0, Path(os.devnull), os.O_RDONLY)
            _point(1, self._scratch.stdout, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            _point(2, self._scratch.stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.closerange(3, 256)
            os.chdir(self._scratch.folder("work"))
            os.umask(0o077)
            command = self._order["command"]
            os.execvpe(command[0], command, self._order["environment"])  # noqa: S606 - running it is our purpose
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(2, f"{self._order['command'][0]}: {error}\n".encode())
        finally:
            os._exit(_NOT_FOUND)

    def _write_state(self, started: float, watch: int) -> None:
        launcher, keeper = identify(os.getpid()), identify(watch)
        assert launcher is not None  # that is us
        state = {
            "launcher": asdict(launcher),
            "guardian": asdict(keeper) if keeper else None,
            "child": self._child,
            "started_s": started,
            "mechanism": "signal" if self._group is None else "cgroup",
            "cgroup": self._group.to_json() if self._group else None,
        }
        write_json(self._scratch.state, state)

    def _read_control(self) -> float:
        """The share that is wanted now; a control file that cannot be read changes nothing."""
        with contextlib.suppress(OSError):
            changed = os.stat(self._control).st_mtime_ns
            if changed != self._control_changed:
                self._control_changed = changed
                value = (read_json(self._scratch.control) or {}).get("devices")
                if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                    self._devices = float(value)
        return self._devices

    def _check_memory(self, share: Share, resident: int) -> None:
        limit = int(self._order["memory_bytes"])
        # Shared pages count several times in the cheap figure: ask for the exact one before doing harm.
        if resident > limit and sum(map(proportional_bytes, share.members())) > limit:
            self._out_of_memory = True
            send(self._child, signal.SIGKILL)

    def _reap_orphans(self) -> None:
        """Collect adopted processes that have ended; the job's first one is left for ``_attend``."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid == self._child:
                    return
                os.waitpid(found.si_pid, 0)

    def _clear_up(self, watch: int) -> None:
        """End what the first process left behind, as the end of a container would."""
        limit = time.monotonic() + 2.0
        while time.monotonic() < limit:
            left = family(frozenset({watch}))
            for process in left:
                send(process.pid, signal.SIGKILL)
            self._reap_orphans()
            if not left:
                return
            time.sleep(0.002)

    def _reason(self, code: int) -> str:
        if self._out_of_memory:
            return f"killed for memory, limit {self._order['memory_bytes'] / 1024**2:.0f} MiB"
        if self._kill_at is not None:
            return "stopped (SIGTERM)" if code != -signal.SIGKILL else "stopped, and killed after its time of grace"
        if code < 0:
            return f"killed ({signal.Signals(-code).name})"
        return "the command could not be run" if code == _NOT_FOUND else ""


def _children_s() -> float:
    mine = resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime


def _point(number: int, path: Path, flags: int) -> None:
    handle = os.open(path, flags, 0o600)
    os.dup2(handle, number)
    if handle != number:
        os.close(handle)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
