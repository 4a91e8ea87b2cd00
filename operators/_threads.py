"""Threads for blocking calls of the triggerer: those of an engine's jobs share a few."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_IDLE_S = 10.0  # a thread without a call ends then
_idle: list[queue.SimpleQueue[Callable[[], None]]] = []  # a queue for each thread that has no call
_semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, ...], asyncio.Semaphore]]
_semaphores = WeakKeyDictionary()


async def in_turn(purpose: tuple[str, ...], at_once: int, call: Callable[[], T], *, name: str) -> T:
    """Run ``call`` in a thread, when fewer than ``at_once`` calls of the same purpose run in this event loop."""
    of_loop = _semaphores.setdefault(asyncio.get_running_loop(), {})
    async with of_loop.setdefault(purpose, asyncio.Semaphore(at_once)):
        return await in_thread(call, name=name)


def in_thread(call: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run ``call`` in a thread at once; return its result as a future of this loop.

    The thread is a daemon, unlike those of Python's executors: an engine that does not respond must not keep the
    triggerer from ending. After the call, it waits for another one, because starting a thread takes long compared
    with a step of a job.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()  # Airflow assigns the log's lines to the task with it

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.done():  # cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # the result of the call

    def run() -> None:
        threading.current_thread().name = name
        result, error = None, None
        try:
            result = context.run(call)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the triggerer is ending
            loop.call_soon_threadsafe(finish, result, error)

    try:
        calls = _idle.pop()
    except IndexError:
        calls = queue.SimpleQueue()
        threading.Thread(target=_run_calls, args=(calls,), daemon=True).start()
    calls.put(run)
    return future


def _run_calls(calls: queue.SimpleQueue[Any]) -> None:
    while True:
        try:
            calls.get(timeout=_IDLE_S)()
        except queue.Empty:
            try:
                _idle.remove(calls)
            except ValueError:  # it has been chosen for a call in this moment
                continue
            return
        _idle.append(calls)
