"""What an engine says of a container that goes away while it is measured."""

from __future__ import annotations

import pytest
import requests.exceptions

from paceline.errors import RuntimeUnavailableError
from paceline.runtime.docker_stats import stats_now, usage_of


class Client:
    """An engine's client whose answer is not JSON."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def stats(self, container: str, **_: object) -> None:
        raise requests.exceptions.JSONDecodeError("Expecting value", self.answer, 0)


def test_an_empty_answer_is_of_a_container_that_has_gone():
    assert usage_of(stats_now(Client(""), "some")) is None


def test_an_answer_that_is_not_of_an_engine_says_nothing_of_the_container():
    with pytest.raises(RuntimeUnavailableError, match="ask what a container uses"):
        stats_now(Client("<html>proxy</html>"), "some")
