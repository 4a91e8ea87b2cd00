"""A follower process of data-parallel training, seen from the lead. Used by ``_lead``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.train.job import ENV_CHECKPOINT, ENV_DEVICE, ENV_FIRST_STATES, ENV_LEAD, ENV_OUTPUT
from paceline.train.saving import first_states

from ._wire import Wire

LEFT = (
    "left the loop at %s. All processes must leave the loop or call stop_early() at the same batch: base the decision "
    "on a value that is the same in all processes"
)
EXIT_TIMEOUT_S = 10.0
try:
    START_FOLDER: str | None = os.getcwd()  # the training code may change the folder before it starts a process
except OSError:  # the folder was removed
    START_FOLDER = None


class ProcessLink(ABC):
    """A process on another device, and the connection to it.

    Parameters
    ----------
    device:
        Index of the device.
    wire:
        The connection.
    """

    def __init__(self, device: int, wire: Wire) -> None:
        self.device = device
        self.wire = wire
        self.ready = False
        """Whether the process waits at the loop."""
        self._cause: str | None = None  # why the process has failed, or the lead has killed it

    @contextmanager
    def connection(self) -> Iterator[Wire]:
        """Yield the connection to the process. Raises ``RuntimeError`` if the process has ended."""
        try:
            yield self.wire
        except OSError:
            ending = self.describe_end()
            raise RuntimeError(f"data_parallel: {ending}") from None

    def dismiss(self) -> None:
        """Dismiss the process without waiting until it has ended."""
        self._read_cause()
        with contextlib.suppress(OSError):
            self.wire.send({"command": "leave"})
        self.wire.close()

    @property
    @abstractmethod
    def has_ended(self) -> bool:
        """Whether the process has ended."""

    @property
    @abstractmethod
    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped the process; false if this cannot be known."""

    @abstractmethod
    def kill(self, cause: str) -> None:
        """Kill the process because of ``cause``, which completes the sentence "the process on device 1 …"."""

    @abstractmethod
    def end(self) -> int:
        """Wait for the process to end, and kill it if it does not; return its exit code."""

    @property
    @abstractmethod
    def failed(self) -> bool:
        """Whether an error or a signal has ended the process, unless it was late in leaving. Waits for its end."""

    def describe_end(self) -> str:
        """Wait for the process to end, and return a sentence about how it has ended."""
        ending = self._ending()
        return f"the process on device {self.device} {self._cause or ending}"

    @abstractmethod
    def _ending(self) -> str:
        """Wait for the process to end, and return how it has ended."""

    def _read_cause(self) -> None:
        """Read why the process has failed. The wire may be closed, or have ended without a cause."""
        with contextlib.suppress(EOFError, OSError, ValueError):
            while self.wire.is_readable():
                self.note(self.wire.receive())

    def note(self, message: Any) -> None:
        """Note what a message of the process, which is about to end, says about the cause."""
        self._cause = self._cause or message.get("failed")


class FollowerProcess(ProcessLink):
    """Starts this script in a process on another device.

    Parameters
    ----------
    device:
        Index of the device.
    folder:
        Temporary folder for the output of the process.
    """

    def __init__(self, device: int, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(device, Wire(ours))
        self._killed = False  # whether the lead has killed the process because of its cause
        self._given_up = False  # whether the lead has killed the process because it did not leave in time
        output = folder / f"output-{device}"
        output.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != ENV_CHECKPOINT}
        environment |= {ENV_LEAD: str(theirs.fileno()), ENV_DEVICE: str(device), ENV_OUTPUT: str(output)}
        environment[ENV_FIRST_STATES] = str(store_states(folder))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]],
                cwd=START_FOLDER,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped the process; false on systems without ``/proc``."""
        try:
            state = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(") ")[2]
        except OSError:
            return False
        return state.startswith("T")

    def kill(self, cause: str) -> None:
        """Kill the process because of ``cause``, which completes the sentence "the process on device 1 …"."""
        self._cause, self._killed = self._cause or cause, True
        self._process.kill()

    def end(self) -> int:
        """Wait for the process to end, and kill it if it does not; return its exit code."""
        self._read_cause()
        self.wire.close()
        if self.ready and not self._killed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(EXIT_TIMEOUT_S)
        if not self.has_ended:
            self._given_up = True
            self._process.kill()
        return self._process.wait()

    @property
    def failed(self) -> bool:
        """Whether an error or a signal has ended the process, unless it was late in leaving. Waits for its end."""
        code = self.end()
        return self._cause is not None or (code < 0 and not self._given_up)

    def _ending(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_TIMEOUT_S)
        code = self.end()
        return "did not end in time and was killed" if self._given_up else describe_exit(code)


def store_states(folder: Path) -> Path:
    """Store the first states of the random number generators in ``folder`` for the processes of the job."""
    states = folder / "random-states.json"
    first_states.store(states)
    return states


def describe_exit(code: int) -> str:
    """Return how a process has ended.

    >>> describe_exit(3), describe_exit(-9)
    ('ended (exit code 3)', 'was killed (SIGKILL; out of memory?)')
    """
    if code >= 0:
        return f"ended (exit code {code})"
    name = signal.Signals(-code).name
    return f"was killed ({name}{'; out of memory?' if name == 'SIGKILL' else ''})"
