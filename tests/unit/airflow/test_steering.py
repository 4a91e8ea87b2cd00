"""The jobs of a triggerer share requests; a failed request concerns each of them, and a wrong secret only its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from paceline.airflow import steering
from paceline.airflow.steering import Steering, SteeringError, TakenOverError, api_server_url


class Server(ThreadingHTTPServer):
    """Answers each job with the values that it has written; refuses jobs whose secret is "old" or "ended"."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[list[dict[str, Any]]] = []
        self.failures: list[tuple[int, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/base"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        assert self.path == "/base/paceline/api/steering"
        jobs = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["jobs"]
        self.server.requests.append(jobs)
        refused = {"old": {"values": None, "over": False}, "ended": {"values": None, "over": True}}
        answers = [refused.get(job["secret"], {"values": job["write"], "over": False}) for job in jobs]
        status, body = (200, json.dumps(answers).encode())
        if self.server.failures:
            status, body = self.server.failures.pop(0)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def send(server: Server, *jobs: tuple[str, int], rounds: int = 1) -> list[Any]:
    async def send_all() -> list[Any]:
        steering, results = Steering(server.url, every_s=0.01), []
        for _ in range(rounds):
            exchanges = [
                steering.exchange(partial(dict, secret=secret, write={"n": number})) for secret, number in jobs
            ]
            results += await asyncio.gather(*exchanges, return_exceptions=True)
        return results

    return asyncio.run(send_all())


def test_jobs_that_wait_together_share_a_request(server: Server) -> None:
    jobs = [(str(number), number) for number in range(100)]
    assert send(server, *jobs) == [{"n": number} for number in range(100)]
    assert [len(request) for request in server.requests] == [100]


@pytest.mark.parametrize(("jobs", "requests"), [(2, [2, 2, 2]), (3, [2, 1, 2, 1, 2, 1])])
def test_requests_of_a_round_are_spread_over_its_time(
    server: Server, monkeypatch: pytest.MonkeyPatch, jobs: int, requests: list[int]
) -> None:
    monkeypatch.setattr(steering, "_MOST_JOBS", 2)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def count(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", count)
    assert len(send(server, *((str(number), number) for number in range(jobs)), rounds=3)) == 3 * jobs
    assert [len(request) for request in server.requests] == requests
    assert len(pauses) >= 2


def test_job_that_another_process_steers_is_told_alone(server: Server) -> None:
    first, second, third = send(server, ("old", 1), ("new", 2), ("ended", 3))
    assert isinstance(first, TakenOverError)
    assert not first.over
    assert second == {"n": 2}
    assert isinstance(third, TakenOverError)
    assert third.over


def test_value_that_cannot_be_sent_is_an_error_of_its_job_alone(server: Server) -> None:
    first, second = send(server, ("a", object()), ("b", 2))  # type: ignore[arg-type]
    assert isinstance(first, SteeringError)
    assert second == {"n": 2}


def test_error_while_a_message_is_made_is_an_error_of_its_job_alone(server: Server) -> None:
    async def exchange() -> list[Any]:
        steering = Steering(server.url, every_s=0.01)
        jobs = [{}.popitem, partial(dict, secret="a", write={"n": 1})]  # the first raises a KeyError
        exchanges = [steering.exchange(job) for job in jobs]  # type: ignore[arg-type]
        return await asyncio.wait_for(asyncio.gather(*exchanges, return_exceptions=True), 60.0)

    first, second = asyncio.run(exchange())
    assert isinstance(first, SteeringError)
    assert second == {"n": 1}


@pytest.mark.parametrize("failure", [(500, b"{}"), (200, b"no JSON"), (200, b"{}"), (200, b"[1]"), (200, b"[]")])
def test_failed_request_is_an_error_of_each_job_and_the_next_one_succeeds(
    server: Server, failure: tuple[int, bytes]
) -> None:
    server.failures.append(failure)
    first, second, *others = send(server, ("a", 1), ("b", 2), rounds=2)
    assert isinstance(first, SteeringError)
    assert isinstance(second, SteeringError)
    assert others == [{"n": 1}, {"n": 2}]


def test_server_that_is_away_is_an_error_of_all_jobs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_MOST_JOBS", 1)
    attempts: list[int] = []
    send_batch = Steering._send_batch

    async def count(self: Steering, client: Any, batch: Any) -> None:
        attempts.append(len(batch))
        await send_batch(self, client, batch)

    monkeypatch.setattr(Steering, "_send_batch", count)

    async def exchange() -> list[Any]:
        away = Steering("http://127.0.0.1:1", every_s=0.01)
        return await asyncio.gather(*(away.exchange(lambda: {"secret": "a"}) for _ in range(3)), return_exceptions=True)

    results = asyncio.run(exchange())
    assert [type(result) for result in results] == [SteeringError] * 3
    assert "127.0.0.1:1" in str(results[2])
    assert attempts == [1]


def test_unreadable_certificates_are_an_error_until_they_can_be_read(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def exchange_twice() -> dict[str, Any]:
        steering = Steering(server.url, every_s=0.01)
        monkeypatch.setenv("AIRFLOW__API__SSL_CERT", str(tmp_path / "missing.pem"))
        with pytest.raises(SteeringError, match="FileNotFoundError"):
            await asyncio.wait_for(steering.exchange(lambda: {"secret": "a"}), 60.0)
        monkeypatch.delenv("AIRFLOW__API__SSL_CERT")
        return await asyncio.wait_for(steering.exchange(lambda: {"secret": "a", "write": {"n": 1}}), 60.0)

    assert asyncio.run(exchange_twice()) == {"n": 1}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "http://localhost:8080"),
        ({"AIRFLOW__API__BASE_URL": "https://flows.example/airflow/"}, "https://flows.example/airflow"),
        ({"AIRFLOW__CORE__EXECUTION_API_SERVER_URL": "http://api:8080/execution/"}, "http://api:8080"),
        (
            {"AIRFLOW__API__BASE_URL": "https://flows.example", "AIRFLOW__PACELINE__API_URL": "http://api:8080"},
            "http://api:8080",
        ),
    ],
)
def test_address_of_the_api_server(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], expected: str) -> None:
    for name in ("AIRFLOW__API__BASE_URL", "AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__PACELINE__API_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert api_server_url() == expected
