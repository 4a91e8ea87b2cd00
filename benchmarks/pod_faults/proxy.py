"""A proxy before the cluster's API server, and a client that uses it."""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.proxy import Proxy

if TYPE_CHECKING:
    from kubernetes.client import ApiClient


class ServerProxy(Proxy):
    """A proxy before the API server.

    Parameters
    ----------
    server:
        The address of the API server.
    """

    def __init__(self, server: str) -> None:
        place = (urlsplit(server).hostname, urlsplit(server).port or 443)
        super().__init__(socket.create_server(("127.0.0.1", 0)), partial(socket.create_connection, place))
        self.url = f"https://127.0.0.1:{self.listener.getsockname()[1]}"


def client_through(url: str) -> ApiClient:
    """Return a client of the cluster at ``KUBECONFIG`` whose connections go to the proxy at ``url``."""
    from kubernetes.client import ApiClient
    from kubernetes.config import new_client_from_config

    configuration = new_client_from_config().configuration
    configuration.tls_server_name = urlsplit(configuration.host).hostname
    configuration.host = url
    return ApiClient(configuration)
