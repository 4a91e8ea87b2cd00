"""The jobs of a triggerer share requests; a failed request concerns each of them, and a wrong secret only its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from paceline.airflow import steering
from paceline.airflow.steering import SteeredTask, Steering, SteeringError, TakenOverError, api_server_url

T = TypeVar("T")


class Server(ThreadingHTTPServer):
    """Answers each job with the values that it has written; refuses jobs whose secret is "old" or "ended"."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[list[dict[str, Any]]] = []
        self.failures: list[tuple[int, bytes]] = []
        self.hold: Callable[[list[dict[str, Any]]], None] = lambda jobs: None  # returns when the jobs may be answered

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/base"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        assert self.path == "/base/paceline/api/steering"
        jobs = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["jobs"]
        self.server.requests.append(jobs)
        self.server.hold(jobs)
        refused = {"old": {"values": None, "over": False}, "ended": {"values": None, "over": True}}
        answers = [refused.get(job["secret"], {"values": job.get("write", {}), "over": False}) for job in jobs]
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


def message(secret: str, number: int = 1) -> Callable[[], bytes]:
    return lambda: json.dumps({"secret": secret, "write": {"n": number}}).encode()


def send(server: Server, *jobs: tuple[str, int], rounds: int = 1) -> list[Any]:
    async def send_all() -> list[Any]:
        steering, results = Steering(server.url, every_s=0.01), []
        for _ in range(rounds):
            answers = [steering.send(message(secret, number)) for secret, number in jobs]
            results += await asyncio.gather(*answers, return_exceptions=True)
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
    turns: list[float] = []
    pause = Steering._pause

    async def count(self: Steering, next_s: float) -> None:
        turns.append(next_s)
        await pause(self, next_s)

    monkeypatch.setattr(Steering, "_pause", count)
    assert len(send(server, *((str(number), number) for number in range(jobs)), rounds=3)) == 3 * jobs
    assert [len(request) for request in server.requests] == requests
    assert sorted(set(turns)) == turns, "each request has a turn of its own"


def test_job_that_another_process_steers_is_told_alone(server: Server) -> None:
    first, second, third = send(server, ("old", 1), ("new", 2), ("ended", 3))
    assert isinstance(first, TakenOverError)
    assert not first.over
    assert second == {"n": 2}
    assert isinstance(third, TakenOverError)
    assert third.over


def test_error_while_a_message_is_made_is_an_error_of_its_job_alone(server: Server) -> None:
    async def exchange() -> list[Any]:
        steering = Steering(server.url, every_s=0.01)
        answers = [steering.send(make) for make in ({}.popitem, message("a"))]  # the first raises a KeyError
        return await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 60.0)

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
        return await asyncio.gather(*(away.send(message("a")) for _ in range(3)), return_exceptions=True)

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
            await asyncio.wait_for(steering.send(message("a")), 60.0)
        monkeypatch.delenv("AIRFLOW__API__SSL_CERT")
        return await asyncio.wait_for(steering.send(message("a")), 60.0)

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


def test_message_that_is_urgent_does_not_wait_for_its_turn(server: Server) -> None:
    async def exchange() -> None:
        steering = Steering(server.url, every_s=86_400.0)
        assert await asyncio.wait_for(steering.send(message("first", 1)), 60.0) == {"n": 1}
        waits, urgent = steering.send(message("waits", 2)), steering.send(message("urgent", 3))
        assert steering.hurry(urgent)
        assert await asyncio.wait_for(urgent, 60.0) == {"n": 3}
        assert not steering.hurry(urgent), "it has been sent"
        assert not waits.done()
        waits.cancel()

    asyncio.run(exchange())
    assert [[job["secret"] for job in request] for request in server.requests] == [["first"], ["urgent"]]


