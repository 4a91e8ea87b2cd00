"""Exchanges the live states of all jobs that a triggerer steers with Airflow's API server, about once a second.

A trigger cannot reach its task's state store, and what it can say to Airflow passes one process, at about ten
milliseconds a message. So the jobs share requests to the route of ``paceline.plugins.web.steering``. The server takes
long to store the samples of many jobs. Therefore one request asks for the commands to all jobs, and does not wait for
the requests with samples.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

from airflow.sdk.configuration import conf
from pydantic_core import from_json, to_json
from tenacity import AsyncRetrying, stop_after_delay, wait_random_exponential

from paceline.contract import STEERING_XCOM, hash_secret

if TYPE_CHECKING:
    import httpx

_EVERY_S = 1.0
_SOON_S = 0.1
_TIMEOUT_S = 10.0
_MOST_JOBS = 100  # in a request
_MOST_QUESTIONS = 1_000  # in a request that only reads
_AT_ONCE = 20  # jobs that get an error in one pass of the event loop: each logs it, and asks again
_Texts = dict[str, "str | None"]
_Waiting = dict["asyncio.Future[_Texts]", Callable[[], bytes]]  # answers, and what makes the jobs' messages
_RETRY_S = 60.0


class SteeringError(Exception):
    """Raised if a live state could not be exchanged this time."""


class TakenOverError(Exception):
    """Raised if this process may no longer steer the job: another one does, or the task's try is ``over``."""

    def __init__(self, *, over: bool = False) -> None:
        super().__init__("the task's try is over" if over else "another process steers this job, or continues its try")
        self.over = over


class TaskKey(Protocol):
    """The task instance of a trigger."""

    id: Any
    dag_id: str
    run_id: str
    task_id: str
    map_index: int | None


