"""Folders on an object store are copied for a job."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tests.s3_server import serve

from paceline.airflow import arguments
from paceline.airflow.places import storage_path


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
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "a/file",
        "model/vocabulary/words",
        "model/weights",
    ]
    assert (copies["model"] / "weights").read_text() == copies["a/file"].read_text() == "model/weights"
