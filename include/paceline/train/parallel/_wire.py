"""Messages between the lead and the followers of data-parallel training, over a socket pair.

There are two kinds: the start of a batch and a *command*, a dict that may contain
tensors. Reading a command does not execute code from it.
"""

from __future__ import annotations

import io
import select
import socket
from typing import Any, NamedTuple

_START, _COMMAND = b"s", b"c"
_SIZE_BYTES = 8
_CHUNK = 1 << 20
_CHECKSUM_BITS = 32
_MAX_EXCHANGES = 1 << 31


class BatchStart(NamedTuple):
    """The start of a batch: a checksum of its samples, and the number of exchanges before it, modulo 2**31."""

    checksum: int
    exchanges: int

    def is_after(self, exchanges: int) -> bool:
        """Return whether the batch follows this number of exchanges."""
        return self.exchanges == exchanges % _MAX_EXCHANGES


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

    def receive(self) -> BatchStart | dict[str, Any]:
        """Wait for the next message. Raises ``EOFError`` if the other process has ended."""
        kind = self._read(1)
        number = int.from_bytes(self._read(_SIZE_BYTES), "big")
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
