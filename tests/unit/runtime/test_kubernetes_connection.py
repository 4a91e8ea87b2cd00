"""Connections to a cluster that vanishes without a word, over real sockets."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.kube_client import _TimeoutK8sApiClient
from kubernetes.client import ApiClient, Configuration

from paceline.errors import PacelineError, RuntimeUnavailableError
from paceline.runtime.kubernetes import _connection
from paceline.runtime.kubernetes._cluster import Cluster
from paceline.runtime.kubernetes._connection import open_command, prepare

CLIENTS = [ApiClient, lambda configuration: _TimeoutK8sApiClient(configuration, enable_tcp_keepalive=True)]
STDOUT, STDERR, END = 1, 2, 3


@contextmanager
def server(*, messages: list[tuple[int, bytes]], status: int = 101) -> Iterator[str]:
    """Yield the address of a server in which each command writes these messages and ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self.headers["Upgrade"]:
                self.answer(200, b"{}")
            elif status != 101:
                self.answer(status, json.dumps({"message": "no such container"}).encode())
            else:
                assert self.headers["Authorization"] == "Bearer secret"
                key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
                self.send_response(101)
                self.send_header("Upgrade", "websocket")
                self.send_header("Connection", "Upgrade")
                self.send_header("Sec-WebSocket-Protocol", self.headers["Sec-WebSocket-Protocol"])
                self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
                self.end_headers()
                for channel, data in [(STDOUT, b""), (STDERR, b""), *messages]:
                    self.wfile.write(bytes([0x82, len(data) + 1, channel]) + data)
                self.wfile.write(bytes([0x88, 0]))
                self.rfile.read()  # until the client leaves
                self.close_connection = True

        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{made.server_port}"
        finally:
            made.shutdown()


def client_at(address: str, make: Callable[[Configuration], ApiClient] = ApiClient) -> ApiClient:
    configuration = Configuration(host=address)
    configuration.api_key = {"authorization": "Bearer secret"}
    return make(configuration)


def silence_s(connected: Any) -> tuple[float, float]:
    """Return after how long the kernel ends a silent connection: without data to send, and with some."""
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    idle, every, count, unsent_ms = (
        connected.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    )
    return idle + every * count, unsent_ms / 1000


@pytest.mark.parametrize("make", CLIENTS, ids=["kubeconfig", "provider"])
@pytest.mark.parametrize("method", ["list_namespaced_pod", "read_namespaced_pod_log"])
def test_kernel_ends_the_connection_of_a_request_to_a_silent_server(
    make: Callable[[Configuration], ApiClient], method: str
) -> None:
    arguments = ["training"] if method == "list_namespaced_pod" else ["pod", "training"]
    with server(messages=[]) as address:
        cluster = Cluster(lambda: client_at(address, make), "training")
        response = cluster.call("read", method, *arguments, _preload_content=False)
        assert silence_s(response.connection.sock) == (20, 20)
        response.close()


@pytest.mark.parametrize("make", CLIENTS, ids=["kubeconfig", "provider"])
def test_kernel_ends_the_connection_of_a_command_on_a_silent_server(
    make: Callable[[Configuration], ApiClient],
) -> None:
    with server(messages=[]) as address:
        channels = open_command(prepare(client_at(address, make)), "training", "pod", "job", ["cat"])
        assert silence_s(channels.connection.sock) == (20, 20)
        channels.close()


def test_command_on_a_server_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "SILENCE_S", 1)
    with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for one in (first, second):  # they fill the queue of connections: packets of others are dropped
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        cluster = Cluster(lambda: client_at(f"http://127.0.0.1:{silent.getsockname()[1]}"), "training")
        with pytest.raises(RuntimeUnavailableError, match="could not ask: the cluster is not responding"):
            list(cluster.run("ask", "pod", ["true"]))


def test_lost_route_to_the_server_is_an_error_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(messages=[]) as address:
        channels = open_command(prepare(client_at(address)), "training", "pod", "job", ["cat"])

        def lose(*_: object, **__: object) -> None:
            raise OSError(113, "No route to host")

        monkeypatch.setattr(channels.connection, "send_binary", lose)
        with pytest.raises(ConnectionError, match="No route to host"):
            channels.send(b"data")
        channels.close()


def test_output_of_a_command_is_complete_also_if_its_messages_arrive_together() -> None:
    messages = [(STDOUT, b"one "), (STDERR, b"noise"), (STDOUT, b"two"), (END, b'{"status": "Success"}')]
    with server(messages=messages) as address:
        cluster = Cluster(lambda: client_at(address), "training")
        assert b"".join(cluster.run("ask", "pod", ["echo"], stdin=[b"input"])) == b"one two"


def test_empty_first_messages_are_no_output() -> None:
    with server(messages=[]) as address:
        channels = open_command(prepare(client_at(address)), "training", "pod", "job", ["cat"])
        channels.receive(10)
        assert not channels.has(STDOUT)
        channels.close()


def test_refused_command_says_what_the_cluster_says() -> None:
    with server(messages=[], status=500) as address:
        cluster = Cluster(lambda: client_at(address), "training")
        with pytest.raises(PacelineError, match="could not ask: the cluster failed: no such container"):
            list(cluster.run("ask", "pod", ["true"]))
