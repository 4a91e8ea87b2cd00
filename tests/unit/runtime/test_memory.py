"""Jobs whose container does not say that the kernel killed a process of theirs for its memory."""

from __future__ import annotations

from typing import Any

import docker.errors
import pytest

from paceline.errors import RuntimeUnavailableError
from paceline.runtime._memory import engine_saw_kill


class Engine:
    """An engine whose status lacks the kill, with the events that it has recorded."""

    def __init__(self, answer: list[dict[str, Any]] | Exception) -> None:
        self._answer = answer
        self.asked: dict[str, Any] = {}

    def events(self, **asked: Any) -> list[dict[str, Any]]:
        self.asked = asked
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(("events", "expected"), [([{"Action": "oom"}], True), ([], False)])
def test_event_of_the_engine_tells_of_a_kill_for_memory(events: list[dict[str, Any]], expected: bool) -> None:
    engine = Engine(events)
    assert engine_saw_kill(engine, "c0ffee", 100.25, 101.0) is expected  # type: ignore[arg-type]
    assert engine.asked == {
        "since": "100.250000000",
        "until": "101.500000000",
        "filters": {"container": "c0ffee", "event": "oom"},
        "decode": True,
    }


def test_engine_that_rejects_the_request_for_events_has_seen_none() -> None:
    class Response:
        status_code = 403
        reason, url = "Forbidden", "http://engine/events"

    refused = Engine(docker.errors.APIError("refused", response=Response()))
    assert not engine_saw_kill(refused, "c0ffee", 100.0, 101.0)  # type: ignore[arg-type]
    with pytest.raises(RuntimeUnavailableError):
        engine_saw_kill(Engine(ConnectionError("away")), "c0ffee", 100.0, 101.0)  # type: ignore[arg-type]