class Steering:
    """The requests of the jobs that this event loop steers.

    Parameters
    ----------
    url:
        Base URL of the API server.
    every_s:
        Seconds between two requests of a job; those of many jobs are spread over this time.
    """

    _of_loop: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Steering]] = WeakKeyDictionary()

    def __init__(self, url: str, every_s: float = _EVERY_S) -> None:
        self._url, self._every_s = f"{url.rstrip('/')}/paceline/api/steering", every_s
        self._waiting: _Waiting = {}
        self._urgent: _Waiting = {}
        self._hurried = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._listeners: dict[bytes, Callable[[_Texts], None]] = {}  # by their messages
        self._asking: asyncio.Task[None] | None = None

    @classmethod
    def of_this_loop(cls) -> Steering:
        """Return the steering of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in cls._of_loop:
            cls._of_loop[loop] = cls(api_server_url())
        return cls._of_loop[loop]

    def send(self, make: Callable[[], bytes]) -> asyncio.Future[dict[str, str | None]]:
        """Send the message of a job with the next request; return the texts of the answer as a future.

        ``make`` returns the message as JSON, see ``paceline.plugins.web.steering.SteeredJob``. It is called in the
        event loop, when the request is made. The future raises SteeringError and TakenOverError.
        """
        answer: asyncio.Future[_Texts] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = make
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())
        return answer

    def hurry(self, answer: asyncio.Future[dict[str, str | None]]) -> bool:
        """Send the message whose ``answer`` is awaited at once; return false if it is being sent already."""
        make = self._waiting.pop(answer, None)
        if make is not None:
            self._urgent[answer] = make
            self._hurried.set()
        return answer in self._urgent

    @contextmanager
    def listening(self, message: bytes, receive: Callable[[dict[str, str | None]], None]) -> Iterator[None]:
        """Send ``message``, which only reads, about twice a second during the block; pass the texts to ``receive``.

        The next question follows the answer, so that no job receives older texts after newer ones. A question that
        fails or is refused has no effect, because the message of ``send`` meets the same error.
        """
        self._listeners[message] = receive
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all())
        try:
            yield
        finally:
            del self._listeners[message]

    async def _ask_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._listeners:
            with suppress(Exception):
                async with await asyncio.to_thread(self._new_client) as client:
                    while self._listeners:
                        next_s = loop.time() + self._every_s / 2  # commands are urgent, and reading is cheap
                        await self._ask(client)
                        await asyncio.sleep(next_s - loop.time())
            await asyncio.sleep(self._every_s)

    async def _ask(self, client: httpx.AsyncClient) -> None:
        messages = list(self._listeners)
        for start in range(0, len(messages), _MOST_QUESTIONS):
            batch = messages[start : start + _MOST_QUESTIONS]
            for message, (texts, _) in zip(batch, await self._post(client, batch), strict=True):
                if texts is not None and message in self._listeners:
                    self._listeners[message](texts)

    async def _send_all(self) -> None:
        while self._waiting or self._urgent:
            try:
                # In a thread, because loading the certificates takes some ten milliseconds.
                async with await asyncio.to_thread(self._new_client) as client:
                    await self._send_in_turn(client)
            except Exception as error:  # no client, for example because the file of certificates cannot be read
                await self._fail(self._take_all(), error)
                await asyncio.sleep(self._every_s)

    async def _send_in_turn(self, client: httpx.AsyncClient) -> None:
        loop, next_s = asyncio.get_running_loop(), 0.0
        while self._waiting or self._urgent:
            now_s, batch = loop.time(), _take(self._urgent, _MOST_JOBS)
            if not self._urgent:
                self._hurried.clear()
            if now_s >= next_s:
                next_s = now_s + self._every_s * min(1.0, _MOST_JOBS / max(len(self._waiting), 1))
                batch |= _take(self._waiting, _MOST_JOBS - len(batch))
            if batch:
                await self._send_batch(client, batch)
            await self._pause(next_s)

    async def _pause(self, next_s: float) -> None:
        """Wait for the next turn, or for a moment after a message has become urgent."""
        loop = asyncio.get_running_loop()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurried.wait(), max(next_s - loop.time(), 0.0))
            await asyncio.sleep(min(_SOON_S, max(next_s - loop.time(), 0.0)))

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        from paceline.airflow.api import is_local

        uses_proxy = not is_local(self._url)
        return httpx.AsyncClient(verify=_certificates(), trust_env=uses_proxy, timeout=_TIMEOUT_S)

    async def _send_batch(self, client: httpx.AsyncClient, batch: _Waiting) -> None:
        import httpx

        messages, answers = await self._make_messages(batch)
        try:
            _distribute(await self._post(client, messages), answers)
        except httpx.TransportError as error:  # each of the other requests would take as long to fail
            await self._fail([*answers, *self._take_all()], error)
        except Exception as error:
            await self._fail(answers, error)

    async def _post(self, client: httpx.AsyncClient, messages: Sequence[bytes]) -> list[tuple[_Texts | None, bool]]:
        body = b'{"jobs":[' + b",".join(messages) + b"]}"
        response = await client.post(self._url, content=body, headers={"Content-Type": "application/json"})
        response.raise_for_status()
        return [(answer["values"], answer["over"]) for answer in from_json(response.content)]

    def _take_all(self) -> _Waiting:
        return _take(self._urgent, len(self._urgent)) | _take(self._waiting, len(self._waiting))

    async def _make_messages(self, batch: _Waiting) -> tuple[list[bytes], list[asyncio.Future[_Texts]]]:
        messages, answers = [], []
        for answer, make in batch.items():
            if answer.done():  # the trigger has been cancelled
                continue
            try:
                messages.append(make())
                answers.append(answer)
            except Exception as error:  # a value that cannot be sent would fail the request of all jobs
                await self._fail([answer], error)
        return messages, answers

    async def _fail(self, answers: Iterable[asyncio.Future[_Texts]], error: Exception) -> None:
        """Answer each job with an error: without an answer, its trigger would wait for ever."""
        for number, answer in enumerate(answers, 1):
            if not answer.done():
                answer.set_exception(SteeringError(f"{self._url}: {error!r}"))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)


def _take(waiting: _Waiting, most: int) -> _Waiting:
    """Remove the first messages; return them."""
    return {answer: waiting.pop(answer) for answer in list(islice(waiting, most))}


def _distribute(answers: Sequence[tuple[_Texts | None, bool]], futures: Sequence[asyncio.Future[_Texts]]) -> None:
    for (texts, over), future in zip(answers, futures, strict=True):
        if future.done():  # the trigger has been cancelled
            continue
        if texts is None:
            future.set_exception(TakenOverError(over=over))
        else:
            future.set_result(texts)


class SteeredTask:
    """The live state of a deferred task, as the process that steers its job sees it. Create it with ``take_over``.

    Parameters
    ----------
    task:
        The task instance.
    secret:
        The text whose hash is the task's XCom.
    """

    def __init__(self, task: TaskKey, secret: str) -> None:
        self._head = to_json({**_place(task), "task_instance_id": str(task.id), "secret": secret})[:-1]
        self._tasks: Sequence[str] = ()
        self._answer: asyncio.Future[_Texts] | None = None
        self._is_urgent = False

    @classmethod
    async def take_over(cls, task: TaskKey) -> SteeredTask:
        """Steer the job of a deferred task from now on, instead of any other process.

        Repeat it for a minute if Airflow fails, for example because another process has locked its database.
        """
        from airflow.sdk.bases.xcom import BaseXCom  # an XCom backend could store the value elsewhere

        secret = secrets.token_urlsafe(32)
        async for attempt in AsyncRetrying(
            stop=stop_after_delay(_RETRY_S), wait=wait_random_exponential(max=5.0), reraise=True
        ):
            with attempt:
                await BaseXCom.aset(STEERING_XCOM, hash_secret(secret), **_place(task))
        return cls(task, secret)

    async def exchange(
        self, take: Callable[[], Mapping[str, str | None]], read: Sequence[str]
    ) -> dict[str, str | None]:
        """Write values of the live state, and return others, within the next seconds. All are JSON texts.

        ``take`` returns the values to write. It is called when they are sent, so that they are the newest.

        Raises SteeringError if it has to be repeated, and TakenOverError if another process steers the job.
        """
        answer = self._answer = Steering.of_this_loop().send(lambda: self._message(take(), read))
        if self._is_urgent:
            self.hurry()
        return await answer

    def watch(self, tasks: Sequence[str]) -> None:
        """Receive also the states of these tasks of the run, as ``TASK_STATES``, while ``listening``."""
        self._tasks = tasks

    @contextmanager
    def listening(self, read: Sequence[str], receive: Callable[[dict[str, str | None]], None]) -> Iterator[None]:
        """Pass the values of keys to ``receive`` about twice a second during the block, as JSON texts.

        They do not wait for values that this or another job writes.
        """
        message = self._head + b',"read":' + to_json(read) + b',"tasks":' + to_json(self._tasks) + b"}"
        with Steering.of_this_loop().listening(message, receive):
            yield

    def hurry(self) -> None:
        """Send this exchange, or the next one if it is being sent, without waiting for the turn of the job."""
        answer = self._answer
        self._is_urgent = answer is None or not Steering.of_this_loop().hurry(answer)

    def _message(self, write: Mapping[str, str | None], read: Sequence[str]) -> bytes:
        # Each value is the text that the server stores, so that neither process builds it again.
        return self._head + b',"write":' + to_json(write) + b',"read":' + to_json(read) + b"}"


def api_server_url() -> str:
    """Return the base URL of the API server: ``[paceline] api_url``, by default that of Airflow's settings."""
    for section, option in (("paceline", "api_url"), ("api", "base_url"), ("core", "execution_api_server_url")):
        url: str = conf.get(section, option, fallback="") or ""
        if url.startswith("http"):
            return url.rstrip("/").removesuffix("/execution")
    return "http://localhost:8080"


def _place(task: TaskKey) -> dict[str, Any]:
    index = -1 if task.map_index is None else task.map_index
    return {"dag_id": task.dag_id, "run_id": task.run_id, "task_id": task.task_id, "map_index": index}


def _certificates() -> ssl.SSLContext:
    context = ssl.create_default_context()
    if file := conf.get("api", "ssl_cert", fallback=""):
        context.load_verify_locations(file)
    return context
