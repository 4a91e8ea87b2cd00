"""Accepts connections and admits peers that prove that they have the key. Used by ``_server`` and ``state_shard``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, NoReturn

from paceline.train._values import log

from ._limits import MAX_REQUEST_BYTES
from .peer import DisconnectedError, Peer, listen

# The port may be open to the world: limit the duration of a handshake and the number of concurrent handshakes.
_HANDSHAKE_TIMEOUT_S, _MAX_PENDING, _MAX_PENDING_PER_HOST = 10.0, 128, 64
_RETRY_S = 0.05
_MAX_LOG_LINES, _LOG_PERIOD_S = 20, 60.0
_MAX_LOG_LENGTH = 300


class Handshake:
    """Listens for peers, and serves each admitted peer in a separate thread.

    A connection is pending until its peer has proved that it has the key; without a key, until its first message. If
    too many connections are pending, in total or from one host, a new connection displaces the oldest one of the host
    with the most. So peers that send nothing keep out no other peer.

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
        self._lock = threading.Lock()
        self._pending: dict[int, tuple[str, Peer]] = {}  # host and peer by number of the connection, oldest first
        self._logged, self._logged_since_s = 0, float("-inf")
        self._listener = listen(host, port)
        self.port: int = self._listener.address[1]

    def open(self) -> None:
        """Start accepting connections."""
        threading.Thread(target=self._accept_connections, daemon=True).start()

    def _accept_connections(self) -> None:
        for connection_id in count(1):
            try:
                connection = self._listener.accept()
            except OSError as error:  # too many connections are open
                self._log(f"cannot accept a connection: {error}")
                time.sleep(_RETRY_S)
                continue
            try:
                peer = Peer(connection, MAX_REQUEST_BYTES)
            except OSError as error:  # the peer has disconnected
                connection.close()
                self._log(f"connection closed: {error}")
                continue
            address: Any = self._listener.last_accepted
            self._add_pending(connection_id, str(address[0]), peer)
            # A socket timeout would start again with each byte.
            timer = threading.Timer(_HANDSHAKE_TIMEOUT_S, peer.interrupt)
            timer.daemon = True
            try:
                timer.start()
                threading.Thread(target=self._admit, args=(peer, timer, connection_id), daemon=True).start()
            except RuntimeError as error:  # too many threads
                self._log(f"cannot accept a connection: {error}")
                self._end_pending(connection_id)
                timer.cancel()
                peer.close()
                self._displace_oldest(None)

    def _add_pending(self, connection_id: int, host: str, peer: Peer) -> None:
        with self._lock:
            hosts = Counter(other for other, _ in self._pending.values())
        if hosts[host] >= _MAX_PENDING_PER_HOST:
            self._displace_oldest(host)
        elif hosts.total() >= _MAX_PENDING:
            self._displace_oldest(hosts.most_common(1)[0][0])
        with self._lock:
            self._pending[connection_id] = host, peer

    def _displace_oldest(self, host: str | None) -> None:
        """Close the oldest pending connection of a host, or of any host."""
        with self._lock:
            oldest = next((number for number, (other, _) in self._pending.items() if host in (None, other)), None)
            if oldest is not None:
                self._pending.pop(oldest)[1].interrupt()

    def _admit(self, peer: Peer, timer: threading.Timer, connection_id: int) -> None:
        kept = False
        try:
            try:
                peer.authenticate(self._key, first=True)
                if self._key:
                    self._end_pending(connection_id)
                message = peer.receive()
                if not self._key:
                    self._end_pending(connection_id)
            finally:
                timer.cancel()
            kept = self._serve(peer, message, connection_id)
        except Exception as error:  # a message may be invalid in any way: close the connection
            self._log(f"connection closed: {describe_error(error)}")
        finally:
            with self._lock:
                self._pending.pop(connection_id, None)
            if not kept:
                peer.close()

    def _end_pending(self, connection_id: int) -> None:
        with self._lock:
            if self._pending.pop(connection_id, None) is None:
                raise DisconnectedError("displaced by newer connections")

    def _log(self, text: str) -> None:
        """Log a few lines per minute: peers without the key must not fill the disk."""
        now_s = time.monotonic()
        with self._lock:
            if now_s >= self._logged_since_s + _LOG_PERIOD_S:
                self._logged, self._logged_since_s = 0, now_s
            self._logged += 1
            lines = self._logged
        if lines <= _MAX_LOG_LINES:
            log(text + (", further lines of this kind are omitted for a minute" if lines == _MAX_LOG_LINES else ""))


def describe_error(error: Exception) -> str:
    """Return why a connection has ended, for a log line."""
    reason = str(error) if isinstance(error, (DisconnectedError, ValueError)) else f"invalid message: {error!r}"
    return reason[:_MAX_LOG_LENGTH]


def end_process(code: int) -> NoReturn:
    """Exit with ``code``, without waiting for threads.

    Python's normal exit aborts if a thread is still computing, and the exit code is lost.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
