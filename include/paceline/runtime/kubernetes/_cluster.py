"""One namespace of a cluster: requests with Paceline's errors, and commands in pods."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError, JobLostError, PacelineError, RuntimeUnavailableError
from paceline.runtime.kubernetes._connection import Channels, open_command, prepare

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

CONTAINER = "job"
_EXEC_TIMEOUT_S = 60.0  # without an answer from a command
_REQUEST_TIMEOUT_S = (10.0, 30.0)  # to connect, and for an answer
_PIECE_BYTES = 64 * 1024


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
                client = self._api("CoreV1Api").api_client
                opened = open_command(client, self.namespace, pod, CONTAINER, command)
        except _TokenRejectedError:
            self._client = None  # a retry reads the credentials anew
            raise
        with _translated(request), contextlib.closing(opened) as channels:
            for piece in _pieces(stdin):
                channels.send(piece)
                channels.receive(0)
                if channels.has(Channels.STDOUT):  # the command has ended early
                    break
            errors, heard_s = b"", time.monotonic()
            while channels.is_open:
                channels.receive(timeout_s=1.0)
                if output := channels.take(Channels.STDOUT):
                    heard_s = time.monotonic()
                    yield output
                errors = (errors + channels.take(Channels.STDERR))[-2000:]
                if time.monotonic() - heard_s > _EXEC_TIMEOUT_S:
                    raise RuntimeUnavailableError(f"could not {request}: the pod does not answer")
            yield channels.take(Channels.STDOUT)
            end = channels.take(Channels.END)
        _check_end(request, end, errors.decode(errors="replace").strip().rpartition("\n")[2])

    def _api(self, name: str) -> Any:
        from kubernetes import client

        if self._client is None:
            with _translated("connect to the cluster"):
                self._client = prepare(self._connect())
        return getattr(client, name)(self._client)


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), _PIECE_BYTES):
            yield chunk[start : start + _PIECE_BYTES]


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
        status = error.status
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
    >>> explain(SimpleNamespace(status=500, body=None, reason="Internal Server Error"))
    '500 Internal Server Error'
    """
    try:
        message = str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return " ".join(map(str, filter(None, [error.status, error.reason, error.body])))
    if message.endswith(
        "is forbidden: "
    ):  # a refused command: the only refusal whose reason the cluster does not state
        message += 'cannot create resource "pods/exec" in API group ""'
    return message
