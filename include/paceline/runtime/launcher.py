"""The process that supervises one local job: it starts the job, enforces the limits, and records how the job ends.

``ProcessRuntime`` starts the launcher as ``python -m paceline.runtime.launcher SCRATCH``. The launcher outlives the
process that starts it. It imports few modules, because it wakes up about twenty times a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
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

from paceline.errors import RuntimeUnavailableError
from paceline.runtime import _guardian as guardian
from paceline.runtime import cgroups, gpus
from paceline.runtime._enforcers import CgroupEnforcer, Enforcer, ProcessTree, SignalEnforcer
from paceline.runtime._memory import out_of_memory
from paceline.runtime.base import LEASE_GRACE_S
from paceline.runtime.processes import identify, kill_descendants, proportional_bytes, send
from paceline.runtime.scratch import USAGE_BYTES, Scratch, read_json, write_end, write_json
from paceline.train.job import ENV_GPU_TURNS

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_USAGE_S = 0.1
_GRACE_S = 5.0
_NOT_FOUND = 127  # the exit code of a shell for an unknown command


def main(folder: str) -> int:
    """Detach and run the job in ``folder`` to its end. Return 0 in the calling process once the job has started.

    Return ``gpus.EXIT_UNAVAILABLE`` if too few GPUs are free.
    """
    ready_read, ready_write = os.pipe()
    if os.fork():
        # The caller waits only for this process, whose child, the launcher, becomes an orphan.
        os.close(ready_write)
        return {b"+": 0, b"-": gpus.EXIT_UNAVAILABLE}.get(os.read(ready_read, 1), 1)
    os.close(ready_read)
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    scratch = Scratch(Path(folder))
    job = read_json(scratch.job)
    if job is None:
        raise SystemExit(f"cannot read {scratch.job}")
    try:
        launch = _Launch(scratch, job)
    except RuntimeUnavailableError as error:
        print(error, file=sys.stderr, flush=True)
        os.write(ready_write, b"-")
        return gpus.EXIT_UNAVAILABLE
    launch.run(lambda: os.write(ready_write, b"+"))
    return 0


class _Launch:
    """One launch of a job: its start, its supervision, and its end."""

    def __init__(self, scratch: Scratch, job: dict[str, Any]) -> None:
        self._scratch = scratch
        self._job = job
        # A job with a share of its GPUs has the same cores for any allocation.
        self._cores_per_device = None if job.get("cores") else float(job.get("cores_per_device", 1))
        self._cores = float(job.get("cores") or job["devices"] * self._cores_per_device)
        self._control, self._lease = str(scratch.control), str(scratch.lease)
        self._control_changed = -1
        self._kill_at: float | None = None
        self._lease_changed = -1
        self._lease_ends_at = math.inf
        self._out_of_memory = False
        self._claim_gpus()
        for earlier in (scratch.end, scratch.stop, scratch.usage):  # files of the launch before a restart
            earlier.unlink(missing_ok=True)
        self._group = self._make_group()

    def run(self, on_started: Callable[[], object]) -> None:
        wakeup_read, wakeup_write = os.pipe()
        os.set_blocking(wakeup_read, False)
        os.set_blocking(wakeup_write, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self._read_control()
        if self._group is not None:
            self._group.set_devices(self._cores)
        guard = guardian.start(self._scratch, self._group)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # a fork does not inherit this setting
        started = time.time()
        self._child = self._spawn_job()
        enforcer = self._make_enforcer()
        self._write_state(started, guard.pid)
        on_started()
        status = self._supervise(enforcer, wakeup_read)
        finished = time.time()
        used = enforcer.used_s()
        kill_descendants()  # as in a container
        used = max(used, _children_cpu_s())
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
            "reason": self._exit_reason(code),
            "stopped": self._kill_at is not None,
        }
        write_end(self._scratch, end)
        guard.dismiss()

    def _supervise(self, enforcer: Enforcer, wakeup: int) -> int:
        """Enforce the limits until the job's first process ends; return its wait status."""
        ended = os.pidfd_open(self._child)
        usage_file = os.open(self._scratch.usage, os.O_WRONLY | os.O_CREAT, 0o600)
        check_memory = self._job["memory_bytes"] is not None and not self._kernel_limits_memory
        usage_due = 0.0
        while True:
            pause = enforcer.step(self._read_control())
            now = time.monotonic()
            if now >= usage_due:
                usage_due = now + _USAGE_S
                memory = enforcer.memory_bytes()
                used_s = round(enforcer.used_s(), 4)
                usage = json.dumps({"cpu_s": used_s, "memory_bytes": memory, "measured_s": round(now, 4)})
                with contextlib.suppress(OSError):  # a full disk must not end the job
                    os.pwrite(usage_file, usage.encode().ljust(USAGE_BYTES), 0)
                if check_memory:
                    self._check_memory(enforcer, memory)
                self._reap_orphans()
                if now >= self._lease_end(now):
                    self._end_job(enforcer, LEASE_GRACE_S)
            if self._kill_at is not None and now >= self._kill_at:
                send(self._child, signal.SIGKILL)
                self._kill_at = now + 1.0
            timeout = max(0.0, min(pause, usage_due - now))
            readable, _, _ = select.select([wakeup, ended], [], [], timeout)
            if ended in readable:
                return os.waitpid(self._child, 0)[1]
            if wakeup in readable:
                os.read(wakeup, 512)
                request = read_json(self._scratch.stop) or {}
                self._end_job(enforcer, float(request.get("grace_s", _GRACE_S)))

    def _end_job(self, enforcer: Enforcer, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after ``grace_s``. As in a container, signal only the job's first process."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + grace_s
            send(self._child, signal.SIGTERM)
            enforcer.lift()

    def _lease_end(self, now: float) -> float:
        """Return the monotonic time at which the lease ends; a replaced lease file renews it."""
        with contextlib.suppress(OSError):
            changed = os.stat(self._lease).st_mtime_ns
            if changed != self._lease_changed:
                lasts_s = (read_json(self._scratch.lease) or {}).get("lasts_s")
                if isinstance(lasts_s, (int, float)):
                    self._lease_changed, self._lease_ends_at = changed, now + lasts_s
        return self._lease_ends_at

    def _claim_gpus(self) -> None:
        """Claim the job's GPUs until this process and the guardian have ended, and let the job see only them."""
        if self._job.get("gpus"):
            claimed = gpus.claim(self._job["gpu_ids"], self._job["gpus"], self._scratch.path.parent)
            # CUDA by default numbers the fastest GPU 0, and would do so in each job.
            chosen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(claimed)}
            if self._cores_per_device is None:
                chosen[ENV_GPU_TURNS] = os.pathsep.join(gpus.turns(claimed, self._scratch.path.parent))
            self._job["environment"] |= chosen

    def _make_group(self) -> cgroups.Group | None:
        self._kernel_limits_memory = False
        if self._job["mechanism"] == "signal":
            return None
        group = cgroups.create(f"{self._scratch.path.name}-{os.getpid()}")
        if group is None and self._job["mechanism"] == "cgroup":
            raise SystemExit("mechanism: this user cannot create a cgroup with a CPU quota on this machine")
        if group is not None:
            group.set_processes(int(self._job["max_processes"]))
            if self._job["memory_bytes"] is not None:
                self._kernel_limits_memory = group.set_memory(int(self._job["memory_bytes"]))
        return group

    def _make_enforcer(self) -> Enforcer:
        tree = ProcessTree(self._child)
        if self._group is not None:
            return CgroupEnforcer(self._group, tree, self._cores)
        return SignalEnforcer(tree, self._cores, float(self._job["period_s"]))

    def _spawn_job(self) -> int:
        launcher_pid = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher_pid:
                os._exit(1)  # the launcher died before prctl
            if self._group is not None:
                self._group.join(os.getpid())
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores SIGPIPE, and exec keeps this setting
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _limit_file_size(self._job.get("disk_bytes"))
            _redirect(0, Path(os.devnull), os.O_RDONLY)
            _redirect(1, self._scratch.stdout, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            _redirect(2, self._scratch.stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.closerange(3, 256)
            os.chdir(self._scratch.folder("work"))
            os.umask(0o077)
            command = self._job["command"]
            os.execvpe(command[0], command, self._job["environment"])  # noqa: S606 - the launcher runs user code
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(2, f"{self._job['command'][0]}: {error}\n".encode())
        finally:
            os._exit(_NOT_FOUND)

    def _write_state(self, started: float, guardian_pid: int) -> None:
        launcher, guard = identify(os.getpid()), identify(guardian_pid)
        assert launcher is not None  # the launcher is this process
        state = {
            "launcher": asdict(launcher),
            "guardian": asdict(guard) if guard else None,
            "child": self._child,
            "started_s": started,
            "mechanism": "signal" if self._group is None else "cgroup",
            "cgroup": self._group.to_json() if self._group else None,
        }
        write_json(self._scratch.state, state)

    def _read_control(self) -> float:
        """Return the allocation from the control file, in cores; the previous value if the file is not readable."""
        if self._cores_per_device is None:
            return self._cores
        with contextlib.suppress(OSError):
            changed = os.stat(self._control).st_mtime_ns
            if changed != self._control_changed:
                self._control_changed = changed
                value = (read_json(self._scratch.control) or {}).get("devices")
                if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                    self._cores = float(value) * self._cores_per_device
        return self._cores

    def _check_memory(self, enforcer: Enforcer, resident: int) -> None:
        limit = int(self._job["memory_bytes"])
        # Resident memory is cheap to read but counts shared pages several times: measure exactly before a kill.
        if resident > limit and sum(map(proportional_bytes, enforcer.members())) > limit:
            self._out_of_memory = True
            send(self._child, signal.SIGKILL)

    def _reap_orphans(self) -> None:
        """Reap adopted processes that have ended; ``_supervise`` reaps the job's first process."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid == self._child:
                    return
                os.waitpid(ended.si_pid, 0)

    def _exit_reason(self, code: int) -> str:
        if self._out_of_memory:
            return out_of_memory(self._job["memory_bytes"])
        if self._kill_at is not None:
            return "stopped (SIGTERM)" if code != -signal.SIGKILL else "killed (SIGKILL) after its grace period"
        if code < 0:
            # Most real-time signals have no name.
            name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
            return f"killed ({name})"
        return "the command could not be run" if code == _NOT_FOUND else ""


def _children_cpu_s() -> float:
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    return reaped.ru_utime + reaped.ru_stime


def _limit_file_size(limit: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit is not None and (hard == resource.RLIM_INFINITY or limit < hard):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _redirect(number: int, path: Path, flags: int) -> None:
    handle = os.open(path, flags, 0o600)
    os.dup2(handle, number)
    if handle != number:
        os.close(handle)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
