"""Copies of checkpoints in a folder and in an object store."""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from paceline.contract import StoredFiles
from paceline.operators.checkpoint_copies import FileCopies

RECORD = StoredFiles(kind="checkpoint", dag_id="dag", run_id="run", task_id="train")


@pytest.fixture(params=["local", "object store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> UPath:
    if request.param == "local":
        return UPath(tmp_path / "copies" / "job")
    return request.getfixturevalue("s3_server").folder(f"{uuid.uuid4().hex}/job")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "model.bin").write_bytes(bytes(range(256)) * 10_000)
    (path / "step").write_text("1")
    return path


def open_copies(folder: UPath) -> FileCopies:
    return FileCopies(folder, logging.getLogger("test"), RECORD)


def save(copies: FileCopies, checkpoint: Path, step: int) -> None:
    (checkpoint / "step").write_text(str(step))
    copies.save(checkpoint, {"code": f"code {step}"}, lambda: False)


def load(folder: UPath, into: Path) -> tuple[Any, str | None]:
    """Return what another process finds: the stored values, and the step in the checkpoint."""
    into.mkdir()
    about = open_copies(folder).load(into)
    step = into / "step"
    return about, step.read_text() if step.exists() else None


def names(folder: UPath) -> list[str]:
    folder.fs.invalidate_cache()
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_newest_copy_is_restored_whole_and_the_two_newest_are_kept(folder, checkpoint, tmp_path):
    assert load(folder, tmp_path / "none") == (None, None)
    for step in (1, 2, 3):
        save(open_copies(folder), checkpoint, step)  # each by another process
    assert load(folder, tmp_path / "new") == ({"code": "code 3"}, "3")
    assert (tmp_path / "new" / "deep" / "model.bin").read_bytes() == bytes(range(256)) * 10_000
    assert names(folder) == ["copy-000002.tar", "copy-000003.tar"]


def test_incomplete_copy_is_not_used(folder, checkpoint, tmp_path, caplog):
    copies = open_copies(folder)
    for step in (1, 2):
        save(copies, checkpoint, step)
    newest = folder / "copy-000002.tar"
    content = newest.read_bytes()
    for number, size in enumerate((0, 100, 512, len(content) // 2, len(content) - 2048)):
        newest.write_bytes(content[:size])
        assert load(folder, tmp_path / f"cut {number}") == ({"code": "code 1"}, "1"), size
    assert "copy-000002.tar is incomplete and is not used" in caplog.text


def test_cancelled_copy_leaves_the_earlier_one(folder, checkpoint, tmp_path):
    copies = open_copies(folder)
    save(copies, checkpoint, 1)
    (checkpoint / "step").write_text("2")
    answers = iter([False, False])
    copies.save(checkpoint, {}, lambda: next(answers, True))
    assert names(folder) == ["copy-000001.tar"]
    save(copies, checkpoint, 3)
    assert load(folder, tmp_path / "new") == ({"code": "code 3"}, "3")


def test_folder_has_a_record_of_its_task_beside_it(folder, checkpoint):
    save(open_copies(folder), checkpoint, 1)
    assert StoredFiles.read(json.loads((folder.parent / "job.paceline.json").read_text())) == RECORD


def test_removed_copies_leave_no_folder(folder, checkpoint):
    copies = open_copies(folder)
    copies.remove()  # nothing is there yet
    save(copies, checkpoint, 1)
    copies.remove()
    folder.fs.invalidate_cache()
    assert not folder.exists()
    assert not folder.parent.exists()


def test_folder_of_other_jobs_is_kept(folder, checkpoint):
    other = folder.parent / "other"
    save(open_copies(other), checkpoint, 1)
    copies = open_copies(folder)
    save(copies, checkpoint, 1)
    copies.remove()
    assert names(other) == ["copy-000001.tar"]


def test_unfinished_files_of_a_checkpoint_are_left_out(folder, checkpoint, tmp_path):
    (checkpoint / ".checkpoint-7.tmp").write_bytes(b"half")
    save(open_copies(folder), checkpoint, 1)
    load(folder, tmp_path / "new")
    assert not (tmp_path / "new" / ".checkpoint-7.tmp").exists()


def test_storage_that_fails_is_not_taken_for_an_empty_one(checkpoint, tmp_path):
    (tmp_path / "file").write_text("")
    folder = UPath(tmp_path / "file" / "job")
    with pytest.raises(OSError, match="Not a directory"):
        open_copies(folder).load(tmp_path / "new")
