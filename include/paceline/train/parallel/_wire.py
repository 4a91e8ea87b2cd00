"""Messages between the lead and the followers of data-parallel training, over a socket pair or TCP.

There are three kinds: the start of a batch, a *command*, a dict that may contain tensors, and the exit code of a
process in another pod. Reading a command does not execute code from it.
"""

from __future__ import annotations

import contextlib
import io
import select
import socket
from typing import Any, NamedTuple

_START, _COMMAND, _END = b"s", b"c", b"e"
_SIZE_BYTES = 8
_CHUNK = 1 << 20
_CHECKSUM_BITS = 32
_MAX_EXCHANGES = 1 << 31
# The other side of a connection is lost if it does not answer for about 20 s.
_SILENCE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 20_000}
_HANG_UP = getattr(select, "POLLRDHUP", 0)  # Linux


class BatchStart(NamedTuple):
    """The start of a batch: a checksum of its samples, and the number of exchanges before it, modulo 2**31."""

    checksum: int
    exchanges: int

    def is_after(self, exchanges: int) -> bool:
        """Return whether the batch follows this number of exchanges."""
        return self.exchanges == exchanges % _MAX_EXCHANGES


class ProcessEnd(NamedTuple):
    """The end of the other process, with its exit code; negative for a signal."""

    code: int


def limit_silence(connection: socket.socket) -> None:
    """Let a TCP connection fail if the other side's machine vanishes without closing it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SILENCE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Wire:
    """One end of the connection between two processes.

    Parameters
    ----------
    connection:
        A connected stream socket.

    Examples
    --------
    >>> here, there = map(Wire, socket.socketpair())
    >>> here.start_batch(7), here.send({"command": "leave"})
    (None, None)
    >>> there.receive(), there.receive()
    (BatchStart(checksum=7, exchanges=0), {'command': 'leave'})
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def start_batch(self, checksum: int, exchanges: int = 0) -> None:
        """Start the next batch in the other process, with the batch's checksum and the number of exchanges so far."""
        number = exchanges % _MAX_EXCHANGES << _CHECKSUM_BITS | checksum
        self._connection.sendall(_START + number.to_bytes(_SIZE_BYTES, "big"))

    def send(self, command: dict[str, Any]) -> None:
        """Send a command."""
        import torch

        buffer = io.BytesIO()
        torch.save(command, buffer)
        packed = buffer.getvalue()
        self._connection.sendall(_COMMAND + len(packed).to_bytes(_SIZE_BYTES, "big") + packed)

    def end(self, code: int) -> None:
        """Tell the exit code of a process that has ended, in its place."""
        self._connection.sendall(_END + code.to_bytes(_SIZE_BYTES, "big", signed=True))

    @property
    def own_host(self) -> str:
        """The address of this process, as the other one reaches it."""
        return "127.0.0.1" if self._connection.family == socket.AF_UNIX else str(self._connection.getsockname()[0])

    def has_hung_up(self, timeout_s: float = 0.0) -> bool:
        """Return whether the other process has ended or is lost, also if there are messages of it to receive."""
        if self._connection.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._connection, _HANG_UP)
        return bool(poll.poll(1000 * timeout_s))

    def hang_up(self) -> None:
        """End the connection, also for another thread that uses it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def receive(self) -> BatchStart | ProcessEnd | dict[str, Any]:
        """Wait for the next message. Raises ``EOFError`` if the other process has ended."""
        kind = self._read(1)
        size = self._read(_SIZE_BYTES)
        if kind == _END:
            return ProcessEnd(int.from_bytes(size, "big", signed=True))
        number = int.from_bytes(size, "big")
        if kind == _START:
            return BatchStart(number % (1 << _CHECKSUM_BITS), number >> _CHECKSUM_BITS)
        import torch

        packed = io.BytesIO(self._read(number))
        command: dict[str, Any] = torch.load(packed, map_location="cpu", weights_only=True)
        return command

    def is_readable(self) -> bool:
        """Return whether there is a message to receive, or the other process has ended."""
        return bool(select.select([self._connection], [], [], 0)[0])

    def close(self) -> None:
        """Close this end; the other side reads an end of file."""
        self._connection.close()

    def _read(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            chunk = self._connection.recv(min(size - len(read), _CHUNK))
            if not chunk:
                raise EOFError("the other process has ended")
            read += chunk
        return bytes(read)
