"""Requests to a cluster that is away or busy, over real connections."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from paceline.errors import RuntimeUnavailableError
from paceline.runtime.kubernetes._cluster import Cluster, read_pod
from paceline.runtime.kubernetes._job import set_cpu


def cluster_at(port: int) -> Cluster:
    return Cluster(lambda: ApiClient(Configuration(host=f"http://127.0.0.1:{port}")), "training")


@contextmanager
def server(*, statuses: list[int]) -> Iterator[int]:
    """Yield the port of a server that answers a request with each of these statuses; with 0, it cuts the connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if status := statuses.pop(0):
                body = json.dumps({"metadata": {"uid": "1"}}).encode()
                self.send_response(status)
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_POST = do_PATCH = do_GET

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


def create_pod(cluster: Cluster) -> Any:
    answer = cluster.call("create the pod", "create_namespaced_pod", "training", {}, _preload_content=False)
    return json.loads(answer.data)


@pytest.mark.parametrize(
    "request_pod",
    [lambda cluster: read_pod(cluster, "one"), lambda cluster: set_cpu(cluster, "one", {}), create_pod],
    ids=["read", "resize", "create"],
)
def test_request_is_repeated_if_a_busy_server_refuses_it(request_pod: Callable[[Cluster], Any]) -> None:
    statuses = [429, 429, 200]
    with server(statuses=statuses) as port:
        assert request_pod(cluster_at(port)) == {"metadata": {"uid": "1"}}
    assert statuses == []
