"""Messages between the lead and the followers of data-parallel training, over a socket pair.

There are three kinds: an *assignment* lists the samples of a later batch, a *go* starts a batch in all processes, and
a *command* is a dict that may contain tensors. Reading a command does not execute code from it.
"""

from __future__ import annotations

import io
import select
import socket
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_GO, _ASSIGNMENT, _COMMAND = b"g", b"a", b"o"
_SIZE_BYTES = 8
_CHUNK = 1 << 20


@dataclass(frozen=True)
class BatchShare:
    """A process's shard of a batch: the indices of its samples, and their fraction of the batch."""

    indices: Sequence[int]
    share: float


class Wire:
    """One end of the connection between two processes.

    Parameters
    ----------
    connection:
        A connected stream socket.

    Examples
    --------
    >>> here, there = map(Wire, socket.socketpair())
    >>> here.assign(BatchShare([7, 8], share=0.5)), here.start_batch(), here.send({"command": "leave"})
    (None, None, None)
    >>> there.receive(), there.receive(), there.receive()
    (BatchShare(indices=[7, 8], share=0.5), 'go', {'command': 'leave'})
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def start_batch(self) -> None:
        """Start the next batch in the other process."""
        self._connection.sendall(_GO)

    def assign(self, assignment: BatchShare) -> None:
        """Send a shard of a later batch, which the other process may read in advance."""
        packed = array("d", [assignment.share]).tobytes() + array("q", assignment.indices).tobytes()
        self._connection.sendall(_ASSIGNMENT + len(packed).to_bytes(_SIZE_BYTES, "big") + packed)

    def send(self, command: dict[str, Any]) -> None:
        """Send a command."""
        import torch

        buffer = io.BytesIO()
        torch.save(command, buffer)
        self._connection.sendall(_COMMAND + len(buffer.getbuffer()).to_bytes(_SIZE_BYTES, "big"))
        self._connection.sendall(buffer.getbuffer())

    def receive(self) -> BatchShare | Literal["go"] | dict[str, Any]:
        """Wait for the next message. Raises ``EOFError`` when the other process has ended."""
        kind = self._read(1)
        if kind == _GO:
            return "go"
        packed = self._read(int.from_bytes(self._read(_SIZE_BYTES), "big"))
        if kind == _ASSIGNMENT:
            return BatchShare(array("q", packed[8:]).tolist(), array("d", packed[:8])[0])
        import torch

        command: dict[str, Any] = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)
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
