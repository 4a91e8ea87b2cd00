"""A fake engine causes pulls and connections to fail, which a real engine cannot do on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime import DockerRuntime
from paceline.runtime._docker_images import Images


class FakeEngine:
    """A fake engine that has every image. Each pull consumes one of ``answers``."""

    def __init__(self, *answers: list[dict[str, Any]] | Exception) -> None:
        self.answers = list(answers)

    def pull(self, image: str, **_: Any) -> Iterator[dict[str, Any]]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield from answer

    def inspect_image(self, image: str) -> dict[str, Any]:
        return {}

    def info(self) -> dict[str, Any]:
        return {"NCPU": 3}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("manifest for x:latest not found: manifest unknown", InvalidInputError),
        ("pull access denied for x, repository does not exist", InvalidInputError),
        ("unauthorized: authentication required", InvalidInputError),
        ("unexpected EOF", RuntimeUnavailableError),
        ("net/http: request canceled (Client.Timeout exceeded while awaiting headers)", RuntimeUnavailableError),
        ("dial tcp: lookup registry.example: no such host", RuntimeUnavailableError),
    ],
)
def test_failed_pull_is_reported_as_unavailability_or_invalid_input(message: str, error: type[Exception]) -> None:
    progress = {"status": "Pulling fs layer"}
    engine: Any = FakeEngine([progress, {"error": message}, progress], [progress])
    images = Images(pull=True)
    with pytest.raises(error) as raised:
        images.pull_once(engine, "x")
    assert message in str(raised.value)
    images.pull_once(engine, "x")
    images.pull_once(engine, "x")
    assert engine.answers == []


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError("no"), TimeoutError("late"), RuntimeUnavailableError("login failed")]
)
def test_next_call_reconnects_after_a_failed_connection(error: Exception) -> None:
    results: list[Any] = [error, error, FakeEngine()]

    def connect() -> Any:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    runtime = DockerRuntime(connect)
    for _ in range(2):
        with pytest.raises(RuntimeUnavailableError):
            runtime.capacity()
    assert runtime.capacity() == runtime.capacity() == 3
    assert results == []
