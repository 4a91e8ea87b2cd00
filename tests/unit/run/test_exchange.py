"""When the exchange of a control loop writes its values, and what it reports if the store fails."""

from __future__ import annotations

import threading

import pytest

from paceline.run import Exchange, MemoryState
from paceline.run import _live as live


def test_values_posted_during_a_write_are_written_on_close():
    class SlowState(MemoryState):
        def set(self, key, value):
            entered.set()
            assert proceed.wait(10)
            super().set(key, value)

    entered, proceed = threading.Event(), threading.Event()
    state = SlowState()
    exchange = Exchange(state)
    exchange.post({"pace": "training"})
    assert entered.wait(10)
    exchange.post({"pace": "finished"})
    closing = threading.Thread(target=exchange.close)
    closing.start()
    assert exchange._closed.wait(10)
    proceed.set()
    closing.join()
    assert state.get("pace") == "finished"


def test_writing_the_last_values_is_retried_after_a_failure(monkeypatch):
    monkeypatch.setattr(live, "_FINAL_RETRY_S", (0.0, 0.0, 0.0))

    class StateThatFailsTwice(MemoryState):
        left = 2

        def set(self, key, value):
            if value == "finished" and self.left:
                self.left -= 1
                raise OSError("the API server does not answer")
            super().set(key, value)

    state = StateThatFailsTwice()
    exchange = Exchange(state)
    exchange.post({"pace": "finished"})
    exchange.close()
    assert state.get("pace") == "finished"


def test_exchange_limits_the_rate_of_its_requests():
    state = MemoryState()
    exchange = Exchange(state, every_s=3600)
    exchange.post({"pace": 1})
    while "deadline" not in exchange.newest():
        pass
    exchange.post({"pace": 2})
    exchange.post({"pace": 3})
    assert state.get("pace") == 1
    exchange.close()  # close() does not wait for ``every_s``
    assert state.get("pace") == 3


@pytest.mark.parametrize(
    ("error", "disconnected"),
    [
        (OSError("the API server does not answer"), False),
        (EOFError("Request socket closed"), True),
        (BrokenPipeError(), True),
    ],
)
def test_store_failure_is_logged_once_and_closed_connection_is_detected(error, disconnected):
    class BrokenState(MemoryState):
        def set(self, key, value):
            raise error

    reported = []
    exchange = Exchange(BrokenState(), on_failure=reported.append)
    assert not exchange.disconnected
    exchange.post({"pace": 1})
    exchange.post({"pace": 2})
    exchange.close()
    assert exchange.disconnected == disconnected
    assert reported == ([] if disconnected else [error]), "the log uses the same closed connection"
