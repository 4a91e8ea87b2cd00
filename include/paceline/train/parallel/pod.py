"""Runs the training script on the device of a further pod: ``python -m paceline.train.parallel.pod``.

The runtime starts it in each pod of a further device. It connects to the first process of the training, again and again
if necessary, and runs the script whenever that process asks for it. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from paceline.train._values import log
from paceline.train.job import (
    ENV_CHECKPOINT,
    ENV_DEVICE_PODS_KEY,
    ENV_FIRST_STATES,
    ENV_LEAD,
    ENV_LEAD_ADDRESS,
    device_index,
)
from paceline.train.parameter_server.peer import DisconnectedError, Peer, connect, parse_address

from ._wire import Wire, limit_silence

_CONNECT_EVERY_S = 1.0
_LEAVE_S = 10.0  # for a process whose connection the first process has ended; then it is killed
_AFTER_FAILURE_S = 30.0  # a script that has failed may fail again
_POLL_S = 0.1


class DevicePod:
    """The processes of one device, one after the other.

    Parameters
    ----------
    address:
        ``host:port`` of the first process.
    key:
        The secret of the job.
    device:
        Number of the device.
    """

    def __init__(self, address: str, key: bytes, device: int) -> None:
        self._host, self._port = parse_address(address)
        self._key, self._device = key, device
        self._process: subprocess.Popen[bytes] | None = None
        self._leaves = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> DevicePod:
        """Return the pod that the environment describes."""
        return cls(environ[ENV_LEAD_ADDRESS], environ[ENV_DEVICE_PODS_KEY].encode(), device_index())

    def serve(self) -> NoReturn:
        """Run a process whenever the first process asks for one, until SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        is_said = False
        while True:
            try:
                peer = self._connect({"device": self._device})
                start = peer.receive()
            except DisconnectedError as error:  # it starts, or is between two loops
                if not is_said:
                    log(f"device {self._device} waits for the first process of the training ({error})")
                is_said = True
                time.sleep(_CONNECT_EVERY_S)
                continue
            code = self._run(peer, start)
            if self._leaves:
                sys.exit(0)
            if code:
                time.sleep(_AFTER_FAILURE_S)

    def _connect(self, message: dict[str, Any]) -> Peer:
        peer = connect(self._host, self._port, self._key)
        peer.send(message)
        return peer

    def _on_sigterm(self, *_: object) -> None:
        self._leaves = True
        if self._process is None:
            sys.exit(0)

    def _run(self, peer: Peer, start: dict[str, Any]) -> int:
        """Run the script until its process ends; return its exit code, 0 if the first process has dismissed it."""
        with tempfile.TemporaryDirectory(prefix="paceline-device-") as folder, peer.detach() as connection:
            limit_silence(connection)
            states = Path(folder, "random-states.json")
            states.write_text(start["states"])
            environment = {name: value for name, value in os.environ.items() if name != ENV_CHECKPOINT}
            environment |= {ENV_LEAD: str(connection.fileno()), ENV_FIRST_STATES: str(states)}
            program = start["program"] if os.access(start["program"], os.X_OK) else sys.executable
            self._process = subprocess.Popen(
                [program, *start["arguments"]],
                cwd=start["folder"] if os.path.isdir(start["folder"] or "") else None,
                env=environment,
                pass_fds=[connection.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            ended = select.poll()
            ended.register(connection, getattr(select, "POLLRDHUP", 0))
            kill_s, is_announced = float("inf"), False
            while self._process.poll() is None:
                if self._leaves and not is_announced:
                    is_announced = True
                    self._announce()
                if kill_s == float("inf") and ended.poll(0):
                    kill_s = time.monotonic() + _LEAVE_S
                if time.monotonic() > kill_s:
                    self._process.kill()
                time.sleep(_POLL_S)
            code, self._process = self._process.returncode, None
            is_dismissed = bool(ended.poll(0))
            if not self._leaves:  # otherwise, the process may have been killed with its pod, which is no fault of it
                with contextlib.suppress(OSError):
                    Wire(connection).end(code)
        return 0 if is_dismissed else code

    def _announce(self) -> None:
        """Tell the first process that this pod ends, so that it goes on without it after the batch."""
        with contextlib.suppress(DisconnectedError):
            peer = self._connect({"device": self._device, "leaves": True})
            with contextlib.suppress(DisconnectedError):
                peer.finish(_LEAVE_S)
            peer.close()


if __name__ == "__main__":
    DevicePod.from_environment().serve()
