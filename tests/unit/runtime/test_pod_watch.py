"""A watch of a pod goes on after its connection was interrupted, also while it was opened."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from urllib3 import HTTPResponse
from urllib3.exceptions import ProtocolError

from paceline.errors import RuntimeUnavailableError
from paceline.runtime.kubernetes import _watch
from paceline.runtime.kubernetes._watch import follow_pod


def a_pod(version: int) -> dict[str, Any]:
    return {"metadata": {"name": "job", "uid": "1", "resourceVersion": str(version)}}


class FakeCluster:
    """Has a pod whose version grows with each request. Interrupts the requests whose numbers are in ``interrupted``."""

    namespace = "jobs"

    def __init__(self, interrupted: set[int]) -> None:
        self.requests, self.interrupted = 0, interrupted

    def call(self, request: str, method: str, namespace: str, *, watch: bool = False, **options: Any) -> HTTPResponse:
        self.requests += 1
        if self.requests in self.interrupted:
            raise RuntimeUnavailableError(request) from ProtocolError("Connection aborted.")
        pod = a_pod(self.requests)
        answer = {"type": "MODIFIED", "object": pod} if watch else {"items": [pod], "metadata": pod["metadata"]}
        return HTTPResponse(io.BytesIO(json.dumps(answer).encode() + b"\n"), preload_content=watch is False)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watch, "_PAUSE_S", 0.0)


def test_watch_that_was_interrupted_while_it_was_opened_goes_on() -> None:
    cluster: Any = FakeCluster({1, 2})
    following = follow_pod(cluster, "job", a_pod(0))
    assert next(following) == a_pod(0)
    with pytest.raises(RuntimeUnavailableError, match="read the pod"):  # twice in a row: the cluster is away
        next(following)
    cluster = FakeCluster({1})
    following = follow_pod(cluster, "job", a_pod(0))
    assert [next(following) for _ in range(3)] == [a_pod(0), a_pod(2), a_pod(3)]
