"""The processes of devices in other pods, seen from the first process of data-parallel training. Used by ``_lead``.

Each such device has a pod in which ``pod`` runs. It connects to the first process, waits until this process takes it,
and then runs the training script with the connection. The connection ends with the script's process.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.train._values import whole_number
from paceline.train.job import ENV_DEVICE_PODS, ENV_DEVICE_PODS_KEY

from ._process import EXIT_TIMEOUT_S, START_FOLDER, ProcessLink, describe_exit
from ._wire import ProcessEnd, Wire, limit_silence

if TYPE_CHECKING:
    from paceline.train.parameter_server.peer import Peer


class PodProcess(ProcessLink):
    """A process on the device of another pod.

    Parameters
    ----------
    device:
        Number of the device among those of the job, from 1.
    connection:
        The connection to the process.
    """

    is_stopped = False

    def __init__(self, device: int, connection: socket.socket) -> None:
        limit_silence(connection)
        super().__init__(device, Wire(connection))
        self._code: int | None = None  # its exit code, if its pod has reported one

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, or its pod is lost."""
        return self.wire.has_hung_up()

    def is_lost(self, timeout_s: float = 0.0) -> bool:
        """Return whether the pod of the process is lost within this time, so that its end is no fault of the code."""
        if not self.wire.has_hung_up(timeout_s):
            return False
        self._read_cause()
        return self._cause is None and self._code is None

    def kill(self, cause: str) -> None:
        """End the connection, so that the pod kills the process. ``cause`` completes "the process on device 1 …"."""
        self._cause = self._cause or cause
        self.wire.hang_up()

    def end(self) -> int:
        """Wait for the process to end, and let its pod kill it if it does not; return its exit code, 0 if unknown."""
        if self.ready:
            self.wire.has_hung_up(EXIT_TIMEOUT_S)
        self._read_cause()
        self.wire.close()
        return self._code or 0

    @property
    def failed(self) -> bool:
        """Whether an error or a signal has ended the process. Waits for its end."""
        return self.end() != 0 or self._cause is not None

    def _ending(self) -> str:
        self.wire.has_hung_up(EXIT_TIMEOUT_S)
        self._read_cause()
        return "was lost with its pod" if self._code is None else describe_exit(self._code)

    def note(self, message: Any) -> None:
        """Note the exit code of the process, or the cause of its end."""
        if isinstance(message, ProcessEnd):
            self._code = message.code
        else:
            super().note(message)


class DevicePods:
    """Listens for the pods of further devices.

    Parameters
    ----------
    port:
        The port; 0 selects a free one.
    key:
        The secret that the pods of the job have.
    """

    def __init__(self, port: int, key: bytes) -> None:
        from paceline.train.parameter_server.handshake import Handshake

        self._lock = threading.Lock()
        self._waiting: dict[int, Peer] = {}  # by device
        self._leaving: set[int] = set()
        handshake = Handshake("0.0.0.0", port, key, self._admit)  # noqa: S104, the key and the network policy protect it
        self.port = handshake.port
        """The port on which it listens."""
        handshake.open()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> DevicePods | None:
        """Return the listener that the environment describes; ``None`` if all devices of the job are in one pod."""
        if ENV_DEVICE_PODS not in environ:
            return None
        return cls(int(environ[ENV_DEVICE_PODS]), environ[ENV_DEVICE_PODS_KEY].encode())

    def take(self, states: Path, most: int | None) -> list[PodProcess]:
        """Start a process in each pod that waits, at most ``most``; return the processes.

        ``states``: file with the first states of the random number generators.
        """
        from paceline.train.parameter_server.peer import DisconnectedError

        with self._lock:
            devices = sorted(self._waiting)[:most]
            peers = {device: self._waiting.pop(device) for device in devices}
        start = {
            "program": sys.executable,
            "arguments": sys.orig_argv[1:],
            "folder": START_FOLDER,
            "states": states.read_text(),
        }
        processes = []
        for device, peer in peers.items():
            try:
                peer.send(start)
            except DisconnectedError:  # it connects again, or another pod takes its place
                peer.close()
                continue
            process = PodProcess(device, peer.detach())
            if process.has_ended:
                process.wire.close()
            else:
                processes.append(process)
        return processes

    @property
    def has_waiting(self) -> bool:
        """Whether a pod waits for a process."""
        return bool(self._waiting)

    def is_leaving(self, device: int) -> bool:
        """Whether the pod of a device has announced that it ends."""
        with self._lock:
            return device in self._leaving

    def _admit(self, peer: Peer, message: dict[str, Any], number: int) -> bool:
        device = whole_number("device", message.get("device"), 1)
        with self._lock:
            if message.get("leaves"):
                self._leaving.add(device)
                return False
            self._leaving.discard(device)
            replaced = self._waiting.pop(device, None)
            self._waiting[device] = peer
        if replaced is not None:
            replaced.close()
        return True
