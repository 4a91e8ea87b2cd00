"""The client for Airflow's REST API retries or raises error responses."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from paceline.airflow.api import AirflowApi, AirflowApiError


class _Server(ThreadingHTTPServer):
    responses: list[tuple[int, object]]
    requests = 0
    resets = 0  # connections to reset instead of an answer


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.do_PATCH()

    def do_POST(self) -> None:
        self.do_PATCH()

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.resets > 0:
            self.server.resets -= 1
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        status, body = self.server.responses[min(self.server.requests, len(self.server.responses) - 1)]
        self.server.requests += 1
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def api(server: _Server) -> AirflowApi:
    return AirflowApi(f"http://127.0.0.1:{server.server_port}", {}, token="a token")


LOCKED = (500, {"detail": {"reason": "Database error", "message": "Serious error when handling your request."}})


def test_call_is_retried_if_the_database_is_locked(api, server):
    server.responses = [LOCKED, LOCKED, (200, {"state": "failed"})]
    assert api.api("PATCH", "/dags/some", {"is_paused": False}) == {"state": "failed"}
    assert server.requests == 3


def test_persistent_database_error_is_raised(api, server):
    server.responses = [LOCKED]
    with pytest.raises(AirflowApiError, match="Database error") as caught:
        api.api("PATCH", "/dags/some", {})
    assert caught.value.status == 500
    assert server.requests == 5


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_errors_other_than_a_locked_database_are_raised_immediately(api, server, status):
    server.responses = [(status, {"detail": "no"})]
    with pytest.raises(AirflowApiError, match=str(status)):
        api.api("PATCH", "/dags/some", {})
    assert server.requests == 1


def test_web_page_instead_of_json_is_an_error(api, server):
    server.responses = [(200, b"<!doctype html>")]
    with pytest.raises(
        AirflowApiError, match="/api/v2/dags/some: expected JSON, but the URL does not lead to Airflow's API"
    ):
        api.api("PATCH", "/dags/some", {})


def test_redirect_without_a_body_is_an_error(api, server):
    server.responses = [(308, b"")]
    with pytest.raises(AirflowApiError, match="redirected to None; use the URL of Airflow itself"):
        api.api("PATCH", "/dags/some", {})


def test_failed_login_names_the_user_and_not_the_password(server):
    server.responses = [(401, {"detail": "Invalid credentials"})]
    client = AirflowApi(f"http://127.0.0.1:{server.server_port}", {"ada": "hidden"}, user="ada")
    with pytest.raises(AirflowApiError, match="login of the user 'ada': POST /auth/token: 401 Invalid") as caught:
        client.api("GET", "/dags/some")
    assert (caught.value.status, "hidden" in str(caught.value)) == (401, False)


def test_question_is_asked_again_if_its_connection_ends_but_a_change_is_not(api, server):
    server.responses, server.resets = [(200, {"state": "failed"})], 1
    assert api.api("GET", "/dags/some") == {"state": "failed"}
    server.resets = 1
    with pytest.raises(httpx.TransportError):
        api.api("PATCH", "/dags/some", {})
    assert server.requests == 1
