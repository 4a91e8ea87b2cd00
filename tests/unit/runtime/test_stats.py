"""Statistics of a container that is removed during the measurement."""

from __future__ import annotations

import pytest
import requests.exceptions

from paceline.errors import RuntimeUnavailableError
from paceline.runtime.docker_stats import stats_now, usage_of


class FakeClient:
    """A fake Docker client whose engine returns invalid JSON."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def stats(self, container: str, **_: object) -> None:
        raise requests.exceptions.JSONDecodeError("Expecting value", self.answer, 0)


def test_empty_response_means_the_container_was_removed():
    assert usage_of(stats_now(FakeClient(""), "some")) is None


def test_response_of_a_proxy_is_an_engine_failure():
    with pytest.raises(RuntimeUnavailableError, match="read a container's resource usage"):
        stats_now(FakeClient("<html>proxy</html>"), "some")
