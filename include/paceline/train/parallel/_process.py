"""A follower process of data-parallel training, seen from the lead. Used by ``_lead``."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.train.job import ENV_CHECKPOINT, ENV_DEVICE, ENV_FIRST_STATES, ENV_LEAD, ENV_OUTPUT
from paceline.train.saving import first_states

from ._wire import Wire

_EXIT_TIMEOUT_S = 10.0
try:
    _START_FOLDER: str | None = os.getcwd()  # the training code may change the folder before it starts a process
except OSError:  # the folder was removed
    _START_FOLDER = None


class FollowerProcess:
    """Starts this script in a process on another device.

    Parameters
    ----------
    device:
        Index of the device.
    folder:
        Temporary folder for the output of the process.
    """

    def __init__(self, device: int, folder: Path) -> None:
        self.device = device
        self.ready = False
        """Whether the process waits at the loop."""
        ours, theirs = socket.socketpair()
        self.wire = Wire(ours)
        output = folder / f"output-{device}"
        output.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != ENV_CHECKPOINT}
        environment |= {ENV_LEAD: str(theirs.fileno()), ENV_DEVICE: str(device), ENV_OUTPUT: str(output)}
        states = folder / "random-states.json"
        first_states.store(states)
        environment[ENV_FIRST_STATES] = str(states)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                cwd=_START_FOLDER,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    @contextmanager
    def connection(self) -> Iterator[Wire]:
        """Yield the connection to the process. Raises ``RuntimeError`` if the process has ended."""
        try:
            yield self.wire
        except OSError:
            raise RuntimeError(
                f"data_parallel: the process on device {self.device} has left the loop (exit code {self.end()}). "
                "All processes must leave the loop or call stop_early() at the same batch: "
                "base the decision on a value that is the same in all processes"
            ) from None

    def dismiss(self) -> None:
        """Dismiss the process without waiting until it has ended."""
        with contextlib.suppress(OSError):
            self.wire.send({"command": "leave"})
        self.wire.close()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def end(self) -> int:
        """Wait for the process to end, and kill it if it does not; return its exit code."""
        self.wire.close()
        if self.ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(_EXIT_TIMEOUT_S)
        self._process.kill()
        return self._process.wait()
