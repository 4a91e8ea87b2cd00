"""Blocking calls of the triggerer run in daemon threads, which are used again; those of one purpose are limited."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.waiting import until

from paceline.operators import _threads
from paceline.operators._threads import in_thread, in_turn


def test_thread_takes_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_IDLE_S", 300.0)

    async def call_twice() -> None:
        assert (await in_thread(threading.current_thread, name="first")).daemon
        while not _threads._idle:  # the thread has answered, and is about to wait for another call
            await asyncio.sleep(0.001)
        before = threading.enumerate()
        second = await in_thread(threading.current_thread, name="second")
        assert second in before

    asyncio.run(call_twice())


def test_thread_without_a_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "_IDLE_S", 0.01)

    async def call() -> threading.Thread:
        return await in_thread(threading.current_thread, name="ends")

    thread = asyncio.run(call())
    until(lambda: not thread.is_alive(), "the end of the thread")


def test_error_of_a_call_is_that_of_its_future() -> None:
    async def call() -> None:
        with pytest.raises(KeyError):
            await in_thread({}.popitem, name="raises")
        assert await in_thread(lambda: 1, name="returns") == 1

    asyncio.run(call())


def test_calls_of_one_purpose_wait_for_each_other_and_not_for_those_of_another() -> None:
    release, running = threading.Event(), threading.Semaphore(0)

    def block() -> bool:
        running.release()
        return release.wait(60.0)

    async def call() -> None:
        blocked = [asyncio.create_task(in_turn(("a",), 2, block, name="a")) for _ in range(3)]
        for _ in range(2):
            assert await in_thread(lambda: running.acquire(timeout=60.0), name="counts")
        assert await in_turn(("b",), 2, lambda: 1, name="b") == 1
        assert not running.acquire(blocking=False), "the third call waits"
        release.set()
        assert await asyncio.gather(*blocked) == [True] * 3

    asyncio.run(call())
