"""Registries whose writes fail: a local folder on a full disk, and each write to each kind of registry."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.unit.registry.stores import FullDisk, MlflowStore, Store

from paceline.errors import PacelineError
from paceline.registry import FileRegistry, MlflowRegistry, Registry


@pytest.fixture
def on_disk(tmp_path: Path, model_dir: Path) -> FileRegistry:
    registry = FileRegistry(tmp_path / "registry")
    registry.register(model_dir, name="flights")
    return registry


def files(registry: FileRegistry) -> list[str]:
    return sorted(str(path) for path in Path(registry.root.path).rglob("*") if path.is_file())


def test_record_on_a_full_disk_leaves_no_file_and_its_error_names_the_path(
    on_disk: FileRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(on_disk)
    monkeypatch.setattr(os, "fsync", FullDisk())
    with pytest.raises(OSError, match=rf"No space left on device: '{on_disk.root}/flights/promotions/000001\.json'"):
        on_disk.promote("flights", 1, reason="better")
    assert files(on_disk) == before


def test_record_on_a_full_disk_without_hard_links_leaves_no_file(
    on_disk: FileRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject_link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    before = files(on_disk)
    monkeypatch.setattr(os, "link", reject_link)
    monkeypatch.setattr(os, "fsync", FullDisk(first=2))
    with pytest.raises(OSError, match=r"No space left on device: '.*/promotions/000001\.json'"):
        on_disk.promote("flights", 1, reason="better")
    assert files(on_disk) == before
    assert on_disk.champion("flights") is None


def test_model_on_a_full_disk_leaves_no_file_and_its_error_names_the_path(
    on_disk: FileRegistry, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", FullDisk(first=3))  # after the two files that reserve the number
    with pytest.raises(OSError, match=rf"No space left on device: '{on_disk.root}/flights/versions/000002/files-.*/"):
        on_disk.register(model_dir, name="flights")
    assert not [file for file in files(on_disk) if "000002/files-" in file or "/." in file]


@pytest.mark.parametrize("store", ["object store"], indirect=True)
def test_refused_write_to_an_object_store_names_the_object(store: Store, registry: Registry, model_dir: Path) -> None:
    registry.register(model_dir, name="flights")
    with (
        store.failing(0),
        pytest.raises(OSError, match=rf"quota is exceeded: '{store.root}/flights/promotions/000001\.json'"),
    ):
        registry.promote("flights", 1, reason="better")
    with (
        store.failing(2),  # after the two objects that reserve the number
        pytest.raises(OSError, match=rf"quota is exceeded: '{store.root}/flights/versions/000002/files-.*/empty'"),
    ):
        registry.register(model_dir, name="flights")


@pytest.mark.parametrize("store", [pytest.param("mlflow", marks=pytest.mark.mlflow)], indirect=True)
def test_refused_upload_to_mlflow_names_the_file(
    store: MlflowStore, registry: Registry, name: str, model_dir: Path
) -> None:
    registry.register(model_dir, name=name)
    store.server.clear()
    registry.register(model_dir, name=name)
    uploads = [index for index, change in enumerate(store.server.changes) if change.startswith("PUT")]
    for index, file in zip(uploads, ("model/empty", "model/vocabulary/größe 1.json", "model/weights.pt"), strict=False):
        with store.failing(index), pytest.raises(PacelineError, match=rf"artifacts/{file}: "):
            registry.register(model_dir, name=name)


def fail_at_each_write(store: Store, repeat: Callable[[int], object], check: Callable[[int], None]) -> None:
    """Call ``repeat`` until none of its writes fails; after each failure, ``check`` the registry, and try again."""
    for write in count():
        with store.failing(write):
            try:
                repeat(write)
            except (OSError, PacelineError):
                failed = True
            else:
                failed = False
        check(write)
        if not failed:
            assert write > 0
            return
        repeat(write)


def test_registration_that_fails_at_any_write_leaves_no_partial_version_and_can_be_repeated(
    store: Store, registry: Registry, name: str, model_dir: Path, tmp_path: Path
) -> None:
    def check(write: int) -> None:
        assert [version.key for version in registry.versions(name)] in (keys[:write], keys[: write + 1])
        for version in registry.versions(name)[-1:]:
            fetched = registry.fetch(version, tmp_path / "fetched")
            assert (fetched / "weights.pt").read_bytes() == b"weights" * 1000
            reference = registry.fetch_reference(version, tmp_path / "reference")
            assert reference is not None
            assert reference.read_text() == rows.read_text()

    (rows := tmp_path / "rows.csv").write_text("age\n29\n" * 100)
    keys = [f"run {write}" for write in range(50)]
    fail_at_each_write(
        store, lambda write: registry.register(model_dir, name=name, key=keys[write], reference=rows), check
    )
    numbers = registry.numbers(name)
    assert len(numbers) == len(set(numbers)) == len(registry.versions(name))


def test_promotion_that_fails_at_any_write_changes_the_champion_once_or_not_at_all(
    store: Store, registry: Registry, name: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(registry, MlflowRegistry):  # no other writer may still be alive
        monkeypatch.setattr(registry, "_writer_timeout_s", 0.0)
    for _ in range(2):
        registry.register(model_dir, name=name)

    def promote(write: int) -> None:
        registry.promote(name, 1 + write % 2, f"write {write}")

    def check(write: int) -> None:
        champion = registry.champion(name)
        history = registry.history(name)
        assert len(history) in (write, write + 1)
        assert (champion.version if champion else None) == (history[-1].version if history else None)

    fail_at_each_write(store, promote, check)
    assert [promotion.version for promotion in registry.history(name)] == [
        1 + write % 2 for write in range(len(registry.history(name)))
    ]
