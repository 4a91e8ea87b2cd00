"""A local S3 server that can lose responses: the server executes a request, but disconnects instead of responding."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from upath import UPath
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_BUCKET = "models"
_CHANGING_METHODS = {"DELETE", "POST", "PUT"}


class S3Server:
    """A running server, see :func:`serve`.

    Attributes
    ----------
    changes:
        Method and path of each request that has changed the bucket.
    lost:
        Indices in ``changes`` of the requests whose responses the server loses.
    refused:
        Indices in ``changes`` of the requests that the server refuses.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.changes: list[str] = []
        self.lost: set[int] = set()
        self.refused: set[int] = set()
        self._lock = threading.Lock()
        self._s3 = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(host, 0, self._respond, threaded=True)

    def folder(self, name: str) -> UPath:
        """Return the path of the folder ``name`` in the server's bucket."""
        return UPath(f"s3://{_BUCKET}/{name}", **self.options)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of ``s3fs.S3FileSystem`` for this server."""
        region = {"region_name": "eu-west-1"}
        address = f"http://{self._server.host}:{self._server.port}"
        return {"key": "key", "secret": "secret", "endpoint_url": address, "client_kwargs": region}

    def _respond(self, environment: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environment["REQUEST_METHOD"] not in _CHANGING_METHODS:
            return list(self._s3(environment, start_response))
        with self._lock:  # a conditional put of S3 is atomic; moto checks the condition first and writes later
            index = len(self.changes)
            self.changes.append(f"{environment['REQUEST_METHOD']} {environment['PATH_INFO']}")
            if index in self.refused:
                start_response("403 Forbidden", [("Content-Type", "application/xml")])
                return [b"<Error><Code>AccessDenied</Code><Message>The quota is exceeded</Message></Error>"]
            response = list(self._s3(environment, start_response))
        if index in self.lost:
            environment["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return response


@contextmanager
def serve(host: str = "127.0.0.1") -> Iterator[S3Server]:
    """Run a server with a bucket for the duration of the block. All servers of a process share the bucket."""
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = S3Server(host)
    thread = threading.Thread(target=server._server.serve_forever, daemon=True)
    thread.start()
    bucket = UPath(f"s3://{_BUCKET}", **server.options)
    bucket.mkdir(exist_ok=True)
    server.changes.clear()
    try:
        yield server
    finally:
        server._server.shutdown()
        thread.join()
