"""A fixture for the tests of registries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.mlflow_server import MlflowServer, serve


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with serve(tmp_path_factory.mktemp("mlflow")) as server:
        yield server
