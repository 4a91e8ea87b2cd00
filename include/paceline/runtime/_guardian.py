"""A process that waits for the launcher to die and then kills the job.

The launcher is its child and starts the job. Without a guardian, the job of a killed launcher would stay stopped
forever, or run without a limit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from paceline.runtime.cgroups import Group
from paceline.runtime.processes import kill_descendants
from paceline.runtime.scratch import Scratch, write_json
from paceline.train.job import ENV_OUTPUT


@dataclass(frozen=True)
class Guardian:
    """The launcher's handle to its guardian process."""

    pid: int
    _pipe: int

    def dismiss(self) -> None:
        """Make the guardian exit without killing any process. Call this after the job has ended."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b".")
        os.close(self._pipe)


def start(scratch: Scratch, group: Group | None) -> Guardian:
    """Fork, and return only in the child, the launcher; this process becomes its guardian.

    The guardian, a subreaper, adopts the processes of a dead launcher, whatever their environment and session. Only the
    launcher has the write end of the pipe, so the pipe closes when the launcher dies.
    """
    read_end, write_end = os.pipe()
    started = time.time()
    guardian = os.getpid()
    if not os.fork():
        os.close(read_end)
        os.setsid()  # signals to the launcher's group must not reach the guardian
        return Guardian(guardian, write_end)
    try:
        os.close(write_end)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if os.read(read_end, 1) == b"":
            _clean_up(scratch, group, started)
    finally:
        os._exit(0)


def _clean_up(scratch: Scratch, group: Group | None, started: float) -> None:
    kill_descendants()
    if group is not None:
        group.remove()
    if not scratch.end.exists() and scratch.path.exists():
        write_json(
            scratch.end,
            {
                "exit_code": 137,
                "started_s": started,
                "finished_s": time.time(),
                "out_of_memory": False,
                "reason": "killed: the process that controlled the job was killed",
            },
        )


def job_variable(scratch: Scratch) -> tuple[str, str]:
    """Return the name and the value of the environment variable that identifies a job's processes."""
    return ENV_OUTPUT, str(scratch.folder("output"))
