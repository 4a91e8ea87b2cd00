"""The first process of a job's pod: runs the job's command, and reports its output, its usage and its end.

It needs only Python's standard library, because the image is the user's: its source is an argument of the container's
command. It outlives the job, so that the job's files can be copied out of the pod and the job can be restarted. Its
standard output is a sequence of numbered records, which ``_records`` reads:

- ``12.text``: a line of the job's output; ``12+text``: a piece of a long line, which the next record continues
- ``12u{...}``: CPU seconds, bytes of memory and bytes of network traffic of the container, about once a second
- ``12s{...}`` and ``12e{...}``: the start and the end of a run of the job, also in the file ``state/run.json``
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # A SIGTERM to process 1 is ignored as long as it has no handler. A blocked signal waits instead.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

import contextlib
import json
import math
import os
import resource
import select
import shutil
import sys
import time
from typing import Any

HOME = "/paceline"
FOLDERS = ("sdk", "work", "input", "output", "checkpoint", "state")
PIECE_BYTES = 8192  # the engine splits longer lines of a log
GRACE_S = 60.0  # between SIGTERM and SIGKILL at the end of a lease
DELETE_GRACE_S = 20.0  # the cluster gives a deleted pod 30 s by default
LEAVE_S = 28.0  # after the start of a deletion; until then, the job's last checkpoint can be copied out of the pod
_USAGE_S = 1.0
_RECORDS_PER_BOOT = 10**10
_NEVER = math.inf
_ALMOST_FULL = 0.9  # of the memory limit: a container that is killed with so much in use has run out of memory


class Supervisor:
    """Runs one job, as often as it is started.

    It reads commands from the pipe ``state/control``, one in each line: ``start NUMBER`` of the run, ``stop SECONDS``,
    ``lease SECONDS``, ``pause``, ``unpause``.
    """

    def __init__(self) -> None:
        for folder in FOLDERS:
            os.makedirs(f"{HOME}/{folder}", exist_ok=True)
        control = f"{HOME}/state/control"
        if not os.path.exists(control):
            os.mkfifo(control)
        self._control = os.open(control, os.O_RDWR | os.O_NONBLOCK)  # O_RDWR: it never reaches its end
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._child, self._output, self._line = 0, -1, b""
        self._usage_at = self._kill_at = self._lease_at = self._leave_at = _NEVER
        self._commands, self._oom_kills, self._closing = b"", 0, False
        self._run: dict[str, Any] = _read_json("run.json")
        self._run["boot"] = self._run.get("boot", 0) + 1
        self._number = self._run["boot"] * _RECORDS_PER_BOOT
        if self._run.get("state") == "running":  # the whole container was killed, often for its memory
            self._end(None)
        signal.signal(signal.SIGTERM, lambda *_: self._shut_down())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def serve(self) -> None:
        """Serve until the pod is deleted."""
        while self._child or time.monotonic() < self._leave_at:
            wait_s = min(self._usage_at, self._kill_at, self._lease_at, self._leave_at) - time.monotonic()
            sources = [self._control, self._woken, *([self._output] if self._child else [])]
            ready, _, _ = select.select(sources, [], [], min(max(wait_s, 0.0), 3600.0))
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._child and self._output in ready:
                self._write_output(_read_available(self._output) or b"")
            if self._control in ready:
                self._obey(os.read(self._control, 65536))
            self._check_times()

    def _check_times(self) -> None:
        now = time.monotonic()
        if now >= self._usage_at:
            self._usage_at = now + _USAGE_S
            usage = _usage()
            self._record(b"u", usage)
            # The next supervisor reads it if the kernel kills the whole container, whose counter of kills is then lost.
            self._run["memory_bytes"] = json.loads(usage)["memory_bytes"]
            _write_json("run.json", self._run)
        if now >= self._lease_at:
            self._lease_at = _NEVER
            self._stop(GRACE_S)
        if now >= self._kill_at:
            self._kill_at = _NEVER
            _signal_descendants(signal.SIGKILL)

    def _shut_down(self) -> None:
        # Without a run, there is nothing to copy.
        self._closing, self._leave_at = True, time.monotonic() + (LEAVE_S if "number" in self._run else 0.0)
        os.write(self._control, b"stop %f\n" % DELETE_GRACE_S)

    def _obey(self, data: bytes) -> None:
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            verb, _, value = line.partition(b" ")
            if verb == b"start" and not (self._child or self._closing) and int(value) == self._run.get("number", 0) + 1:
                self._start(int(value))
            elif verb == b"stop":
                self._stop(float(value))
            elif verb == b"lease" and self._child:
                self._lease_at = time.monotonic() + float(value)
            elif verb in (b"pause", b"unpause") and self._child:
                self._set_paused(verb == b"pause")

    def _start(self, number: int) -> None:
        job = _read_json("job.json")
        self._oom_kills = _oom_kills()
        self._run = {"boot": self._run["boot"], "number": number, "state": "running", "started_s": time.time()}
        self._report_run(b"s")
        self._output, writing = os.pipe()
        os.set_blocking(self._output, False)
        self._child = os.fork()
        if not self._child:
            _execute(job, writing)
        os.close(writing)
        self._usage_at = time.monotonic()
        self._lease_at = self._usage_at + job["lease_s"] if job["lease_s"] else _NEVER

    def _stop(self, grace_s: float) -> None:
        if self._child:
            self._run["stopped"] = True
            self._set_paused(False)  # a suspended job could not save its state
            os.kill(self._child, signal.SIGTERM)  # it exists until it is reaped
            self._kill_at = time.monotonic() + grace_s

    def _set_paused(self, paused: bool) -> None:
        _signal_descendants(signal.SIGSTOP if paused else signal.SIGCONT)
        self._run["paused"] = paused
        _write_json("run.json", self._run)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._child:
                    self._finish(os.waitstatus_to_exitcode(ended[1]))

    def _finish(self, code: int) -> None:
        _signal_descendants(signal.SIGKILL)  # as at the end of a container
        while (data := _read_available(self._output)) != b"":
            self._write_output(data or b"")
            if data is None:  # a killed process has not yet closed its end, or was started meanwhile
                time.sleep(0.001)
                _signal_descendants(signal.SIGKILL)
        os.close(self._output)
        self._child, self._output = 0, -1
        self._usage_at = self._kill_at = self._lease_at = _NEVER
        self._end(128 - code if code < 0 else code)

    def _end(self, code: int | None) -> None:
        """Report the end of a run; without a code if the container has ended with the job."""
        if self._line:
            self._record(b".", self._line)
            self._line = b""
        was_full = self._run.get("memory_bytes", 0) > _ALMOST_FULL * _memory_limit()
        is_killed = was_full if code is None else _oom_kills() > self._oom_kills
        self._run.update(state="exited", code=code, finished_s=time.time(), out_of_memory=is_killed)
        self._report_run(b"e")

    def _report_run(self, kind: bytes) -> None:
        _write_json("run.json", self._run)
        self._record(kind, json.dumps({**self._run, "usage": json.loads(_usage())}).encode())

    def _write_output(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._record(b".", self._write_pieces(line), flush=False)
        self._line = self._write_pieces(self._line)
        sys.stdout.buffer.flush()

    def _write_pieces(self, line: bytes) -> bytes:
        while len(line) > PIECE_BYTES:
            self._record(b"+", line[:PIECE_BYTES], flush=False)
            line = line[PIECE_BYTES:]
        return line

    def _record(self, kind: bytes, content: bytes, *, flush: bool = True) -> None:
        self._number += 1
        sys.stdout.buffer.write(b"%d%b%b\n" % (self._number, kind, content))
        if flush:
            sys.stdout.buffer.flush()


def _execute(job: dict[str, Any], output: int) -> None:
    """Replace this process by the job. ``output``: the pipe to which it writes."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, 1024)
        os.chdir(f"{HOME}/work")
        if job["file_bytes"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_bytes"],) * 2)
        environment = {**os.environ, **job["environment"]}
        program, *arguments = job["command"]
        if program == "python":
            program = shutil.which("python") or sys.executable
        os.execvpe(program, [program, *arguments], environment)  # noqa: S606
    except BaseException as error:
        os.write(2, f"cannot run {job['command'][0]}: {error}\n".encode())
    os._exit(127)


def _read_available(pipe: int) -> bytes | None:
    """Return what is in the pipe: ``b""`` at its end, ``None`` if nothing is there yet."""
    try:
        return os.read(pipe, 1 << 18)
    except BlockingIOError:
        return None


def _signal_descendants(number: int) -> None:
    """Send a signal to all processes but this one, including those that others start meanwhile."""
    signalled: set[int] = set()
    while new := _descendants() - signalled:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        signalled |= new
        if number == signal.SIGCONT:  # what a running process starts is not suspended
            return


def _descendants() -> set[int]:
    """Return the ids of all processes below this one, so without the cluster's commands, whose parent is process 0."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat") as file:
            parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    own = os.getpid()
    for pid in parents:
        above = parents[pid]
        while above not in (own, 0):
            above = parents.get(above, 0)
        if above == own:
            found.add(pid)
    return found


def _usage() -> bytes:
    """Return what the container has used, as JSON. Works with control groups of version 1 and 2."""
    cpu_s = _number_in("cpu.stat", "usage_usec") / 1e6 or _number_in("cpuacct/cpuacct.usage") / 1e9
    memory = _number_in("memory.current") or _number_in("memory/memory.usage_in_bytes")
    cache = _number_in("memory.stat", "inactive_file") or _number_in("memory/memory.stat", "total_inactive_file")
    measured = {"measured_s": round(time.time(), 3), "cpu_s": round(cpu_s, 3)}
    return json.dumps({**measured, "memory_bytes": int(max(memory - cache, 0.0)), **_network_usage()}).encode()


def _network_usage() -> dict[str, int]:
    """Return the bytes that the pod has received from other pods and machines, and sent to them."""
    received = sent = 0
    with contextlib.suppress(OSError), open("/proc/net/dev") as file:
        for line in file.read().splitlines()[2:]:
            name, _, counts = line.partition(":")
            if name.strip() != "lo":
                received += int(counts.split()[0])
                sent += int(counts.split()[8])
    return {"received_bytes": received, "sent_bytes": sent}


def _oom_kills() -> int:
    """Return how often the kernel has killed a process of the container for its memory."""
    return int(_number_in("memory.events", "oom_kill") or _number_in("memory/memory.oom_control", "oom_kill"))


def _memory_limit() -> float:
    """Return the container's limit of memory; infinity if it has none, or a file has another form."""
    return _number_in("memory.max") or _number_in("memory/memory.limit_in_bytes") or math.inf


def _number_in(name: str, key: str | None = None) -> float:
    """Return a number in a file of the control group, after ``key`` if there are several; 0 if it is not there."""
    with contextlib.suppress(OSError, ValueError), open(f"/sys/fs/cgroup/{name}") as file:
        if key is None:
            return float(file.read())
        for line in file:
            if line.split()[0] == key:
                return float(line.split()[1])
    return 0.0


def _read_json(name: str) -> dict[str, Any]:
    try:
        with open(f"{HOME}/state/{name}") as file:
            content: dict[str, Any] = json.load(file)
            return content
    except FileNotFoundError:
        return {}


def _write_json(name: str, content: dict[str, Any]) -> None:
    path = f"{HOME}/state/{name}"
    with open(f"{path}.part", "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.part", path)


if __name__ == "__main__":
    Supervisor().serve()
