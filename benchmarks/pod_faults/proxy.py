"""A proxy on this machine between a task and the API server, which can cut all connections and refuse new ones."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


class Proxy:
    """Forwards connections to the API server until it is cut or away.

    Parameters
    ----------
    server:
        The address of the API server.

    Attributes
    ----------
    is_away:
        Whether new connections are refused.
    """

    def __init__(self, server: str) -> None:
        self._target = (urlsplit(server).hostname, urlsplit(server).port or 443)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
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
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    if self.is_away:
                        raise ConnectionRefusedError
                    far = socket.create_connection(self._target)
                except OSError:  # the API server may be away itself
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


def client_through(url: str) -> ApiClient:
    """Return a client of the cluster at ``KUBECONFIG`` whose connections go to the proxy at ``url``."""
    from kubernetes.client import ApiClient
    from kubernetes.config import new_client_from_config

    configuration = new_client_from_config().configuration
    configuration.tls_server_name = urlsplit(configuration.host).hostname
    configuration.host = url
    return ApiClient(configuration)
