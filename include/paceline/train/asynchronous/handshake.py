"""Accepts connections and admits peers that prove to have the key. Used by ``server`` and ``part``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from paceline.train._values import log

from .peer import GoneError, Peer, listen

# The port may be reachable by anyone: limit the time of a handshake, and how many run at the same time.
_HANDSHAKE_TIMEOUT_S, _MAX_PENDING = 10.0, 64
_RETRY_S = 0.05


class Handshake:
    """Listens, and gives each admitted peer a thread.

    Parameters
    ----------
    host, port:
        Address to listen on; port 0 takes a free one.
    key:
        The secret that peers have to prove; empty for none.
    serve:
        Called with the connection, its first message, and its number; returns whether to keep the connection open.
    """

    def __init__(self, host: str, port: int, key: bytes, serve: Callable[[Peer, dict[str, Any], int], bool]) -> None:
        self._key, self._serve = key, serve
        self._pending = threading.BoundedSemaphore(_MAX_PENDING)
        self._listener = listen(host, port)
        self.port: int = self._listener.address[1]

    def open(self) -> None:
        """Start to accept connections."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        connection_id = 0
        while True:
            try:
                connection = self._listener.accept()
            except OSError as error:  # the peer has disconnected, or there are too many connections
                log(f"cannot accept a connection: {error}")
                time.sleep(_RETRY_S)
                continue
            if not self._pending.acquire(blocking=False):
                connection.close()
                continue
            connection_id += 1
            threading.Thread(target=self._admit, args=(connection, connection_id), daemon=True).start()

    def _admit(self, connection: Connection, connection_id: int) -> None:
        peer, kept = Peer(connection), False
        try:
            try:
                peer.set_timeout(_HANDSHAKE_TIMEOUT_S)
                peer.authenticate(self._key, first=True)
                message = peer.receive()
                peer.set_timeout(None)
            finally:
                self._pending.release()
            kept = self._serve(peer, message, connection_id)
        except Exception as error:  # a message may be wrong in any way: close its connection
            log(f"connection closed: {describe_error(error)}")
        finally:
            if not kept:
                peer.close()


def describe_error(error: Exception) -> str:
    """Return why a connection has ended, for a log line."""
    return str(error) if isinstance(error, (GoneError, ValueError)) else f"invalid message: {error!r}"


def end_process(code: int) -> NoReturn:
    """End the process with this code, without waiting for threads.

    Python's own exit aborts if a thread is in a computation, and loses the code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
