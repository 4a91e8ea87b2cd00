"""One namespace of a cluster: requests with Paceline's errors, and commands in pods."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

CONTAINER = "job"
_EXEC_TIMEOUT_S = 60.0  # without an answer from a command
_REQUEST_TIMEOUT_S = (10.0, 30.0)  # to connect, and for an answer
_PIECE_BYTES = 64 * 1024
# The error of a refused command: the client puts the response into its reason.
_HANDSHAKE = re.compile(r"Handshake status (?P<status>\d+).*-\+-\+- (?P<body>.*)", re.DOTALL)
_STDIN, _STDOUT, _STDERR, _ERROR = range(4)  # channels of a command


class ConflictError(PacelineError):
    """Raised when an object of this name exists."""


class ForbiddenError(InvalidInputError):
    """Raised when the account has no right to a request, or the cluster's rules do not admit it."""


class QuotaError(RuntimeUnavailableError):
    """Raised when a quota of the namespace is full."""


class Cluster:
    """A namespace of a cluster.

    Parameters
    ----------
    connect:
        Function that returns a client. It is called again when the cluster rejects the client's token, which may have
        expired.
    namespace:
        Name of the namespace.
    """

    def __init__(self, connect: Callable[[], ApiClient], namespace: str) -> None:
        self.namespace = namespace
        self._connect = connect
        self._client: ApiClient | None = None

    def call(self, request: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of ``CoreV1Api``, or one such as ``NetworkingV1Api.create_namespaced_network_policy``.

        ``request``: a phrase for error messages, such as "create the pod".

        Raises
        ------
        RuntimeUnavailableError
            The cluster does not answer or has failed, or a quota is full. A retry may succeed.
        JobLostError
            The object does not exist.
        ConflictError
            An object of this name exists.
        PacelineError
            The cluster rejected the request.
        """
        api, _, name = method.rpartition(".")
        options.setdefault("_request_timeout", _REQUEST_TIMEOUT_S)
        for is_last in (False, True):
            try:
                with _translated(request):
                    return getattr(self._api(api or "CoreV1Api"), name)(*arguments, **options)
            except _TokenRejectedError:
                self._client = None
                if is_last:
                    raise
        raise AssertionError

    def run(self, request: str, pod: str, command: Sequence[str], stdin: Iterable[bytes] = ()) -> Generator[bytes]:
        """Run a command in a pod, and yield its output. ``stdin``: what the command reads before it writes.

        Raises the errors of ``call``; PacelineError with the last line of its error output if the command fails.
        """
        try:
            with _translated(request):
                opened = self._open(pod, command)
        except _TokenRejectedError:
            self._client = None  # a retry reads the credentials anew
            raise
        with _translated(request), contextlib.closing(opened) as channels:
            channels.sock.settimeout(_EXEC_TIMEOUT_S)
            for piece in _pieces(stdin):
                channels.write_channel(_STDIN, piece)
                if channels.peek_channel(_STDOUT):  # the command has ended early
                    break
            errors, heard_s = b"", time.monotonic()
            while channels.is_open():
                channels.update(timeout=1.0)
                if output := channels.read_channel(_STDOUT):
                    heard_s = time.monotonic()
                    yield output
                errors = (errors + channels.read_channel(_STDERR))[-2000:]
                if time.monotonic() - heard_s > _EXEC_TIMEOUT_S:
                    raise RuntimeUnavailableError(f"could not {request}: the pod does not answer")
            yield channels.read_channel(_STDOUT)
            end = channels.read_channel(_ERROR)
        _check_end(request, end, errors.decode(errors="replace").strip().rpartition("\n")[2])

    def _open(self, pod: str, command: Sequence[str]) -> Any:
        from kubernetes.client import ApiClient, CoreV1Api
        from kubernetes.stream import stream

        # `stream` replaces a method of its client for the time of the call, so it gets one of its own.
        api = CoreV1Api(ApiClient(self._api("CoreV1Api").api_client.configuration))
        options = {"stdin": True, "stdout": True, "stderr": True, "tty": False, "binary": True}
        method = api.connect_get_namespaced_pod_exec
        names = {"container": CONTAINER, "command": list(command)}
        try:
            return stream(method, pod, self.namespace, **names, **options, _preload_content=False)
        except AttributeError as error:  # raised by the client while it handles the actual error, which has no body
            raise error.__context__ or error from None

    def _api(self, name: str) -> Any:
        from kubernetes import client

        if self._client is None:
            with _translated("connect to the cluster"):
                self._client = _without_warnings(self._connect())
        return getattr(client, name)(self._client)


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), _PIECE_BYTES):
            yield chunk[start : start + _PIECE_BYTES]


def _without_warnings(client: ApiClient) -> ApiClient:
    """Return the client without urllib3's repetitions of failed connections: each logs a warning, and callers retry.

    A request that a busy server refuses, with the time of the next attempt, is still repeated.
    """
    from kubernetes.client.rest import RESTClientObject
    from urllib3 import Retry

    client.configuration.retries = Retry(3, connect=0, read=0, other=0)
    client.rest_client = RESTClientObject(client.configuration)
    return client


class _TokenRejectedError(RuntimeUnavailableError):
    pass


def _check_end(request: str, end: bytes, last_error: str) -> None:
    try:
        status = json.loads(end)
    except ValueError:  # the connection was cut before the command ended
        raise RuntimeUnavailableError(f"could not {request}: the connection to the pod was interrupted") from None
    if status.get("status") == "Success":
        return
    if status.get("reason") != "NonZeroExitCode":  # the command did not run: its container is starting or ending
        raise RuntimeUnavailableError(f"could not {request}: {status.get('message')}")
    if "137" in [cause.get("message") for cause in status["details"]["causes"]]:
        raise RuntimeUnavailableError(f"could not {request}: the command was killed, maybe with its container")
    raise PacelineError(f"could not {request}: {last_error or status.get('message')}")


@contextlib.contextmanager
def _translated(request: str) -> Iterator[None]:
    import urllib3.exceptions
    import websocket
    from kubernetes.client import ApiException
    from kubernetes.config import ConfigException

    try:
        yield
    except ApiException as error:
        reason = explain(error)
        handshake = _HANDSHAKE.match(str(error.reason))
        status = int(handshake["status"]) if handshake else error.status
        if status == 401:
            raise _TokenRejectedError(f"could not {request}: the cluster rejected the token: {reason}") from error
        if status == 404:
            raise JobLostError(f"could not {request}: {reason}") from error
        if status == 409:
            raise ConflictError(f"could not {request}: {reason}") from error
        if status == 403 and "exceeded quota" in reason:
            raise QuotaError(f"could not {request}: {reason}") from error
        if status == 403:
            raise ForbiddenError("runtime", request, f"what the cluster allows: {reason}") from error
        if status in (0, 429) or status is None or status >= 500:
            raise RuntimeUnavailableError(f"could not {request}: the cluster failed: {reason}") from error
        raise PacelineError(f"could not {request}: the cluster rejected the request: {reason}") from error
    except (urllib3.exceptions.HTTPError, websocket.WebSocketException, ConnectionError, TimeoutError) as error:
        raise RuntimeUnavailableError(f"could not {request}: the cluster is not responding: {error}") from error
    except ConfigException as error:
        raise InvalidInputError("runtime.kubernetes_conn_id", str(error), "a connection to a cluster") from error


def read_pod(cluster: Cluster, name: str, uid: str | None = None) -> dict[str, Any] | None:
    """Return a pod as the cluster describes it; ``None`` if it does not exist or has another ``uid``."""
    try:
        found = cluster.call("read the pod", "read_namespaced_pod", name, cluster.namespace, _preload_content=False)
    except JobLostError:
        return None
    pod: dict[str, Any] = json.loads(found.data)
    return pod if uid in (None, pod["metadata"]["uid"]) else None


def list_pods(cluster: Cluster, selector: str) -> list[dict[str, Any]]:
    """Return the pods whose labels match a selector, as the cluster describes them."""
    options = {"label_selector": selector, "_preload_content": False}
    found = cluster.call("list the pods", "list_namespaced_pod", cluster.namespace, **options)
    pods: list[dict[str, Any]] = json.loads(found.data)["items"]
    return pods


def explain(error: Any) -> str:
    """Return the cluster's message of an ``ApiException``.

    >>> from types import SimpleNamespace
    >>> explain(SimpleNamespace(body=None, reason="Handshake status 500 -+-+- {'date': ''} -+-+- container not found"))
    'Handshake status 500: container not found'
    """
    handshake = _HANDSHAKE.match(str(error.reason))
    try:
        message = str(json.loads(handshake["body"] if handshake else error.body)["message"])
    except (TypeError, ValueError, KeyError):
        # The error of a command has all headers of the answer.
        start, *_, answer = f"{error.reason} -+-+- ".split(" -+-+- ")[:3]
        return f"{start}: {answer}" if answer else f"{error.status} {start}"
    if handshake and message.endswith("is forbidden: "):  # the only refusal whose reason the cluster does not state
        message += 'cannot create resource "pods/exec" in API group ""'
    return message
