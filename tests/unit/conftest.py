"""Fixtures for unit tests of several areas: training code, and each kind of registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.unit import forked

if TYPE_CHECKING:
    from tests.mlflow_server import MlflowServer
    from tests.s3_server import S3Server
    from tests.unit.registry.stores import Store


@pytest.fixture(scope="session")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., forked.Forked]]:
    """Yield a substitute for ``Popen`` that forks a Python process with torch imported; omit the program's name."""
    path = str(tmp_path_factory.mktemp("forked") / "socket")
    # Use one thread per library, because thread pools do not survive a fork.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, forked.__file__, path],
        env={**os.environ, **threads},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield partial(forked.Forked, path)
        server.communicate()


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """Yield the MLflow server of all tests, because its start takes seconds."""
    from tests.mlflow_server import serve

    with serve(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    from tests.s3_server import serve

    with serve() as server:
        yield server


@pytest.fixture(params=["local", "object store", pytest.param("mlflow", marks=pytest.mark.mlflow)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a way to open an empty registry of each kind, also by its location, as operators and commands do."""
    from tests.unit.registry.stores import MlflowStore, Store
    from upath import UPath

    from paceline.airflow import places

    if request.param == "mlflow":
        server: MlflowServer = request.getfixturevalue("mlflow_server")
        server.clear()
        monkeypatch.setenv("AIRFLOW_CONN_MODELS", json.dumps({"conn_type": "mlflow", "host": server.url}))
        return MlflowStore(server)
    if request.param == "local":
        return Store(UPath(tmp_path / "registry"))
    s3: S3Server = request.getfixturevalue("s3_server")
    root, storage_path = s3.folder(uuid.uuid4().hex), places.storage_path
    # The test needs no Airflow connection.
    monkeypatch.setattr(places, "storage_path", lambda value: root if value == str(root) else storage_path(value))
    return Store(root, s3)
