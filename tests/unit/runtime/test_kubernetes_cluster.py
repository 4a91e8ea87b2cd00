"""Requests to a cluster that is away or busy, over real connections."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from kubernetes.client import ApiClient, Configuration

from paceline.errors import RuntimeUnavailableError
from paceline.runtime.kubernetes._cluster import Cluster, read_pod


def cluster_at(port: int) -> Cluster:
    return Cluster(lambda: ApiClient(Configuration(host=f"http://127.0.0.1:{port}")), "training")


@contextmanager
def server(*, statuses: list[int]) -> Iterator[int]:
    """Yield the port of a server that answers a request with each of these statuses; with 0, it cuts the connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if status := statuses.pop(0):
                body = json.dumps({"metadata": {"uid": "1"}}).encode()
                self.send_response(status)
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever).start()
        yield made.server_port
        made.shutdown()


def test_absent_server_is_an_error_without_warnings_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as silent:  # bound, but not listening: connections are refused
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(RuntimeUnavailableError, match="could not read the pod: the cluster is not responding"):
            read_pod(cluster_at(silent.getsockname()[1]), "one")
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_cut_connection_is_an_error_without_warnings_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    with (
        server(statuses=[0, 200]) as port,
        pytest.raises(RuntimeUnavailableError, match="could not read the pod: the cluster is not responding"),
    ):
        read_pod(cluster_at(port), "one")
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_request_is_repeated_if_a_busy_server_refuses_it() -> None:
    statuses = [429, 429, 200]
    with server(statuses=statuses) as port:
        assert read_pod(cluster_at(port), "one") == {"metadata": {"uid": "1"}}
    assert statuses == []
