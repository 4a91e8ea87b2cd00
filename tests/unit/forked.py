"""Fork processes from one Python process with torch imported, because the import takes seconds and a fork does not.

``python forked.py SOCKET`` is that process. A test forks a process with ``Forked``, used like ``subprocess.Popen``.
The process has its own environment, output, main module and exit, and receives real signals.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn

_SPARE_FD = 200  # file descriptors from here on are unused


class Forked:
    """A process that runs ``python ARGUMENTS``, forked by the Python at the socket ``server``.

    The first argument is a script, ``-m`` or ``-c``; the options are those of ``subprocess.Popen`` with text in pipes.
    """

    def __init__(
        self,
        server: str,
        arguments: Sequence[object],
        *,
        env: dict[str, str],
        cwd: Path | None = None,
        stdout: IO[str] | int = subprocess.DEVNULL,
        stderr: IO[str] | int | None = None,
        process_group: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(server)
        with contextlib.ExitStack() as closing:
            if stdout == subprocess.PIPE:
                reading, writing = os.pipe()
                self.stdout, stdout = os.fdopen(reading), closing.enter_context(os.fdopen(writing, "w"))
            elif stdout == subprocess.DEVNULL:
                stdout = closing.enter_context(open(os.devnull, "w"))
            targets = {1: stdout, 2: {None: 2, subprocess.STDOUT: stdout}.get(stderr, stderr)}
            job = {"arguments": [str(one) for one in arguments], "env": env, "cwd": str(cwd or Path.cwd())}
            job |= {"process_group": process_group, "fds": [*targets, *pass_fds]}
            fds = [one if isinstance(one, int) else one.fileno() for one in (*targets.values(), *pass_fds)]
            socket.send_fds(self._connection, [json.dumps(job).encode()], fds)
        self.pid = int(self._connection.recv(100))

    def poll(self) -> int | None:
        """Return the exit code, or None if the process is still running."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end, and return its exit code, or the negative number of the signal that ended it."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._connection.recv(100))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it is still running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(path: str) -> list[str]:
    """Fork a process for each connection; in the fork, return the arguments to run.

    An intermediate fork waits for the process and sends its exit code, or kills it when the test process has ended. The
    server ends when its standard input closes.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the intermediate forks
    print("ready", flush=True)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            sys.exit()
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, fds, *_ = socket.recv_fds(connection, 1 << 18, 16)
    if pid := os.fork():
        for fd in fds:
            os.close(fd)
        connection.send(str(pid).encode())
        ended = os.pidfd_open(pid)
        if ended not in select.select([ended, connection], [], [])[0]:
            os.kill(pid, signal.SIGKILL)  # the test process has ended
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError):
            connection.send(str(code).encode())
        os._exit(0)
    connection.close()
    job = json.loads(message)
    _set_up_process(job, fds)
    return job["arguments"]


def _set_up_process(job: dict, fds: list[int]) -> None:
    """Set the file descriptors, environment and working folder of this process."""
    spare = [fcntl.fcntl(fd, fcntl.F_DUPFD, _SPARE_FD) for fd in [os.open(os.devnull, os.O_RDONLY), *fds]]
    for number, fd in zip([0, *job["fds"]], spare, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    for fd in set(fds) - set(job["fds"]):
        os.close(fd)
    if job["process_group"] is not None:
        os.setpgid(0, job["process_group"])
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    tempfile.tempdir = None  # Python determines it from the new environment
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.orig_argv = [sys.executable, *job["arguments"]]


def run(arguments: list[str]) -> NoReturn:
    """Run Python with these arguments, and exit as Python does.

    Skip the final garbage collection: it takes a second, because the fork would copy torch's objects.
    """
    code: object = 0
    try:
        _run_arguments(arguments)
    except SystemExit as exit_:
        code = exit_.code or 0
    except BaseException:
        code = 1
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run_arguments(arguments: list[str]) -> None:
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    import torch
    import torch._dynamo  # the first optimizer imports it
    import torch.distributed  # noqa: F401
    from torch.utils.data import DataLoader  # noqa: F401

    del sys.path[0]  # the folder of this file
    gc.freeze()
    run(serve(sys.argv[1]))
