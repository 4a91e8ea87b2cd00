"""A registry survives eight writers that are killed at random times. On servers, 2 % of the responses are also lost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import mlflow_server as mlflow
from tests import s3_server as s3
from tests.soak.registry_writer import MODEL, open_registry

pytestmark = pytest.mark.timeout(4 * 3600)

WRITERS, OPERATIONS, KILLS = 8, 500, 24
LOST = 0.02


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[mlflow.MlflowServer]:
    with mlflow.serve(tmp_path) as server:
        yield server


@pytest.fixture
def s3_server() -> Iterator[s3.S3Server]:
    with s3.serve() as server:
        yield server


class Writers:
    """The writer processes of a registry. ``run`` restarts a killed writer."""

    def __init__(self, root: str, options: dict[str, Any], folder: Path) -> None:
        self._root, self._options, self._folder = root, json.dumps(options), folder
        self.processes = {f"writer{number}": self._start(f"writer{number}") for number in range(WRITERS)}

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        arguments = [self._root, self._options, name, str(OPERATIONS), str(self._log(name))]
        return subprocess.Popen([sys.executable, "-m", "tests.soak.registry_writer", *arguments])

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def records(self, name: str) -> list[dict[str, int]]:
        log = self._log(name)
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def done(self) -> int:
        return sum(len(self.records(name)) for name in self.processes)

    def run(self, draw: random.Random) -> None:
        """Kill and restart writers at random times, and return when all writers have succeeded."""
        for at in sorted(draw.sample(range(WRITERS * OPERATIONS * 9 // 10), KILLS)):
            while self.done() < at and self._running():
                time.sleep(0.05)
            if running := self._running():
                name = draw.choice(running)
                self.processes[name].kill()
                self.processes[name].wait()
                self.processes[name] = self._start(name)
        assert [process.wait() for process in self.processes.values()] == [0] * WRITERS

    def _running(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.poll() is None]


@pytest.mark.parametrize("store", ["files", "s3", pytest.param("mlflow", marks=pytest.mark.mlflow)])
def test_registry_survives_killed_writers_and_lost_responses(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
) -> None:
    draw = random.Random(request.config.option.seed)
    root, options = str(tmp_path / "registry"), dict[str, Any]()
    if store != "files":
        server = request.getfixturevalue(f"{store}_server")
        server.lost |= {index for index in range(1_000_000) if draw.random() < LOST}
        root = server.url if store == "mlflow" else str(server.folder("registry"))
        options = server.options if store == "s3" else {}
    writers = Writers(root, options, tmp_path)
    writers.run(draw)

    registry = open_registry(root, options)
    versions = registry.versions(MODEL)
    keys = [f"{name}-{number}" for name in writers.processes for number in range(0, OPERATIONS, 3)]
    assert Counter(version.key for version in versions) == Counter(keys), "each key has exactly one version"
    for version in versions:
        fetched = registry.fetch(version, tmp_path / "fetched")
        assert (fetched / "weights.bin").read_text() == version.key, "each version has the files of its key"
    number_of = {version.key: version.version for version in versions}
    history = registry.history(MODEL)
    assert [one.previous for one in history] == [None, *(one.version for one in history[:-1])]
    promoted = {one.version for one in history}
    for name in writers.processes:
        records = writers.records(name)
        assert [one["registered"] for one in records[::3]] == [
            number_of[f"{name}-{number}"] for number in range(0, OPERATIONS, 3)
        ]
        assert {one["promoted"] for one in records[1::3]} <= promoted
