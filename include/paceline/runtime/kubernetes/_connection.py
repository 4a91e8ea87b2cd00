"""Connections to a cluster's API server, for ``Cluster``: requests, and commands in pods.

A server that vanishes without a word, because its machine lost power or a firewall drops its packets, sends no end of a
connection. The kernel then ends the connection, and the next read or write fails like that of a cut connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

SILENCE_S = 20  # without an acknowledgement: the kernel then ends the connection
_PROBE_S = 5
_ANSWER_S = 30.0  # for the answer to the request for a command
_IDLE_S = 60.0  # for the rest of a message, and to send one
_PROTOCOL = "v4.channel.k8s.io"


def socket_options() -> list[tuple[int, int, int]]:
    """Return the options of a TCP connection that ends when its peer has been silent for ``SILENCE_S``.

    The peer's kernel acknowledges data and probes at once, whatever its processes do.
    """
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    values = {
        "TCP_KEEPIDLE": SILENCE_S // 2,
        "TCP_KEEPINTVL": _PROBE_S,
        "TCP_KEEPCNT": SILENCE_S // 2 // _PROBE_S,
        "TCP_USER_TIMEOUT": 1000 * SILENCE_S,  # for data that was sent, and for a new connection
    }
    for name, value in values.items():
        if (number := getattr(socket, name, None)) is not None:  # some systems lack some of them
            options.append((socket.IPPROTO_TCP, number, value))
    return options


def prepare(client: ApiClient) -> ApiClient:
    """Return the client with connections that notice a silent server, and without urllib3's repetitions.

    Each repetition of a failed connection logs a warning, and callers retry. A request that a busy server refuses, with
    the time of the next attempt, is still repeated, whatever its method: the server has done nothing.
    """
    from kubernetes.client.rest import RESTClientObject
    from urllib3 import Retry
    from urllib3.connection import HTTPConnection

    configuration = client.configuration
    configuration.retries = Retry(3, connect=0, read=0, other=0, allowed_methods=None)
    configuration.socket_options = [*HTTPConnection.default_socket_options, *socket_options()]
    client.rest_client = RESTClientObject(configuration)
    return client


def open_command(client: ApiClient, namespace: str, pod: str, container: str, command: Sequence[str]) -> Channels:
    """Start a command in a pod, and return its channels.

    Raises ``ApiException`` if the cluster refuses the command, WebSocketException or ConnectionError if it does not
    answer, as do the methods of the channels.
    """
    from kubernetes.client import ApiClient, CoreV1Api

    def request(method: str, url: str, *, query_params: Any, headers: Any, **_: Any) -> Channels:
        return Channels(_open(client.configuration, url, query_params, headers))

    # It opens a connection instead of sending the request, whose address and credentials the client has prepared.
    opener = ApiClient(client.configuration)
    opener.request = request
    channels: Channels = CoreV1Api(opener).connect_get_namespaced_pod_exec(
        pod,
        namespace,
        container=container,
        command=list(command),
        **{"stdin": True, "stdout": True, "stderr": True, "tty": False, "_preload_content": False},
    )
    return channels


class Channels:
    """The channels of a command in a pod, over one connection.

    Parameters
    ----------
    connection:
        The connection (``websocket.WebSocket``) on which the command has started.
    """

    STDIN, STDOUT, STDERR, END = range(4)

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.is_open = True
        self._received: dict[int, bytearray] = {}

    def send(self, data: bytes) -> None:
        """Send data to the command's input."""
        with _connection_errors():
            self.connection.send_binary(bytes([self.STDIN]) + data)

    def receive(self, timeout_s: float) -> None:
        """Receive one message, if there is one within ``timeout_s``."""
        from websocket import ABNF

        if not self._is_readable(timeout_s):
            return
        with _connection_errors():
            kind, frame = self.connection.recv_data_frame(control_frame=True)
        if kind == ABNF.OPCODE_CLOSE:
            self.is_open = False
        elif kind in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and frame.data:
            self._received.setdefault(frame.data[0], bytearray()).extend(frame.data[1:])

    def has(self, channel: int) -> bool:
        """Return whether data has been received on a channel since the last ``take``."""
        return bool(self._received.get(channel))  # each channel starts with an empty message

    def take(self, channel: int) -> bytes:
        """Return what has been received on a channel since the last call."""
        return bytes(self._received.pop(channel, b""))

    def close(self) -> None:
        """Close the connection, which ends the command."""
        self.is_open = False
        self.connection.close()

    def _is_readable(self, timeout_s: float) -> bool:
        pending = getattr(self.connection.sock, "pending", None)  # what TLS has decrypted already
        if pending is not None and pending():
            return True
        poll = select.poll()
        poll.register(self.connection.fileno(), select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))


def _open(configuration: Any, url: str, query: Any, headers: dict[str, str]) -> Any:
    """Return a connection for the channels of a command, with the client's certificates, credentials and proxy."""
    from kubernetes.client import ApiException
    from kubernetes.stream.ws_client import get_websocket_url, websocket_proxycare
    from websocket import WebSocket, WebSocketBadStatusException

    options: dict[str, Any] = {
        "header": {"Authorization": headers.get("authorization")},
        "subprotocols": [_PROTOCOL],
        "timeout": _ANSWER_S,
    }
    if configuration.proxy or configuration.proxy_headers:
        options = websocket_proxycare(options, configuration, url, headers)
    connection: Any = WebSocket(sslopt=_tls(configuration), sockopt=socket_options(), skip_utf8_validation=True)
    try:
        with _connection_errors():
            connection.connect(get_websocket_url(url, query), **options)
    except WebSocketBadStatusException as error:
        refusal = ApiException(status=error.status_code, reason=error.status_message)
        refusal.body = error.resp_body or b""
        raise refusal from error
    connection.settimeout(_IDLE_S)
    return connection


def _tls(configuration: Any) -> dict[str, Any]:
    import ssl

    import certifi

    options: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE, "check_hostname": False}
    if configuration.verify_ssl:
        options = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": configuration.ssl_ca_cert or certifi.where()}
        if configuration.assert_hostname is not None:
            options["check_hostname"] = configuration.assert_hostname
    values = {
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    return options | {name: value for name, value in values.items() if value}


@contextlib.contextmanager
def _connection_errors() -> Iterator[None]:
    """Raise errors of a socket, such as "no route to host", as ConnectionError."""
    try:
        yield
    except OSError as error:
        raise ConnectionError(str(error)) from error
