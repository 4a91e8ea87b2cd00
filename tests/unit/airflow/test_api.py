"""The client of Airflow's REST API where Airflow does not answer as it should."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from paceline.airflow.api import AirflowApi, AirflowApiError


class _Server(ThreadingHTTPServer):
    answers: list[tuple[int, object]]
    asked = 0


class _Answer(BaseHTTPRequestHandler):
    server: _Server

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, body = self.server.answers[min(self.server.asked, len(self.server.answers) - 1)]
        self.server.asked += 1
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def api(server: _Server) -> AirflowApi:
    return AirflowApi(f"http://127.0.0.1:{server.server_port}", {}, token="a token")


COLLISION = (500, {"detail": {"reason": "Database error", "message": "Serious error when handling your request."}})


def test_a_call_that_met_another_writer_is_made_again(api, server):
    server.answers = [COLLISION, COLLISION, (200, {"state": "failed"})]
    assert api.api("PATCH", "/dags/some", {"is_paused": False}) == {"state": "failed"}
    assert server.asked == 3


def test_a_database_that_stays_broken_is_reported(api, server):
    server.answers = [COLLISION]
    with pytest.raises(AirflowApiError, match="Database error") as caught:
        api.api("PATCH", "/dags/some", {})
    assert caught.value.status == 500
    assert server.asked == 5


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_any_other_error_is_reported_at_once(api, server, status):
    server.answers = [(status, {"detail": "no"})]
    with pytest.raises(AirflowApiError, match=str(status)):
        api.api("PATCH", "/dags/some", {})
    assert server.asked == 1
