"""Fixtures for the tests of registries: a registry of each kind, and a model."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tests.unit.registry.stores import Store

from paceline.registry import Registry


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
