"""The connection between the server and a worker: JSON messages, each with an optional vector of numbers.

The worker opens the connection, and both sides use the standard library's ``multiprocessing.connection``, so a worker
behind a firewall or address translation needs no open port. If a key is set, both sides prove that they have the key.
Received data is never executed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any

from paceline.train._values import bad_value, whole_number
from paceline.train.job import ENV_SERVER, current_address

from ._limits import MAX_ANSWER_BYTES

if TYPE_CHECKING:
    import torch

    Allocate = Callable[[dict[str, Any], int], torch.Tensor]

# A machine that loses power does not close its connections: close them after about a minute without a response.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}
# After a broken route, sent data is sent again for up to 16 minutes: connect again after this time.
_UNACKNOWLEDGED_MS = 60_000
# A host that has moved leaves an address that does not answer. The kernel alone would try it for two minutes.
_CONNECT_S = 10.0


class DisconnectedError(Exception):
    """The other side has disconnected or cannot be reached."""


class Peer:
    """One end of a connection.

    Parameters
    ----------
    connection:
        The open connection.
    max_bytes:
        Maximum length of a message from the other side, without its vector.

    Raises
    ------
    DisconnectedError
        Raised by all methods if the other side has disconnected.
    """

    def __init__(self, connection: Connection, max_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        # Send and receive vectors through the socket, without copies: a ``Connection`` reads in chunks and copies
        # twice.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        _keep_alive(self._socket)

    def set_timeout(self, seconds: float | None) -> None:
        """Limit the wait for the other side to send or receive; ``None`` removes the limit."""
        whole = int(seconds or 0)
        timeout = struct.pack("ll", whole, round(((seconds or 0) - whole) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    def limit_unacknowledged(self) -> None:
        """Disconnect if the other side does not acknowledge data for a minute.

        Not for connections to workers: the measurement of a profile suspends them for longer.
        """
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)

    def authenticate(self, key: bytes, *, first: bool) -> None:
        """Verify that both sides have the key, unless it is empty. Exactly one side must pass ``first=True``.

        Raises ``DisconnectedError`` if the other side does not have the key, or sends anything else.
        """
        if key:
            steps = [deliver_challenge, answer_challenge]
            for step in steps if first else reversed(steps):
                try:
                    self._call(step, self._connection, key)
                except (AssertionError, ValueError):  # depends on the version of Python
                    raise DisconnectedError("the peer is no process of a training job") from None

    def send(self, message: dict[str, Any], vector: torch.Tensor | None = None) -> None:
        """Send a message, and a vector of numbers if there is one."""
        length = 0 if vector is None else vector.numel()
        self._call(self._connection.send_bytes, json.dumps([length, message]).encode())
        if vector is not None and length:
            self._call(self._socket.sendall, memory(vector))

    @property
    def host(self) -> str:
        """IP address of the other side."""
        return str(self._socket.getpeername()[0])

    def receive(self, into: torch.Tensor | Allocate | None = None) -> dict[str, Any]:
        """Wait for the next message and return it. Store the numbers that follow some messages in ``into``.

        If ``into`` is callable, it is called with the message and the length of the vector, and returns the memory.
        Raises ``ValueError`` if the message is invalid, or the vector and the memory differ in length.
        """
        try:
            content = json.loads(self._call(self._connection.recv_bytes, self._max_bytes))
        except RecursionError:
            raise ValueError("message: got deeply nested JSON, expected an object") from None
        if not isinstance(content, list) or len(content) != 2 or not isinstance(content[1], dict):
            raise ValueError("message: expected the length of a vector and an object")
        length, message = whole_number("length", content[0], 0), content[1]
        if length:
            into = into(message, length) if callable(into) else into
            expected = 0 if into is None else into.numel()
            if into is None or length != expected:
                raise ValueError(f"state: got {length} numbers, expected {expected}")
            self._call(self._read, memory(into))
        return message

    def finish(self, timeout_s: float) -> None:
        """Wait until the other side has read all messages and has closed the connection, and discard what it sends.

        Without this wait, data from the other side could reset the closed connection, and the messages would be lost.
        """
        self.set_timeout(timeout_s)
        self._call(self._socket.shutdown, socket.SHUT_WR)
        while self._call(self._socket.recv, 1 << 16):
            pass

    def detach(self) -> socket.socket:
        """Return the connected socket, which the caller closes, for messages of another kind."""
        self._connection.close()
        return self._socket

    def interrupt(self) -> None:
        """End the connection, and with it a ``receive`` in another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; this also ends a ``receive`` in another thread."""
        self.interrupt()
        self._socket.close()
        self._connection.close()

    def _read(self, memory: memoryview) -> None:
        while memory:
            count = self._socket.recv_into(memory, flags=socket.MSG_WAITALL)
            if not count:
                raise EOFError
            memory = memory[count:]

    def _call(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return operation(*arguments)
        except AuthenticationError:
            raise DisconnectedError("the peer does not have the key of this training job") from None
        except (EOFError, OSError) as error:
            raise DisconnectedError(str(error) or "the connection has ended") from None


def parse_address(server: str) -> tuple[str, int]:
    """Return the host and the port of a parameter server from its address.

    >>> parse_address("ps-0:29500")
    ('ps-0', 29500)
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        raise bad_value(ENV_SERVER, server, "host:port")
    return host, int(port)


def listen(host: str, port: int) -> Listener:
    """Listen for workers; port 0 selects a free port."""
    return Listener((host, port), backlog=128)


def connect(host: str, port: int, key: bytes) -> Peer:
    """Connect to a server, at its new address if it has moved. Raises ``DisconnectedError`` if it does not respond."""
    try:
        opened = socket.create_connection((current_address(host), port), _CONNECT_S)
        opened.settimeout(None)
    except OSError as error:
        raise DisconnectedError(str(error)) from None
    peer = Peer(Connection(opened.detach()))
    peer.limit_unacknowledged()
    try:
        peer.authenticate(key, first=False)
    except DisconnectedError:
        peer.close()
        raise
    return peer


def memory(vector: torch.Tensor) -> memoryview:
    """Return the bytes of a CPU tensor, without a copy; ``Tensor.numpy`` would require NumPy."""
    assert vector.is_contiguous()
    return memoryview((ctypes.c_char * (vector.numel() * vector.element_size())).from_address(vector.data_ptr())).cast(
        "B"
    )


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
