"""A registry in a local folder on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from paceline.registry import FileRegistry


class FullDisk:
    """Replaces ``os.fsync``: the disk is full from the ``first`` call on."""

    def __init__(self, first: int = 1) -> None:
        self.left = first

    def __call__(self, file: int) -> None:
        self.left -= 1
        if self.left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def registry(tmp_path: Path, model_dir: Path) -> FileRegistry:
    registry = FileRegistry(tmp_path / "registry")
    registry.register(model_dir, name="flights")
    return registry


def files(registry: FileRegistry) -> list[str]:
    return sorted(str(path) for path in Path(registry.root.path).rglob("*") if path.is_file())


def test_record_on_a_full_disk_leaves_no_file_and_its_error_names_the_path(
    registry: FileRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(registry)
    monkeypatch.setattr(os, "fsync", FullDisk())
    with pytest.raises(OSError, match=rf"No space left on device: '{registry.root}/flights/promotions/000001\.json'"):
        registry.promote("flights", 1, reason="better")
    assert files(registry) == before


def test_record_on_a_full_disk_without_hard_links_leaves_no_file(
    registry: FileRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject_link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    before = files(registry)
    monkeypatch.setattr(os, "link", reject_link)
    monkeypatch.setattr(os, "fsync", FullDisk(first=2))
    with pytest.raises(OSError, match=r"No space left on device: '.*/promotions/000001\.json'"):
        registry.promote("flights", 1, reason="better")
    assert files(registry) == before
    assert registry.champion("flights") is None


def test_model_on_a_full_disk_leaves_no_file_and_its_error_names_the_path(
    registry: FileRegistry, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", FullDisk(first=3))  # after the two files that reserve the number
    with pytest.raises(OSError, match=rf"No space left on device: '{registry.root}/flights/versions/000002/files-.*/"):
        registry.register(model_dir, name="flights")
    assert not [file for file in files(registry) if "000002/files-" in file or "/." in file]