def test_urgent_messages_share_the_request_of_a_turn(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of which all jobs get other devices at once does not keep other jobs from their turns."""
    monkeypatch.setattr(steering, "_MOST_JOBS", 3)

    async def exchange() -> None:
        steering = Steering(server.url, every_s=0.01)
        answers = {name: steering.send(message(name)) for name in "abcdef"}
        assert all(steering.hurry(answers[name]) for name in "fe")
        await asyncio.wait_for(asyncio.gather(*answers.values()), 60.0)

    asyncio.run(exchange())
    sent = ["".join(job["secret"] for job in request) for request in server.requests]
    assert sent == ["fea", "bcd"]


def test_exchange_that_is_on_its_way_makes_the_next_one_urgent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def exchange() -> None:
        loop = asyncio.get_running_loop()
        one = Steering(server.url, every_s=86_400.0)
        monkeypatch.setitem(Steering._of_loop, loop, one)
        task = SteeredTask(a_task(), "a")

        def take() -> dict[str, str | None]:
            loop.call_soon(task.hurry)
            return {"pace": '"\\u2026"'}

        for _ in range(3):  # each of them is urgent for the next
            assert await asyncio.wait_for(task.exchange(take, ["deadline"]), 60.0) == {"pace": '"\\u2026"'}

    asyncio.run(exchange())
    (job,) = server.requests[0]
    assert (job["task_id"], job["map_index"], job["read"]) == ("t", -1, ["deadline"])


def test_many_jobs_get_an_error_one_after_another(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a thousand jobs logs that the server is away: between them, the event loop does other things."""
    monkeypatch.setattr(steering, "_AT_ONCE", 2)
    server.failures.append((500, b"{}"))
    failed: list[int] = []

    async def exchange() -> list[int]:
        one, found = Steering(server.url, every_s=0.01), []
        answers = [one.send(message("a")) for _ in range(7)]
        for answer in answers:
            answer.add_done_callback(lambda answer: failed.append(1))
        while not all(answer.done() for answer in answers):
            await asyncio.sleep(0)
            found.append(sum(answer.done() for answer in answers))
        await asyncio.gather(*answers, return_exceptions=True)
        return found

    found = asyncio.run(exchange())
    assert {2, 4, 6} <= set(found)
    assert len(failed) == 7


def test_certificates_are_loaded_in_a_thread(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[Thread] = []
    certificates = steering._certificates

    def load() -> Any:
        threads.append(current_thread())
        return certificates()

    monkeypatch.setattr(steering, "_certificates", load)
    assert send(server, ("a", 1)) == [{"n": 1}]
    assert threads
    assert main_thread() not in threads


def question(secret: str) -> bytes:
    return json.dumps({"secret": secret, "read": ["n"]}).encode()


async def soon(waits: Awaitable[T]) -> T:
    return await asyncio.wait_for(waits, 60.0)


def is_question(jobs: list[dict[str, Any]]) -> bool:
    return "read" in jobs[0]


def test_commands_do_not_wait_for_a_request_with_samples(server: Server) -> None:
    stored = Event()
    server.hold = lambda jobs: None if is_question(jobs) else wait_for(stored)

    async def exchange() -> None:
        steering, texts = Steering(server.url, every_s=0.01), asyncio.Queue[Any]()
        sample = steering.send(message("a"))
        with steering.listening(question("a"), texts.put_nowait):
            for _ in range(3):
                assert await soon(texts.get()) == {}
        assert not sample.done()
        stored.set()
        assert await soon(sample) == {"n": 1}

    asyncio.run(exchange())


def test_samples_do_not_wait_for_a_question(server: Server) -> None:
    answered, begun = Event(), asyncio.Event()

    async def exchange() -> None:
        steering, texts = Steering(server.url, every_s=0.01), asyncio.Queue[Any]()
        loop = asyncio.get_running_loop()

        def hold(jobs: list[dict[str, Any]]) -> None:
            if is_question(jobs):
                loop.call_soon_threadsafe(begun.set)
                wait_for(answered)

        server.hold = hold
        with steering.listening(question("a"), texts.put_nowait):
            await soon(begun.wait())
            for number in range(3):
                assert await soon(steering.send(message("a", number))) == {"n": number}
            assert texts.empty()
            assert sum(map(is_question, server.requests)) == 1, "the next question follows the answer"
            answered.set()
            assert await soon(texts.get()) == {}

    asyncio.run(exchange())


def test_jobs_that_listen_share_questions(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_MOST_QUESTIONS", 2)

    async def listen() -> None:
        steering, texts = Steering(server.url, every_s=0.01), [asyncio.Queue[Any]() for _ in range(3)]
        with ExitStack() as listening:
            for number, queue in enumerate(texts):
                listening.enter_context(steering.listening(question(str(number)), queue.put_nowait))
            for queue in texts:
                assert await soon(queue.get()) == {}

    asyncio.run(listen())
    assert [[job["secret"] for job in request] for request in server.requests[:2]] == [["0", "1"], ["2"]]


@pytest.mark.parametrize("failure", [(500, b"{}"), (200, b"no JSON"), (200, b"[]")])
def test_refused_or_failed_question_has_no_effect(server: Server, failure: tuple[int, bytes]) -> None:
    server.failures.append(failure)

    async def listen() -> None:
        steering, refused, texts = Steering(server.url, every_s=0.01), asyncio.Queue[Any](), asyncio.Queue[Any]()
        with steering.listening(question("old"), refused.put_nowait):
            with steering.listening(question("a"), texts.put_nowait):
                assert await soon(texts.get()) == {}
            assert refused.empty()

    asyncio.run(listen())


def test_answer_after_the_end_of_the_block_has_no_effect(server: Server) -> None:
    answered, begun = Event(), asyncio.Event()

    async def listen() -> None:
        steering, ended, texts = Steering(server.url, every_s=0.01), asyncio.Queue[Any](), asyncio.Queue[Any]()
        loop = asyncio.get_running_loop()

        def hold(jobs: list[dict[str, Any]]) -> None:
            loop.call_soon_threadsafe(begun.set)
            wait_for(answered)

        server.hold = hold
        with steering.listening(question("b"), texts.put_nowait):
            with steering.listening(question("a"), ended.put_nowait):
                await soon(begun.wait())
            answered.set()
            assert await soon(texts.get()) == {}
            assert ended.empty()
        assert len(server.requests[0]) == 2

    asyncio.run(listen())


def test_question_of_a_task_names_its_keys_and_the_other_tasks(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def listen() -> None:
        monkeypatch.setitem(Steering._of_loop, asyncio.get_running_loop(), Steering(server.url, every_s=0.01))
        task, texts = SteeredTask(a_task(), "a"), asyncio.Queue[Any]()
        task.watch(["server"])
        with task.listening(["deadline"], texts.put_nowait):
            assert await soon(texts.get()) == {}

    asyncio.run(listen())
    (job,) = server.requests[0]
    assert (job["task_id"], job["map_index"], job["secret"]) == ("t", -1, "a")
    assert (job["read"], job["tasks"], job.get("write")) == (["deadline"], ["server"], None)


def wait_for(event: Event) -> None:
    assert event.wait(60.0)


def a_task() -> Any:
    return SimpleNamespace(id=uuid4(), dag_id="d", run_id="r", task_id="t", map_index=None)
