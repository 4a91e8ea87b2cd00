"""A container's job tolerates an engine that executes a request but does not answer. The engine is a fake."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest
import requests

from paceline.errors import RuntimeUnavailableError
from paceline.runtime.docker_job import DockerJob

LIMIT_S = 60


class SilentEngine:
    """An engine with one container, which prints one line in each run. The engine restarts it without answering."""

    base_url, api_version = "http://engine", "1.40"

    def __init__(self) -> None:
        self.runs = 1
        self.may_end = threading.Event()
        self.may_end.set()

    def inspect_container(self, container: str) -> dict[str, Any]:
        times = {"StartedAt": "2030-01-01T12:00:00Z", "FinishedAt": "2030-01-01T12:00:01Z"}
        state = {"Status": "exited" if self.may_end.is_set() else "running", "ExitCode": 137, **times}
        return {"State": state, "Config": {"Labels": {}}, "HostConfig": {}}

    def remove_container(self, container: str, **_: object) -> None:
        response = requests.Response()
        response.status_code = 409
        explanation = f"removal of container {container} is already in progress"
        raise docker.errors.APIError("conflict", response, explanation)

    def containers(self, **_: object) -> list[dict[str, Any]]:
        return []

    def start(self, container: str) -> None:
        self.may_end.clear()
        self.runs += 1
        raise requests.exceptions.ReadTimeout("Read timed out.")

    def info(self) -> dict[str, str]:
        return {"SystemTime": "2030-01-01T12:01:00Z"}

    def get(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(status_code=200, iter_content=self.read_log, close=lambda: None)

    def read_log(self, chunk_size: int | None) -> Iterator[bytes]:
        for run in range(1, self.runs + 1):
            entry = f"2030-01-01T12:00:{run:02d}.000000000Z run {run}\n".encode()
            yield bytes([1, 0, 0, 0]) + len(entry).to_bytes(4, "big") + entry
        self.may_end.wait(LIMIT_S)


def test_output_is_read_after_a_restart_that_the_engine_does_not_confirm() -> None:
    engine = SilentEngine()
    job = DockerJob(engine, "c", max_output_bytes=1, tail=None)  # type: ignore[arg-type]
    assert job.wait(LIMIT_S)
    assert job.read_lines() == ["run 1"]
    with pytest.raises(RuntimeUnavailableError):
        job.restart()
    assert job.status().state == "running"
    assert not job.wait(0.0), "the job has not ended"
    engine.may_end.set()
    assert job.wait(LIMIT_S)
    assert job.read_lines() == ["run 2"]
    job.close()


def test_repeated_removal_is_not_an_error() -> None:
    job = DockerJob(SilentEngine(), "c", max_output_bytes=1, tail=None)  # type: ignore[arg-type]
    job.remove()


def test_new_share_of_gpus_is_written_into_the_container_and_changes_no_quota() -> None:
    engine, written = SilentEngine(), []
    engine.put_archive = lambda *request: written.append(request)  # type: ignore[attr-defined]
    job = DockerJob(engine, "c", max_output_bytes=1, tail=None, shares_gpus=True)  # type: ignore[arg-type]
    job.resize(0.45)
    job.close()
    ((container, folder, archive),) = written
    assert (container, folder) == ("c", "/paceline")
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive))) as files:
        control = files.extractfile("state/control.json")
        assert control is not None
        assert json.load(control) == {"devices": 0.45}
