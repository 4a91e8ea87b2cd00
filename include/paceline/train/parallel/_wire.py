"""Messages between the lead and the followers of data-parallel training, over a socket pair.

There are two kinds: the start of a batch, which contains the batch's checksum, and a *command*, a dict that may contain
tensors. Reading a command does not execute code from it.
"""

from __future__ import annotations

import io
import select
import socket
from typing import Any

_START, _COMMAND = b"s", b"c"
_SIZE_BYTES = 8
_CHUNK = 1 << 20


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
    (7, {'command': 'leave'})
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def start_batch(self, checksum: int) -> None:
        """Start the next batch, which has this checksum, in the other process."""
        self._connection.sendall(_START + checksum.to_bytes(_SIZE_BYTES, "big"))

    def send(self, command: dict[str, Any]) -> None:
        """Send a command."""
        import torch

        buffer = io.BytesIO()
        torch.save(command, buffer)
        packed = buffer.getvalue()
        self._connection.sendall(_COMMAND + len(packed).to_bytes(_SIZE_BYTES, "big") + packed)

    def receive(self) -> int | dict[str, Any]:
        """Wait for the next message: a checksum or a command. Raises ``EOFError`` if the other process has ended."""
        kind = self._read(1)
        number = int.from_bytes(self._read(_SIZE_BYTES), "big")
        if kind == _START:
            return number
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
