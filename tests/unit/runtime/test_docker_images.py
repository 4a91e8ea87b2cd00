"""Answers of an engine that come late or not at all, which a real engine does not give on demand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.errors import InvalidInputError, RuntimeUnavailableError
from paceline.runtime import DockerRuntime
from paceline.runtime.docker_images import Images


class Engine:
    """An engine with every image, whose pulls go as ``said``; each of them is taken away when it was said."""

    def __init__(self, *said: list[dict[str, Any]] | Exception) -> None:
        self.said = list(said)

    def pull(self, image: str, **_: Any) -> Iterator[dict[str, Any]]:
        answer = self.said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield from answer

    def inspect_image(self, image: str) -> dict[str, Any]:
        return {}

    def info(self) -> dict[str, Any]:
        return {"NCPU": 3}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("manifest for x:latest not found: manifest unknown", InvalidInputError),
        ("pull access denied for x, repository does not exist", InvalidInputError),
        ("unauthorized: authentication required", InvalidInputError),
        ("unexpected EOF", RuntimeUnavailableError),
        ("net/http: request canceled (Client.Timeout exceeded while awaiting headers)", RuntimeUnavailableError),
        ("dial tcp: lookup registry.example: no such host", RuntimeUnavailableError),
    ],
)
def test_a_pull_cut_off_in_its_middle_may_be_tried_again_and_an_image_that_cannot_be_had_is_a_wrong_value(
    said: str, error: type[Exception]
) -> None:
    going = {"status": "Pulling fs layer"}
    engine: Any = Engine([going, {"error": said}, going], [going])
    images = Images(pull=True)
    with pytest.raises(error) as raised:
        images.prepare(engine, "x")
    assert said in str(raised.value)
    images.prepare(engine, "x")
    images.prepare(engine, "x")
    assert engine.said == []


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError("no"), TimeoutError("late"), RuntimeUnavailableError("login failed")]
)
def test_a_connection_that_fails_once_is_made_anew_by_the_next_call(error: Exception) -> None:
    tries: list[Any] = [error, error, Engine()]

    def connect() -> Any:
        made = tries.pop(0)
        if isinstance(made, Exception):
            raise made
        return made

    runtime = DockerRuntime(connect)
    for _ in range(2):
        with pytest.raises(RuntimeUnavailableError):
            runtime.capacity()
    assert runtime.capacity() == runtime.capacity() == 3
    assert tries == []
