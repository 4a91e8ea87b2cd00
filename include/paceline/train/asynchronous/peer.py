"""Two processes that speak to each other: words as JSON, and rows of numbers beside them. Used by server and workers.

They use one connection of the standard library's ``multiprocessing.connection``, which the worker opens: it may be
behind a firewall or an address translation, and needs no open port. Where a key is set, both sides prove that they have
it. Nothing that arrives is run.
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
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any

from paceline.train._values import bad_value
from paceline.train.job import ENV_SERVER

if TYPE_CHECKING:
    import torch

    Room = Callable[[dict[str, Any], int], torch.Tensor]

# Longer than any words are; a list of ten million samples fits.
_LONGEST_WORDS = 1 << 27
# A machine that has lost its power says nothing; after about a minute without an answer it is taken for gone.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}


class GoneError(Exception):
    """The other side has gone, or never came."""


class Peer:
    """One end of a connection.

    Parameters
    ----------
    connection:
        The connection.

    Raises
    ------
    GoneError
        From all methods, when the other side has gone.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Rows go straight from and to memory: a ``Connection`` reads piece by piece and copies twice.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        _keep_alive(self._socket)

    def be_patient(self, seconds: float | None) -> None:
        """Wait so long at most for anything the other side is to send, or to take; ``None``: for ever."""
        whole = int(seconds or 0)
        waited = struct.pack("ll", whole, round(((seconds or 0) - whole) * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, waited)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, waited)

    def prove(self, key: bytes, *, first: bool) -> None:
        """Let both sides prove that they have the key, if there is one. Raises ``GoneError`` if the other has not.

        One side asks ``first``, the other does not.
        """
        if key:
            steps = [deliver_challenge, answer_challenge]
            for step in steps if first else reversed(steps):
                self._try(step, self._connection, key)

    def send(self, words: dict[str, Any], row: torch.Tensor | None = None) -> None:
        """Say something, with a row of numbers if there is one."""
        length = 0 if row is None else row.numel()
        self._try(self._connection.send_bytes, json.dumps([length, words]).encode())
        if row is not None and length:
            self._try(self._socket.sendall, _memory(row))

    @property
    def host(self) -> str:
        """Where the other side is."""
        return str(self._socket.getpeername()[0])

    def receive(self, into: torch.Tensor | Room | None = None) -> dict[str, Any]:
        """Wait for what the other side says; a row of numbers that comes with it is put ``into``.

        Where its length depends on what is said, ``into`` is asked for room with the words and the length. Raises
        ``ValueError`` for a row of another length.
        """
        length, words = json.loads(self._try(self._connection.recv_bytes, _LONGEST_WORDS))
        if length:
            into = into(words, length) if callable(into) else into
            expected = 0 if into is None else into.numel()
            if into is None or length != expected:
                raise ValueError(f"state: got {length} numbers, expected {expected}")
            self._try(self._read, _memory(into))
        found: dict[str, Any] = words
        return found

    def close(self) -> None:
        """End the connection, also for a thread that waits for something to come."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._connection.close()

    def _read(self, memory: memoryview) -> None:
        while memory:
            count = self._socket.recv_into(memory, flags=socket.MSG_WAITALL)
            if not count:
                raise EOFError
            memory = memory[count:]

    def _try(self, act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except AuthenticationError:
            raise GoneError("it does not have the key of this training") from None
        except (EOFError, OSError) as error:
            raise GoneError(str(error) or "its connection has ended") from None


def address(server: str) -> tuple[str, int]:
    """Host and port of a parameter server, as a process is told them.

    >>> address("ps-0:29500")
    ('ps-0', 29500)
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        raise bad_value(ENV_SERVER, server, "host:port")
    return host, int(port)


def listen(host: str, port: int) -> Listener:
    """Listen for workers; port 0 takes a free one."""
    return Listener((host, port), backlog=128)


def reach(host: str, port: int, key: bytes) -> Peer:
    """Connect to a server. Raises ``GoneError`` if it does not answer."""
    try:
        connection = Client((host, port))
    except OSError as error:
        raise GoneError(str(error)) from None
    peer = Peer(connection)
    try:
        peer.prove(key, first=False)
    except GoneError:
        peer.close()
        raise
    return peer


def _memory(row: torch.Tensor) -> memoryview:
    """The numbers of a row on the CPU, as bytes, without copying; ``Tensor.numpy`` would need NumPy to be there."""
    assert row.is_contiguous()
    return memoryview((ctypes.c_char * (row.numel() * row.element_size())).from_address(row.data_ptr())).cast("B")


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
