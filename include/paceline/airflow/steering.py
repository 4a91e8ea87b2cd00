"""Exchanges the live states of all jobs that a triggerer steers with Airflow's API server, about once a second.

A trigger cannot reach its task's state store, and what it can say to Airflow passes one process, at about ten
milliseconds a message. So the jobs share requests to the route of ``paceline.plugins.web.steering``.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

from airflow.sdk.configuration import conf
from pydantic_core import to_json
from tenacity import AsyncRetrying, stop_after_delay, wait_random_exponential

from paceline.contract import STEERING_XCOM, hash_secret

if TYPE_CHECKING:
    import httpx

_EVERY_S = 1.0
_TIMEOUT_S = 10.0
_MOST_JOBS = 100  # in a request: its answers occupy the event loop for some ten milliseconds
_Waiting = tuple[Callable[[], bytes], "asyncio.Future[dict[str, Any]]"]  # returns a job's message; its answer
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
        self._waiting: list[_Waiting] = []
        self._sending: asyncio.Task[None] | None = None

    @classmethod
    def of_this_loop(cls) -> Steering:
        """Return the steering of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in cls._of_loop:
            cls._of_loop[loop] = cls(api_server_url())
        return cls._of_loop[loop]

    async def exchange(self, job: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Send what ``job`` returns with the next request, and return the values of the answer.

        ``job`` is called when the request is made, see ``paceline.plugins.web.steering.SteeredJob``.

        Raises SteeringError and TakenOverError.
        """
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((lambda: _to_json(job()), answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())
        return await answer

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            try:
                async with self._new_client() as client:
                    while self._waiting:
                        next_s = loop.time() + self._every_s * min(1.0, _MOST_JOBS / len(self._waiting))
                        batch, self._waiting = self._waiting[:_MOST_JOBS], self._waiting[_MOST_JOBS:]
                        await self._send_batch(client, batch)
                        await asyncio.sleep(max(next_s - loop.time(), 0.0))
            except Exception as error:  # no client, for example because the file of certificates cannot be read
                waiting, self._waiting = self._waiting, []
                self._fail([future for _, future in waiting], error)
                await asyncio.sleep(self._every_s)

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        from paceline.airflow.api import is_local

        uses_proxy = not is_local(self._url)
        return httpx.AsyncClient(verify=_certificates(), trust_env=uses_proxy, timeout=_TIMEOUT_S)

    async def _send_batch(self, client: httpx.AsyncClient, batch: Sequence[_Waiting]) -> None:
        import httpx

        messages, futures = self._make_messages(batch)
        try:
            body = b'{"jobs": [' + b",".join(messages) + b"]}"
            response = await client.post(self._url, content=body, headers={"Content-Type": "application/json"})
            response.raise_for_status()
            _distribute([(answer["values"], answer["over"]) for answer in response.json()], futures)
        except httpx.TransportError as error:  # each of the other requests would take as long to fail
            waiting, self._waiting = self._waiting, []
            self._fail([*futures, *(future for _, future in waiting)], error)
        except Exception as error:
            self._fail(futures, error)

    def _make_messages(self, batch: Sequence[_Waiting]) -> tuple[list[bytes], list[asyncio.Future[dict[str, Any]]]]:
        messages, futures = [], []
        for make, future in batch:
            if future.done():  # the trigger has been cancelled
                continue
            try:
                messages.append(make())
                futures.append(future)
            except Exception as error:  # a value that cannot be sent would fail the request of all jobs
                self._fail([future], error)
        return messages, futures

    def _fail(self, futures: Sequence[asyncio.Future[dict[str, Any]]], error: Exception) -> None:
        """Answer each job with an error: without an answer, its trigger would wait for ever."""
        for future in futures:
            if not future.done():
                future.set_exception(SteeringError(f"{self._url}: {error!r}"))


def _to_json(value: object) -> bytes:
    return to_json(value, inf_nan_mode="null")  # several times as fast as Python's json


def _texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Return each value as the text that the server stores, so that it does not have to build it again."""
    return {key: None if value is None else _to_json(value).decode() for key, value in values.items()}


def _distribute(
    answers: Sequence[tuple[dict[str, Any] | None, bool]], futures: Sequence[asyncio.Future[dict[str, Any]]]
) -> None:
    for (values, over), future in zip(answers, futures, strict=True):
        if future.done():  # the trigger has been cancelled
            continue
        if values is None:
            future.set_exception(TakenOverError(over=over))
        else:
            future.set_result(values)


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
        self._job = {**_place(task), "task_instance_id": str(task.id), "secret": secret}

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

    async def exchange(self, take: Callable[[], Mapping[str, Any]], read: Sequence[str]) -> dict[str, Any]:
        """Write values of the live state, and return others, within the next seconds.

        ``take`` returns the values to write. It is called when they are sent, so that they are the newest.

        Raises SteeringError if it has to be repeated, and TakenOverError if another process steers the job.
        """
        return await Steering.of_this_loop().exchange(lambda: {**self._job, "write": _texts(take()), "read": read})


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
