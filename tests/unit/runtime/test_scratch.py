"""The folder of a local job is deleted whatever the job has done to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.runtime.scratch import Scratch


@pytest.fixture
def unprivileged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test in a folder of its own, as a user without privileges: root may delete read-only folders."""
    monkeypatch.chdir(tmp_path)
    if os.geteuid() != 0:
        yield
        return
    os.chown(tmp_path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_folders_that_a_job_made_read_only_are_deleted(unprivileged: None, mode: int) -> None:
    kept = Path("kept")
    kept.mkdir()
    cache = Path("job", "work", "cache", "inner")
    cache.mkdir(parents=True)
    (cache / "data").touch()
    (cache / "link").symlink_to(kept.absolute())
    kept.chmod(0o500)
    for folder in (cache, cache.parent):
        folder.chmod(mode)
    Scratch(Path("job")).delete()
    assert sorted(os.listdir()) == ["kept"]
    assert kept.stat().st_mode & 0o777 == 0o500
