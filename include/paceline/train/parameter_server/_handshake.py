"""Accepts connections and admits peers that prove that they have the key. Used by ``_server`` and ``state_shard``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from paceline.train._values import log

from .peer import DisconnectedError, Peer, listen

# The port may be open to the world: limit the duration of a handshake and the number of concurrent handshakes.
_HANDSHAKE_TIMEOUT_S, _MAX_PENDING = 10.0, 64
_RETRY_S = 0.05


class Handshake:
    """Listens for peers, and serves each admitted peer in a separate thread.

    Parameters
    ----------
    host, port:
        Address to listen on; port 0 selects a free port.
    key:
        The secret that peers must have; empty for none.
    serve:
        Function of the peer, its first message and the connection's number; returns whether to keep the connection.
    """

    def __init__(self, host: str, port: int, key: bytes, serve: Callable[[Peer, dict[str, Any], int], bool]) -> None:
        self._key, self._serve = key, serve
        self._pending = threading.BoundedSemaphore(_MAX_PENDING)
        self._listener = listen(host, port)
        self.port: int = self._listener.address[1]

    def open(self) -> None:
        """Start accepting connections."""
        threading.Thread(target=self._accept_connections, daemon=True).start()

    def _accept_connections(self) -> None:
        connection_id = 0
        while True:
            try:
                connection = self._listener.accept()
            except OSError as error:  # the peer has disconnected, or too many connections are open
                log(f"cannot accept a connection: {error}")
                time.sleep(_RETRY_S)
                continue
            if not self._pending.acquire(blocking=False):
                connection.close()
                continue
            connection_id += 1
            threading.Thread(target=self._admit, args=(connection, connection_id), daemon=True).start()

    def _admit(self, connection: Connection, connection_id: int) -> None:
        peer, kept = None, False
        try:
            try:
                peer = Peer(connection)
                # A socket timeout would start again with each byte.
                timer = threading.Timer(_HANDSHAKE_TIMEOUT_S, peer.interrupt)
                timer.start()
                try:
                    peer.authenticate(self._key, first=True)
                    message = peer.receive()
                finally:
                    timer.cancel()
            finally:
                self._pending.release()
            kept = self._serve(peer, message, connection_id)
        except Exception as error:  # a message may be invalid in any way: close the connection
            log(f"connection closed: {describe_error(error)}")
        finally:
            if peer is None:
                connection.close()
            elif not kept:
                peer.close()


def describe_error(error: Exception) -> str:
    """Return why a connection has ended, for a log line."""
    return str(error) if isinstance(error, (DisconnectedError, ValueError)) else f"invalid message: {error!r}"


def end_process(code: int) -> NoReturn:
    """Exit with ``code``, without waiting for threads.

    Python's normal exit aborts if a thread is still computing, and the exit code is lost.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
