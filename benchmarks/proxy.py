"""A proxy on this machine before a server, which can cut all connections and refuse new ones."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class Proxy:
    """Forwards connections to a server until it is cut or away.

    Parameters
    ----------
    listener:
        The socket that accepts connections.
    connect:
        Returns a connection to the server.

    Attributes
    ----------
    is_away:
        Whether new connections are refused.
    """

    def __init__(self, listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self.listener, self._connect = listener, connect
        self._sockets: list[socket.socket] = []
        self.is_away = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections, and accept no more."""
        self.cut()
        self.listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    if self.is_away:
                        raise ConnectionRefusedError
                    far = self._connect()
                except OSError:  # the server may be away itself
                    near.close()
                    continue
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
