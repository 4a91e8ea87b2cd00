"""Numbers of versions, and the keys of registrations, after users have deleted folders or other versions took numbers.

What does not depend on the layout of files runs on each kind of registry.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.unit.registry.stores import Store
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, Registry, storage

in_files = pytest.mark.parametrize("store", ["local", "object store"], indirect=True)


def delete(registry: FileRegistry, *folders: str) -> None:
    for folder in folders:
        path: UPath = registry.root / "flights" / folder
        if path.exists():
            path.fs.rm(path.path, recursive=True)


def kill_after_key_is_stored(
    registry: FileRegistry, model_dir: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(storage, "copy", lambda *_: sys.exit(1))
        with pytest.raises(SystemExit):
            registry.register(model_dir, name="flights", key=key)


@pytest.mark.parametrize("is_champion", [False, True])
def test_number_of_a_deleted_version_is_not_given_again(
    store: Store, registry: Registry, name: str, model_dir: Path, is_champion: bool
) -> None:
    registry.register(model_dir, name=name)
    deleted = registry.register(model_dir, name=name)
    if is_champion:
        registry.promote(name, 2, reason="better")
    store.delete(deleted)
    assert registry.register(model_dir, name=name).version == 3
    with pytest.raises(InvalidInputError, match=rf"version: got 2, expected a version of '{name}' \(1, 3\)"):
        registry.promote(name, 2, reason="decided earlier")


def test_deleted_champion_is_named_and_another_version_can_be_promoted(
    store: Store, registry: Registry, name: str, model_dir: Path
) -> None:
    for _ in range(2):
        registry.register(model_dir, name=name)
    registry.promote(name, 1, reason="the first")
    store.delete(registry.version(name, 1))
    for call in (
        lambda: registry.champion(name),
        lambda: registry.promote(name, 2, reason="the first", expected_champion=None),
        lambda: registry.promote(name, 2, reason="better", expected_champion=1),
    ):
        with pytest.raises(InvalidInputError, match=r"champion.*version 1|version: got 1, .*the champion, is missing"):
            call()
    assert registry.history(name)[1:] == []
    assert registry.promote(name, 2, reason="the first is missing").previous == 1
    assert registry.champion(name) == registry.version(name, 2)


@in_files
def test_error_for_a_deleted_champion_names_its_promotion(registry: FileRegistry, model_dir: Path) -> None:
    registry.register(model_dir, name="flights")
    registry.promote("flights", 1, reason="the first")
    delete(registry, "versions/000001")
    with pytest.raises(
        InvalidInputError,
        match=r"flights/promotions/000001\.json: version: got 1, expected an existing version: version 1 of 'flights', "
        r"the champion, is missing; restore .*flights/versions/000001 or promote another version$",
    ):
        registry.champion("flights")


@in_files
@pytest.mark.parametrize("record", ["keys", "promotions"])
def test_number_of_a_deleted_version_in_the_registry_of_an_earlier_release_is_not_given_again(
    registry: FileRegistry, model_dir: Path, record: str
) -> None:
    registry.register(model_dir, name="flights")
    registry.register(model_dir, name="flights", key="run")
    registry.promote("flights", 2, reason="better")
    registry.promote("flights", 1, reason="back to the first")
    delete(registry, "numbers", "versions/000002", "keys" if record == "promotions" else "promotions")
    assert registry.register(model_dir, name="flights").version == 3
    assert registry.register(model_dir, name="flights").version == 4


@in_files
def test_number_that_an_earlier_release_has_reserved_is_not_given_again(
    registry: FileRegistry, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = registry.root / "flights" / "versions" / "000001" / "reserved"
    numbered = storage.numbered

    def reserve_and_list(*arguments: str) -> list[int]:
        found = numbered(*arguments)  # type: ignore[arg-type]
        reserved.parent.mkdir(parents=True, exist_ok=True)
        reserved.write_bytes(b"an earlier release")
        return found

    monkeypatch.setattr(storage, "numbered", reserve_and_list)
    monkeypatch.setattr(storage, "names_in", lambda *_: [])
    assert registry.register(model_dir, name="flights").version == 2


def test_retry_after_its_version_was_deleted_creates_one_version_with_a_new_number(
    store: Store, registry: Registry, name: str, model_dir: Path
) -> None:
    made = registry.register(model_dir, name=name, key="run")
    for number in (2, 3):
        store.delete(made)
        made = registry.register(model_dir, name=name, key="run")
        assert made.version == number
        assert registry.register(model_dir, name=name, key="run") == made
        assert registry.versions(name) == [made]


@in_files
def test_retry_after_another_registration_has_taken_its_number_gets_a_new_number(
    registry: FileRegistry, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_after_key_is_stored(registry, model_dir, "run", monkeypatch)
    delete(registry, "versions/000001")
    other = registry.register(model_dir, name="flights", key="other")
    again = registry.register(model_dir, name="flights", key="run")
    assert registry.versions("flights") == [other, again]
    assert registry.register(model_dir, name="flights", key="run") == again
    assert registry.register(model_dir, name="flights", key="other") == other


@in_files
@pytest.mark.parametrize("key", ["run", None])
def test_registration_whose_number_another_version_takes_meanwhile_gets_a_new_number(
    registry: FileRegistry, model_dir: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = storage.copy

    def take_number_and_copy(*arguments: str) -> tuple[int, str]:
        copied = copy(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(storage, "copy", copy)
        home = registry.root / "flights" / "versions" / "000001"
        other = FileRegistry(registry.root / "elsewhere").register(model_dir, name="flights", key="other")
        (home / "manifest.json").write_text(json.dumps(json.loads(other.model_dump_json())))
        return copied

    monkeypatch.setattr(storage, "copy", take_number_and_copy)
    made = registry.register(model_dir, name="flights", key=key)
    assert (made.version, made.key) == (2, key)
    assert [version.key for version in registry.versions("flights")] == ["other", key]
    if key is not None:
        assert registry.register(model_dir, name="flights", key=key) == made
