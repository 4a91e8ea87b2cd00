"""Numbers of versions, and the keys of registrations, after users have deleted folders or other versions took numbers.

In a local folder and on a real S3 server.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

import pytest
from tests.s3_server import S3Server
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, storage


@pytest.fixture(params=["local", "s3"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> FileRegistry:
    if request.param == "local":
        return FileRegistry(tmp_path / "registry")
    server: S3Server = request.getfixturevalue("s3_server")
    return FileRegistry(server.folder(uuid.uuid4().hex))


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
    registry: FileRegistry, model_dir: Path, is_champion: bool
) -> None:
    registry.register(model_dir, name="flights")
    registry.register(model_dir, name="flights")
    if is_champion:
        registry.promote("flights", 2, reason="better")
    delete(registry, "versions/000002")
    assert registry.register(model_dir, name="flights").version == 3
    with pytest.raises(InvalidInputError, match=r"version: got 2, expected a version of 'flights' \(1, 3\)"):
        registry.promote("flights", 2, reason="decided earlier")


def test_error_for_a_deleted_champion_names_its_promotion_and_another_version_can_be_promoted(
    registry: FileRegistry, model_dir: Path
) -> None:
    registry.register(model_dir, name="flights")
    registry.register(model_dir, name="flights")
    registry.promote("flights", 1, reason="the first")
    delete(registry, "versions/000001")
    with pytest.raises(
        InvalidInputError,
        match=r"flights/promotions/000001\.json: version: got 1, expected an existing version: version 1 of 'flights', "
        r"the champion, is missing; restore .*flights/versions/000001 or promote another version$",
    ):
        registry.champion("flights")
    assert registry.promote("flights", 2, reason="the first is missing").previous == 1
    assert registry.champion("flights") == registry.version("flights", 2)


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
    registry: FileRegistry, model_dir: Path
) -> None:
    registry.register(model_dir, name="flights", key="run")
    delete(registry, "versions/000001")
    for number in (2, 3):
        again = registry.register(model_dir, name="flights", key="run")
        assert again.version == number
        assert registry.register(model_dir, name="flights", key="run") == again
        assert registry.versions("flights") == [again]
        delete(registry, f"versions/00000{number}")


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
