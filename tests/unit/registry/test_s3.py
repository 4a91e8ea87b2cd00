"""``FileRegistry`` on a real S3 server, with concurrent writers and with a lost response to each request."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from tests.s3_server import S3Server, serve

from paceline.registry import FileRegistry, ModelVersion

WRITERS = 8
# A registration with a key writes four objects: the number, the key, one file and the manifest.
REGISTRATION = ("reserved", ".json", "weights.bin", "manifest.json")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve() as started:
        yield started


@pytest.fixture
def registry(server: S3Server) -> FileRegistry:
    server.changes.clear()
    server.lost.clear()
    return FileRegistry(server.folder(uuid.uuid4().hex))


def make_model(tmp_path: Path, content: str) -> Path:
    folder = tmp_path / content
    folder.mkdir()
    (folder / "weights.bin").write_text(content)
    return folder


def read_model(registry: FileRegistry, version: ModelVersion) -> str:
    return str((registry.location(version) / "weights.bin").read_text())


def run_concurrently(count: int, write: Callable[[int], ModelVersion]) -> list[ModelVersion]:
    barrier = Barrier(count)

    def start(index: int) -> ModelVersion:
        barrier.wait()
        return write(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def test_concurrent_registrations_get_different_versions(registry: FileRegistry, tmp_path: Path) -> None:
    models = [make_model(tmp_path, f"model-{index}") for index in range(WRITERS)]
    made = run_concurrently(WRITERS, lambda index: registry.register(models[index], name="flights", key=f"run-{index}"))
    assert sorted(version.version for version in made) == list(range(1, WRITERS + 1))
    assert [read_model(registry, version) for version in made] == [f"model-{index}" for index in range(WRITERS)]
    assert [version.key for version in made] == [f"run-{index}" for index in range(WRITERS)]


def test_concurrent_registrations_with_the_same_key_create_one_version(registry: FileRegistry, tmp_path: Path) -> None:
    model = make_model(tmp_path, "model")
    made = run_concurrently(WRITERS, lambda _: registry.register(model, name="flights", key="run"))
    assert len({version.version for version in made}) == 1
    assert registry.versions("flights") == [made[0]]
    assert read_model(registry, made[0]) == "model"


@pytest.mark.parametrize("lost", range(len(REGISTRATION)), ids=REGISTRATION)
def test_registration_survives_a_lost_response(
    server: S3Server, registry: FileRegistry, tmp_path: Path, lost: int
) -> None:
    server.lost.add(lost)
    made = registry.register(make_model(tmp_path, "model"), name="flights", key="run")
    assert server.changes[lost].endswith(REGISTRATION[lost])
    assert made.version == 1
    assert registry.versions("flights") == [made]
    assert read_model(registry, made) == "model"


def test_promotion_survives_a_lost_response(server: S3Server, registry: FileRegistry, tmp_path: Path) -> None:
    registry.register(make_model(tmp_path, "model"), name="flights")
    server.lost.add(len(server.changes))
    promotion = registry.promote("flights", 1, reason="better")
    assert server.changes[-1].endswith("promotions/000001.json")
    assert registry.history("flights") == [promotion]


def test_concurrent_promotions_are_all_recorded(registry: FileRegistry, tmp_path: Path) -> None:
    for index in range(WRITERS):
        registry.register(make_model(tmp_path, f"model-{index}"), name="flights")
    run_concurrently(
        WRITERS,
        lambda index: registry.version("flights", registry.promote("flights", index + 1, reason="better").version),
    )
    history = registry.history("flights")
    assert sorted(one.version for one in history) == list(range(1, WRITERS + 1))
    assert [one.previous for one in history] == [None, *(one.version for one in history[:-1])]
