"""``FileRegistry`` on a real S3 server, with concurrent writers and with a lost response to each request."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from tests.s3_server import S3Server, serve
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, ModelVersion

WRITERS = 8
# A registration with a key writes five objects: the number twice, the key, one file and the manifest.
REGISTRATION = ("numbers/000001", "reserved", ".json", "weights.bin", "manifest.json")


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


def test_concurrent_retries_after_their_version_was_deleted_create_one_version(
    registry: FileRegistry, tmp_path: Path
) -> None:
    model = make_model(tmp_path, "model")
    registry.register(model, name="flights", key="run")
    (registry.root / "flights" / "versions" / "000001").rmdir(recursive=True)
    made = run_concurrently(WRITERS, lambda _: registry.register(model, name="flights", key="run"))
    assert made == [made[0]] * WRITERS
    assert registry.versions("flights") == [made[0]]
    assert made[0].version > 1


def put_object(path: UPath, key: str, data: bytes = b"") -> None:
    bucket, _, folder = path.path.partition("/")
    path.fs.call_s3("put_object", Bucket=bucket, Key=f"{folder}{key}", Body=data)


@pytest.mark.parametrize("marker", ["/", "", "/vocabulary/", "/vocabulary", "/unused/", "/vocabulary/unused/"])
def test_empty_object_that_stands_for_a_folder_is_ignored(registry: FileRegistry, marker: str) -> None:
    model = registry.root / "model"
    (model / "weights.bin").write_text("weights")
    (model / "vocabulary" / "words.txt").write_text("words")
    put_object(model, marker)
    version = registry.register(model, name="flights")
    assert sorted(version.files) == ["vocabulary/words.txt", "weights.bin"]


def test_object_with_contents_and_the_name_of_a_folder_is_rejected(registry: FileRegistry) -> None:
    model = registry.root / "model"
    (model / "weights.bin").write_text("weights")
    put_object(model, "/vocabulary/", b"words")
    with pytest.raises(InvalidInputError, match=r"model_dir: got '.*/model/vocabulary/', expected names of files and"):
        registry.register(model, name="flights")


def test_model_folder_with_only_an_object_that_stands_for_it_is_rejected(registry: FileRegistry) -> None:
    put_object(registry.root / "model", "/")
    with pytest.raises(InvalidInputError, match=r"model_dir: got .* expected a folder with at least one file"):
        registry.register(registry.root / "model", name="flights")


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
