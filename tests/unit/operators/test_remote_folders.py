"""Folders on an object store are copied for a job."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pytest
from airflow.sdk.io import attach
from tests.s3_server import serve

from paceline.airflow import arguments
from paceline.airflow.places import storage_path
from paceline.errors import InvalidInputError


def test_folder_with_empty_objects_that_stand_for_folders_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve() as server:
        folder = server.folder(uuid.uuid4().hex)
        for name in ("model/weights", "model/vocabulary/words"):
            (folder / name).write_text(name)
        for marker in ("model/", "model/vocabulary/"):
            bucket, _, key = folder.path.partition("/")
            folder.fs.call_s3("put_object", Bucket=bucket, Key=f"{key}/{marker}", Body=b"")
        folder.fs.invalidate_cache()
        # The test needs no Airflow connection.
        remote = {"s3://model": folder / "model", "s3://file": folder / "model/weights"}
        monkeypatch.setattr(arguments, "storage_path", lambda value: remote.get(value) or storage_path(value))
        copies = arguments.local_copies("challenger", {"model": "s3://model", "a/file": "s3://file"}, tmp_path)
    copied = [str(path.relative_to(copies["model"])) for path in copies["model"].rglob("*") if path.is_file()]
    assert sorted(copied) == ["vocabulary/words", "weights"]
    assert (copies["model"] / "weights").read_text() == copies["a/file"].read_text() == "model/weights"


@pytest.fixture
def remote() -> str:
    """Return the URL of a folder with the file ``rows.csv`` in an object store in memory."""
    store = fsspec.filesystem("memory")
    attach("memory", fs=store)
    folder = f"memory://{uuid.uuid4().hex}"
    store.pipe(f"{folder}/rows.csv", b"1")
    return folder


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/outside", "/", "nul\0"])
def test_name_outside_of_the_inputs_is_rejected_before_the_copy(tmp_path: Path, remote: str, name: str) -> None:
    name = f"{tmp_path}{name}" if name == "/outside" else name
    with pytest.raises(InvalidInputError, match=r"^data: got .*, expected a relative path without '..'"):
        arguments.local_copies("data", {name: f"{remote}/rows.csv"}, tmp_path / "scratch")
    assert list(tmp_path.rglob("*")) == []


def test_remote_folder_can_be_all_of_the_inputs_beside_others(tmp_path: Path, remote: str) -> None:
    sources = {".": remote, "more": f"{remote}/rows.csv", "more/again": remote}
    copies = arguments.local_copies("inputs", sources, tmp_path / "scratch")
    assert [path.name for path in copies["."].iterdir()] == ["rows.csv"]
    assert copies["more"].read_text() == (copies["more/again"] / "rows.csv").read_text() == "1"
