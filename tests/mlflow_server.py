"""A local MLflow server on SQLite, and a proxy that can lose its responses.

``make mlflow`` installs MLflow into its own environment, because its dependencies conflict with Airflow's.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from demo.airflow_process import free_port

from tests.waiting import until

PROGRAM = Path(__file__).parents[1] / "build" / "mlflow" / "bin" / "mlflow"

_CHANGING_METHODS = {"DELETE", "PATCH", "POST", "PUT"}
_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


class MlflowServer:
    """A running server, see :func:`serve`.

    Attributes
    ----------
    url:
        URL of the proxy in front of the server.
    artifacts:
        Folder in which the server stores the artifacts.
    changes:
        Method and path of each request that has changed something.
    lost:
        Indices in ``changes`` of the requests whose responses the proxy loses: the server executes the request, but
        the proxy disconnects instead of responding.
    refused:
        Indices in ``changes`` of the requests that the proxy refuses.
    """

    def __init__(self, folder: Path) -> None:
        self.artifacts = folder / "artifacts"
        self.changes: list[str] = []
        self.lost: set[int] = set()
        self.refused: set[int] = set()
        self._lock = threading.Lock()
        self._port = free_port()
        self._log = folder / "server.log"
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # the body would wait 40 ms for the acknowledgement of the headers

            def forward(self) -> None:
                server._forward(self)

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing."""

            do_GET = do_DELETE = do_PATCH = do_POST = do_PUT = forward

        self.proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.proxy.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.proxy.server_port}"
        arguments = {
            "--backend-store-uri": f"sqlite:///{folder / 'mlflow.db'}",
            "--artifacts-destination": str(self.artifacts),
            "--host": "127.0.0.1",
            "--port": str(self._port),
            "--workers": "1",
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "server", *(word for pair in arguments.items() for word in pair)],
                cwd=folder,
                env=os.environ | _ENVIRONMENT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", trust_env=False, timeout=300.0)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()[-4000:]
        try:
            return self._client.get("/health").is_success
        except httpx.TransportError:
            return False

    def get(self, path: str, **params: object) -> dict[str, Any]:
        """Call the server's REST API directly."""
        response = self._client.get(f"/api/2.0/mlflow{path}", params={key: str(value) for key, value in params.items()})
        return dict(response.raise_for_status().json())

    def post(self, path: str, body: object) -> dict[str, Any]:
        """Call the server's REST API directly."""
        return dict(self._client.post(f"/api/2.0/mlflow{path}", json=body).raise_for_status().json())

    def delete(self, path: str, body: object) -> None:
        """Call the server's REST API directly."""
        self._client.request("DELETE", f"/api/2.0/mlflow{path}", json=body).raise_for_status()

    def clear(self) -> None:
        """Forget the changes, and lose no more responses."""
        self.changes.clear()
        self.lost.clear()

    def stop(self) -> None:
        self.proxy.shutdown()
        self.proxy.server_close()
        self._client.close()
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()

    def _forward(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        kept = {"content-type", "accept", "authorization"}
        headers = {key: value for key, value in handler.headers.items() if key.lower() in kept}
        index = -1
        if handler.command in _CHANGING_METHODS:
            with self._lock:
                index = len(self.changes)
                self.changes.append(f"{handler.command} {handler.path}")
        if index in self.refused:
            response = httpx.Response(403, json={"error_code": "PERMISSION_DENIED", "message": "The quota is exceeded"})
        else:
            response = self._client.request(handler.command, handler.path, content=body, headers=headers)
        if index in self.lost:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        with suppress(ConnectionError):  # a killed client
            handler.send_response(response.status_code)
            handler.send_header("Content-Type", response.headers.get("Content-Type", "application/json"))
            handler.send_header("Content-Length", str(len(response.content)))
            handler.end_headers()
            handler.wfile.write(response.content)


@contextmanager
def serve(folder: Path) -> Iterator[MlflowServer]:
    """Run a server with an empty database in ``folder`` for the duration of the block."""
    server = MlflowServer(folder)
    thread = threading.Thread(target=server.proxy.serve_forever, daemon=True)
    thread.start()
    try:
        until(server.is_ready, "MLflow responds")
        yield server
    finally:
        server.stop()
        thread.join()
