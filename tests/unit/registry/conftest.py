"""Fixtures for the tests of registries: the kinds of registries, and a model."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mlflow_server import MlflowServer, serve
from tests.s3_server import S3Server
from tests.s3_server import serve as serve_s3
from tests.unit.registry.stores import MlflowStore, Store
from upath import UPath

from paceline.registry import Registry


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with serve(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with serve_s3() as server:
        yield server


@pytest.fixture(params=["local", "object store", pytest.param("mlflow", marks=pytest.mark.mlflow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "mlflow":
        server: MlflowServer = request.getfixturevalue("mlflow_server")
        server.clear()
        return MlflowStore(server)
    if request.param == "local":
        return Store(UPath(tmp_path / "registry"))
    s3: S3Server = request.getfixturevalue("s3_server")
    return Store(s3.folder(uuid.uuid4().hex))


@pytest.fixture
def registry(store: Store) -> Registry:
    return store.open()


@pytest.fixture
def name() -> str:
    """Return a new name, because all tests use the same MLflow server."""
    return f"flights-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "weights.pt").write_bytes(b"weights" * 1000)
    (folder / "vocabulary" / "größe 1.json").write_text('["AA", "UA"]')
    (folder / "empty").touch()
    return folder
