"""Deadlines count from the start of the run or the task, even if a date or this machine's clock is wrong."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import airflow.sdk.api.client  # noqa: F401, sets up logging, without the handlers of a test that has begun
import pytest

from paceline.operators._clock import origin, task_clock
from paceline.run.clock import SystemClock

NOW = datetime.now(timezone.utc)
MINUTE, YEAR = timedelta(minutes=1), timedelta(days=365)
CLOCK, LONG_S = SystemClock(), 1e6


@pytest.mark.parametrize(
    ("started", "due", "expected"),
    [
        (NOW - MINUTE, NOW - 2 * MINUTE, NOW - MINUTE),  # the usual case: started when due, or later
        (NOW - MINUTE, None, NOW - MINUTE),
        (NOW - YEAR, NOW - MINUTE, NOW - MINUTE),  # `airflow dags test DAG 2012-01-01`
    ],
)
def test_origin_of_a_run_is_not_before_the_run_was_due(started, due, expected):
    context = {"dag_run": SimpleNamespace(start_date=started, run_after=due)}
    assert origin(context, "run", CLOCK) == expected


def test_origin_is_not_in_the_future_and_can_be_the_start_of_the_task():
    context = {"dag_run": SimpleNamespace(start_date=NOW + YEAR, run_after=NOW)}
    assert origin(context, "run", CLOCK) <= datetime.now(timezone.utc)
    started = origin({"ti": SimpleNamespace(start_date=NOW - MINUTE)}, "task", CLOCK, LONG_S)
    assert abs(started - (NOW - MINUTE)) < MINUTE / 2


@pytest.mark.parametrize(("set_s", "elapsed_s"), [(600.0, 3.0), (-600.0, 0.0)])
def test_clock_set_after_the_start_of_the_task_does_not_count_as_elapsed_time(set_s, elapsed_s):
    """The process is 3 s old. Airflow recorded its start before the clock was set."""
    now = datetime.now(timezone.utc)
    context = {"ti": SimpleNamespace(start_date=now - timedelta(seconds=3.0 + set_s))}
    clock = SystemClock()
    counted_s = clock.now() - origin(context, "task", clock, 3.0).timestamp()
    assert counted_s == pytest.approx(elapsed_s, abs=300.0)


@pytest.fixture
def api_server(monkeypatch):
    """Start an API server whose clock differs from this machine's by ``ahead``, and return its settings."""
    settings = SimpleNamespace(ahead=timedelta(0), paths=[], now=lambda: datetime.now(timezone.utc))

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            settings.paths.append(self.path)
            self.send_response_only(200)
            self.send_header("Date", format_datetime(settings.now() + settings.ahead, usegmt=True))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/execution/"
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", url)
    monkeypatch.setattr("paceline.operators._clock._TIMEOUT_S", 60.0)
    yield settings
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("ahead", [10 * MINUTE, -10 * MINUTE])
def test_wrong_clock_of_a_worker_does_not_count_as_elapsed_time(api_server, caplog, ahead):
    """The run started 5 s ago in the API server's time. This machine's clock was set before the task started."""
    api_server.ahead = ahead
    run_started = datetime.now(timezone.utc) + ahead - timedelta(seconds=5)
    clock = task_clock(logging.getLogger("test"))
    context = {"dag_run": SimpleNamespace(start_date=run_started, run_after=run_started)}
    counted_s = clock.now() - origin(context, "run", clock).timestamp()
    assert api_server.paths == ["/execution/health"] * 2
    assert "using the API server's time" in caplog.text
    assert counted_s == pytest.approx(5.0, abs=300.0)


def test_small_difference_from_the_api_server_is_ignored(api_server, caplog):
    task_clock(logging.getLogger("test"))
    assert api_server.paths == ["/execution/health"] * 2
    assert not caplog.text


@pytest.mark.parametrize(
    ("server_ahead_s", "request_s", "differs"),
    [
        (-4, 0.0, True),
        (-4, 0.4, False),  # a busy server's Date header may be 2 s and ten times the request old
        (-10, 0.4, True),
        (4, 0.4, True),  # the header is never newer than the server's clock
    ],
)
def test_difference_that_a_slow_request_explains_is_ignored(
    api_server, caplog, monkeypatch, server_ahead_s, request_s, differs
):
    api_server.now = lambda: NOW
    api_server.ahead = timedelta(seconds=server_ahead_s)
    monotonic = iter((0.0, request_s))
    clocks = SimpleNamespace(time=NOW.timestamp, monotonic=lambda: next(monotonic))
    monkeypatch.setattr("paceline.operators._clock.time", clocks)
    task_clock(logging.getLogger("test"))
    assert api_server.paths == ["/execution/health"] * 2
    assert ("using the API server's time" in caplog.text) == differs


@pytest.mark.parametrize("url", ["", "/execution/", "http://127.0.0.1:9/execution/"])
def test_task_without_an_api_server_uses_the_clock_of_the_machine(monkeypatch, url, caplog):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", url)
    clock = task_clock(logging.getLogger("test"))
    assert abs(clock.now() - datetime.now(timezone.utc).timestamp()) < 60.0
    assert "API server" not in caplog.text
