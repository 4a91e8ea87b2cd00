"""The copy of a version's training data, its reference: in a folder, on an object store and on an MLflow server."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from tests.unit.registry.stores import Store
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import ModelVersion, Registry, base

KEY = "k" * 32
ROWS = "age\n29\n30\n"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Return a file with the training data, in a folder that users may clean."""
    path = tmp_path / "reports" / "rows.csv"
    path.parent.mkdir()
    path.write_text(ROWS)
    return path


def copied(store: Store, version: ModelVersion) -> UPath:
    """Return the file of the copy, as a user with access to the storage finds it."""
    assert version.reference is not None
    return store.manifest(version).parent / version.reference.path


def test_reference_outlives_its_original_and_does_not_belong_to_the_model(
    registry: Registry, name: str, model_dir: Path, rows: Path, tmp_path: Path
) -> None:
    plain = registry.register(model_dir, name=name)
    version = registry.register(model_dir, name=name, reference=rows)
    rows.unlink()
    assert registry.version(name, 2) == version
    assert (version.digest, set(version.files)) == (plain.digest, set(plain.files))
    fetched = registry.fetch_reference(version, tmp_path / "reference")
    assert fetched is not None
    assert fetched == tmp_path / "reference" / "window.csv"
    assert fetched.read_text() == ROWS
    model = registry.fetch(version, tmp_path / "fetched")
    fetched_files = {str(path.relative_to(model)) for path in model.rglob("*") if path.is_file()}
    assert fetched_files == set(plain.files)


def test_version_without_a_reference_has_none(registry: Registry, name: str, model_dir: Path, tmp_path: Path) -> None:
    version = registry.register(model_dir, name=name)
    assert version.reference is None
    assert "reference" not in version.model_dump(), "the signatures of earlier versions would be wrong"
    assert registry.fetch_reference(version, tmp_path / "reference") is None


@pytest.mark.parametrize(
    ("file", "accepted"),
    [
        ("rows.pkl", "a file that ends in .parquet, .csv or .csv.gz"),
        ("missing.csv", "an existing file"),
        ("folder.parquet", "a(n existing| plain) file"),
        ("large.csv", "a file of at most 10 bytes"),
    ],
)
def test_reference_that_no_check_can_read_is_rejected_and_nothing_is_registered(
    registry: Registry,
    name: str,
    model_dir: Path,
    rows: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    accepted: str,
) -> None:
    (rows.parent / "rows.pkl").touch()
    (rows.parent / "folder.parquet").mkdir()
    (rows.parent / "large.csv").write_text("age\n" * 3)
    monkeypatch.setattr(base, "MAX_REFERENCE_BYTES", 10)
    with pytest.raises(InvalidInputError, match=f"{file}.*, expected {accepted}"):
        registry.register(model_dir, name=name, reference=rows.parent / file)
    assert registry.numbers(name) == []


def test_reference_larger_than_a_registry_accepts_is_not_read(
    store: Store, registry: Registry, name: str, model_dir: Path, rows: Path
) -> None:
    version = registry.register(model_dir, name=name, reference=rows)
    assert version.reference is not None
    store.change_manifest(version, reference=version.reference.model_dump() | {"size_bytes": 2**30 + 1})
    with pytest.raises(InvalidInputError, match=r"\.json: reference\.size_bytes: got 1073741825"):
        registry.version(name, 1)


@pytest.mark.parametrize("path", ["../../000002/manifest.json", "/etc/passwd", "a/../../x", ""])
def test_reference_outside_its_version_is_rejected(
    store: Store, registry: Registry, name: str, model_dir: Path, rows: Path, path: str
) -> None:
    version = registry.register(model_dir, name=name, reference=rows)
    assert version.reference is not None
    store.change_manifest(version, reference=version.reference.model_dump() | {"path": path})
    with pytest.raises(InvalidInputError, match=r"\.json: reference\.path"):
        registry.version(name, 1)


@pytest.mark.parametrize("text", [None, ROWS.replace("29", "70"), ROWS * 2])
def test_missing_or_changed_copy_is_rejected(
    store: Store, registry: Registry, name: str, model_dir: Path, rows: Path, tmp_path: Path, text: str | None
) -> None:
    version = registry.register(model_dir, name=name, reference=rows)
    copy = copied(store, version)
    if text is None:
        copy.unlink()
    else:
        copy.write_text(text)
    found = "no file" if text is None else "(sha256|a larger file)"
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "window.csv").write_text("of an earlier call")
    with pytest.raises(InvalidInputError, match=rf"window\.csv: got '{found}"):
        registry.fetch_reference(version, tmp_path / "reference")
    assert [path.read_text() for path in (tmp_path / "reference").iterdir()] == ["of an earlier call"]


def test_link_in_place_of_a_copy_is_not_followed(model_dir: Path, rows: Path, tmp_path: Path) -> None:
    store = Store(UPath(tmp_path / "registry"))
    version = store.open().register(model_dir, name="flights", reference=rows)
    copy = Path(copied(store, version).path)
    copy.unlink()
    copy.symlink_to(rows)
    with pytest.raises(InvalidInputError, match="a symbolic link"):
        store.open().fetch_reference(version, tmp_path / "reference")


def test_reference_is_signed(store: Store, name: str, model_dir: Path, rows: Path, tmp_path: Path) -> None:
    signed = store.open(KEY)
    version = signed.register(model_dir, name=name, reference=rows)
    assert signed.fetch_reference(signed.version(name, 1), tmp_path / "reference") is not None
    assert version.reference is not None
    planted: dict[str, Any] = {"sha256": hashlib.sha256(b"age\n").hexdigest(), "size_bytes": 4}
    store.change_manifest(version, reference=version.reference.model_dump() | planted)
    store.open().version(name, 1)  # without a key, the change is not noticed
    with pytest.raises(InvalidInputError, match="signature"):
        signed.version(name, 1)
    with pytest.raises(InvalidInputError, match="signature"):
        signed.fetch_reference(store.open().version(name, 1), tmp_path / "reference")


def test_concurrent_registrations_with_one_key_leave_one_complete_copy(
    store: Store, registry: Registry, name: str, model_dir: Path, rows: Path, tmp_path: Path
) -> None:
    barrier = Barrier(4)

    def register_and_promote(_: int) -> ModelVersion:
        barrier.wait()
        made = store.open().register(model_dir, name=name, reference=rows, key="run")
        store.open().promote(name, made.version, reason="better")
        return made

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(register_and_promote, range(4)))
    champion = registry.champion(name)
    assert champion is not None
    assert {version.version for version in made} == {champion.version}
    fetched = registry.fetch_reference(champion, tmp_path / "reference")
    assert fetched is not None
    assert fetched.read_text() == ROWS


def test_manifest_of_an_earlier_release_has_no_reference(
    store: Store, registry: Registry, name: str, model_dir: Path
) -> None:
    version = registry.register(model_dir, name=name)
    manifest = json.loads(store.manifest(version).read_text())
    manifest.pop("reference", None)
    store.write_manifest(version, json.dumps(manifest))
    assert registry.version(name, 1) == version
