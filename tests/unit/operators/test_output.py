"""A training job's output is copied to the destination, and a repeated copy replaces the files."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem

from paceline.airflow.places import storage_path
from paceline.operators._output import collect_output


@pytest.fixture(autouse=True, scope="module")
def memory_storage() -> None:
    """Register an object storage for Airflow in the memory of this process."""
    attach("memory", fs=MemoryFileSystem())


def job_with_output(**files: str) -> Any:
    """Return a fake job with text files as output. In the argument names, ``__`` stands for a slash."""

    def write(destination: Path) -> list[str]:
        for name, text in files.items():
            path = destination / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return sorted({name.partition("__")[0] for name in files})

    return SimpleNamespace(collect=write)


@pytest.mark.parametrize("existing", [False, True])
def test_remote_output_is_replaced_in_place(existing: bool, tmp_path: Path) -> None:
    place = f"memory://models/{tmp_path.name}"
    if existing:
        collect_output(job_with_output(model="old", weights__first="old", weights__second="old"), place)
    collect_output(job_with_output(model="new", weights__first="new"), place)
    files = [path for path in ObjectStoragePath(place).rglob("*") if path.is_file()]
    texts_by_path = {path.path.partition(f"{tmp_path.name}/")[2]: path.read_text() for path in files}
    assert texts_by_path == {"model": "new", "weights/first": "new"}


@pytest.mark.parametrize("name", ["model[1].pt", "best?", "all*"])
@pytest.mark.parametrize("remote", [False, True])
def test_names_of_output_are_not_patterns(name: str, remote: bool, tmp_path: Path) -> None:
    place = f"memory://models/{tmp_path.name}" if remote else str(tmp_path / "out")
    others = {"model1.pt": "other", "best1": "other", "all1": "other"}
    collect_output(job_with_output(**others), place)
    for text in ("old", "new"):
        names = collect_output(job_with_output(**{name: text, f"{name}-folder__{name}": text}), place, [name])
        files = [path for path in storage_path(place).rglob("*") if path.is_file()]
        found = {path.path.partition(f"{storage_path(place).path}/")[2]: path.read_text() for path in files}
        assert found == {**others, name: text, f"{name}-folder/{name}": text}
    collect_output(job_with_output(**others), place, names)
    assert {path.name for path in storage_path(place).iterdir()} == set(others)


def test_other_files_at_the_destination_are_kept(tmp_path: Path) -> None:
    place = f"memory://models/{tmp_path.name}"
    collect_output(job_with_output(model="of another run"), f"{place}/before")
    collect_output(job_with_output(model="new"), place)
    assert ObjectStoragePath(f"{place}/before/model").read_text() == "of another run"


@pytest.mark.parametrize("remote", [False, True])
def test_only_stale_output_of_the_task_is_removed(tmp_path: Path, remote: bool) -> None:
    beside = f"memory://models/{tmp_path.name}" if remote else str(tmp_path)
    place = f"{beside}/out"
    before = collect_output(job_with_output(model="old", checkpoint1000__weights="old"), place)
    assert before == ["checkpoint1000", "model"]
    for name in ("out/mine", "kept"):
        storage_path(f"{beside}/{name}").write_text("of another user")
    nonsense = ["../kept", "..", ".", "", "/"]
    assert collect_output(job_with_output(model="new"), place, [*before, *nonsense]) == ["model"]
    assert sorted(path.name for path in storage_path(place).iterdir()) == ["mine", "model"]
    assert storage_path(f"{beside}/kept").exists()
    assert storage_path(f"{place}/model").read_text() == "new"


@pytest.mark.parametrize("remote", [False, True])
def test_names_that_are_not_utf_8_are_stored_with_escapes(
    tmp_path: Path, remote: bool, caplog: pytest.LogCaptureFixture
) -> None:
    place = f"memory://models/{tmp_path.name}" if remote else str(tmp_path / "out")
    latin, earlier = os.fsdecode(b"mod\xe8le"), None
    for text in ("old", "new"):
        job = job_with_output(**{latin: text, f"{latin}-folder__deep__{latin}": text, "größe": text})
        names = collect_output(job, place, earlier or ())
        assert sorted(names) == ["größe", "mod%E8le", "mod%E8le-folder"]
        assert earlier in (None, names)
        earlier = names
        files = [path for path in storage_path(place).rglob("*") if path.is_file()]
        found = {path.path.partition(f"{storage_path(place).path}/")[2]: path.read_text() for path in files}
        assert found == {"größe": text, "mod%E8le": text, "mod%E8le-folder/deep/mod%E8le": text}
    assert "'mod\\udce8le' of the job's output is stored as 'mod%E8le', because its name is not UTF-8" in caplog.text
    collect_output(job_with_output(model="model"), place, names)
    assert {path.name for path in storage_path(place).iterdir()} == {"model"}
