"""``MlflowHook``: what the registry sends to the server that an Airflow connection names."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from demo.airflow_process import free_port

from paceline.airflow.mlflow_hook import MlflowHook
from paceline.airflow.places import open_registry
from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, MlflowRegistry

Connect = Callable[..., MlflowHook]


class Server(ThreadingHTTPServer):
    """Accepts one ``Authorization`` header, and responds to every request like an MLflow server without models."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.accepted: str | None = None
        self.body = b"{}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        accepted = self.headers.get("Authorization") == self.server.accepted
        body = self.server.body if accepted else b"You are not authenticated."
        self.send_response(200 if accepted else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def connect(server: Server, monkeypatch: pytest.MonkeyPatch) -> Connect:
    def connect(**fields: Any) -> MlflowHook:
        connection = {"conn_type": "mlflow", "host": f"http://127.0.0.1:{server.server_port}", **fields}
        monkeypatch.setenv("AIRFLOW_CONN_MLFLOW_TEST", json.dumps(connection))
        return MlflowHook("mlflow_test")

    return connect


def test_user_and_password_are_sent_as_basic_authentication(server: Server, connect: Connect) -> None:
    server.accepted = f"Basic {base64.b64encode(b'ann:secret').decode()}"
    assert connect(login="ann", password="secret").test_connection() == (
        True,
        "The MLflow server accepts the connection",
    )
    assert connect(login="ann", password="wrong").test_connection() == (
        False,
        f"MLflow at http://127.0.0.1:{server.server_port}: You are not authenticated. (401)",
    )


def test_password_without_a_user_is_sent_as_a_bearer_token(server: Server, connect: Connect) -> None:
    server.accepted = "Bearer secret"
    assert connect(password="secret").test_connection()[0]
    assert connect(password="secret\n").test_connection()[0], "a secret from a file ends in a new line"
    assert not connect(login="ann", password="secret").test_connection()[0]


def test_connection_without_credentials_sends_none(server: Server, connect: Connect) -> None:
    assert connect().test_connection()[0]


def test_response_of_another_kind_of_server_is_reported(server: Server, connect: Connect) -> None:
    server.body = b"<html>Log in</html>"
    accepted, message = connect().test_connection()
    assert not accepted
    assert "got '<html>Log in</html>', expected a response of MLflow's REST API" in message


def test_host_and_port_of_a_connection_uri_are_accepted(server: Server, connect: Connect) -> None:
    assert connect(host="127.0.0.1", port=server.server_port).test_connection()[0]
    assert connect(host="http://127.0.0.1/", port=server.server_port).test_connection()[0]
    assert connect(host="http://127.0.0.1/team", port=server.server_port, extra={"verify": "false"}).test_connection()[
        0
    ]
    assert connect(host="127.0.0.1", port=server.server_port, schema="ftp").test_connection() == (
        False,
        f"url of mlflow_test: got 'ftp://127.0.0.1:{server.server_port}', expected the URL of an MLflow server, "
        "such as http://localhost:5000",
    )


def test_server_that_does_not_respond_is_named_without_the_password(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.registry._mlflow_server._ATTEMPTS", 1)
    closed = free_port()
    accepted, message = connect(host=f"http://ann:secret@127.0.0.1:{closed}/mlflow").test_connection()
    assert not accepted
    assert message.startswith(f"MLflow at http://127.0.0.1:{closed}/mlflow does not respond: ConnectError")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"host": ""}, "url of mlflow_test: got '', expected the URL of an MLflow server"),
        (
            {"extra": json.dumps({"verify": "/no/such/file"})},
            "verify of mlflow_test: got '/no/such/file', expected True",
        ),
        ({"extra": json.dumps(["verify"])}, "extra of mlflow_test: got .*, expected an object"),
        ({"extra": json.dumps({"verfy": False})}, r"extra of mlflow_test: got \['verfy'\], expected"),
    ],
)
def test_invalid_connection_is_rejected(connect: Connect, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        connect(**fields).get_conn()


def test_registry_is_a_folder_or_an_mlflow_connection(connect: Connect, tmp_path: Path) -> None:
    connect()
    assert isinstance(open_registry("mlflow://mlflow_test"), MlflowRegistry)
    assert isinstance(open_registry(str(tmp_path)), FileRegistry)
    for location in ("mlflow://", "mlflow://mlflow_test/flights"):
        with pytest.raises(InvalidInputError, match=r"registry: got 'mlflow://.*', expected mlflow:// and the id"):
            open_registry(location)


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({}, "http://mlflow:5000"),
        ({"host": "https://mlflow.example.com/team", "port": 8443}, "https://mlflow.example.com:8443/team"),
        (
            {"extra": {"ui_url": "https://anna:secret@models.example.com/mlflow/?x=1#/a"}},
            "https://models.example.com/mlflow",
        ),
        ({"extra": {"ui_url": "javascript:alert(1)"}}, None),
    ],
)
def test_page_of_the_server_is_its_host_or_the_url_for_browsers_without_credentials(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], url: str | None
) -> None:
    connection = {"conn_type": "mlflow", "host": "http://mlflow:5000", "login": "anna", "password": "secret", **fields}
    monkeypatch.setenv("AIRFLOW_CONN_MODELS", json.dumps(connection))
    assert MlflowHook("models").get_ui_url() == url
