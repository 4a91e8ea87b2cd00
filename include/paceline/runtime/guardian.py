"""A process that does nothing but wait for the launcher's death, and then leaves nothing of the job behind.

The launcher starts it before the job. Without it, a launcher killed at the wrong moment would leave a job that is
stopped for ever, or one that nothing limits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from paceline.runtime.cgroups import Group
from paceline.runtime.processes import kill_carrying
from paceline.runtime.scratch import Scratch, write_json
from paceline.train.job import ENV_OUTPUT


@dataclass(frozen=True)
class Guardian:
    """The launcher's handle on its guardian."""

    pid: int
    _pipe: int

    def dismiss(self) -> None:
        """Tell it that all is done; wait for its end."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b".")
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start(scratch: Scratch, group: Group | None) -> Guardian:
    """Fork the guardian. Only the launcher may hold the pipe's other end, so its death closes it."""
    wait, hold = os.pipe()
    started = time.time()
    pid = os.fork()
    if pid:
        os.close(wait)
        return Guardian(pid, hold)
    try:
        os.close(hold)
        os.setsid()  # what is sent to the launcher's group is not meant for us
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if os.read(wait, 1) == b"":
            _bury(scratch, group, started)
    finally:
        os._exit(0)


def _bury(scratch: Scratch, group: Group | None, started: float) -> None:
    kill_carrying(*mark(scratch))
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


def mark(scratch: Scratch) -> tuple[str, str]:
    """The environment variable that all processes of a job share and no other has, and its value."""
    return ENV_OUTPUT, str(scratch.folder("output"))
