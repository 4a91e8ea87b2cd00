"""``paceline backup`` and ``paceline restore`` of registries in a folder and on an object store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.registry.stores import Store
from upath import UPath

from paceline.airflow import cli
from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, Registry, VersionNeededError, copies, storage

KEY = "k" * 32
pytestmark = pytest.mark.parametrize("store", ["local", "object store"], indirect=True)


@pytest.fixture
def signed(store: Store, model_dir: Path, tmp_path: Path) -> Registry:
    """Return a registry with two models, of which the one has three versions and two promotions."""
    (model_dir / "predict").write_text("#!/bin/sh\n")
    (model_dir / "predict").chmod(0o755)
    (tmp_path / "rows.csv").write_text("a\n1\n")
    registry = store.open(KEY)
    for number in (1, 2, 3):
        registry.register(model_dir, name="flights", key=f"run {number}", reference=tmp_path / "rows.csv")
    registry.register(model_dir, name="other")
    for number in (1, 2):
        registry.promote("flights", number, "better")
    return registry


def copy(source: Registry, target: UPath, *, has_deleted: bool = True) -> dict[str, tuple[int, int, int | None]]:
    assert isinstance(source, FileRegistry)
    found = list(copies.copy_registry(source, target, has_deleted=has_deleted))
    assert [one.problems for one in found] == [()] * len(found)
    return {one.name: (one.versions, one.new, one.champion) for one in found}


def contents(registry: Registry) -> dict[str, Any]:
    return {name: (registry.versions(name), registry.history(name)) for name in registry.models()}


@pytest.fixture
def target(store: Store) -> UPath:
    """Return an empty folder of the same kind."""
    return store.root.parent / f"{store.root.name}-backup"


def test_copy_has_all_versions_promotions_and_signatures(
    store: Store, signed: Registry, target: UPath, tmp_path: Path, model_dir: Path
) -> None:
    assert copy(signed, target) == {"flights": (3, 3, 2), "other": (1, 1, None)}
    copied = FileRegistry(target, signing_key=KEY)
    assert contents(copied) == contents(signed)
    champion = copied.champion("flights")
    assert champion is not None
    fetched = copied.fetch(champion, tmp_path / "fetched")
    assert (fetched / "weights.pt").read_bytes() == b"weights" * 1000
    reference = copied.fetch_reference(champion, tmp_path / "reference")
    assert reference is not None
    assert reference.read_text() == "a\n1\n"
    assert copied.register(model_dir, name="flights", key="run 3").version == 3
    assert copied.register(model_dir, name="flights", key="run 4").version == 4


def test_later_backup_copies_only_what_is_new(store: Store, signed: Registry, target: UPath, model_dir: Path) -> None:
    copy(signed, target)
    signed.register(model_dir, name="flights")
    signed.promote("flights", 4, "better")
    signed.delete("flights", 1)
    assert copy(signed, target) == {"flights": (3, 1, 4), "other": (1, 0, None)}
    copied = FileRegistry(target, signing_key=KEY)
    assert copied.numbers("flights") == [1, 2, 3, 4], "a backup keeps what has been deleted since"
    assert copied.history("flights") == signed.history("flights")


def test_restore_needs_a_target_without_anything_else(store: Store, signed: Registry, target: UPath) -> None:
    assert isinstance(signed, FileRegistry)
    copy(signed, target)
    backup = FileRegistry(target)
    assert copy(backup, signed.root, has_deleted=False) == {"flights": (3, 0, 2), "other": (1, 0, None)}
    signed.promote("flights", 3, "since the backup")
    for source, root in ((backup, signed.root), (signed, target)):
        if source is signed:  # the backup of a registry that has gone another way
            backup.promote("flights", 1, "in the copy")
        with pytest.raises(InvalidInputError, match=r"target: got .* or a copy of .*: its flights/promotions/000003"):
            copy(source, root, has_deleted=False)


class KilledError(BaseException):
    """Ends a copy like a kill."""


@pytest.mark.parametrize("writes", [0, 1, 3, 5, 8, 12])
def test_killed_copy_has_no_incomplete_version_and_is_completed(
    writes: int, store: Store, signed: Registry, target: UPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [None] * writes

    def kill_later(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if not left:
                raise KilledError
            left.pop()
            return write(*arguments, **more)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(storage, "put", kill_later(storage.put))
        patch.setattr(storage, "put_new", kill_later(storage.put_new))
        patch.setattr(storage, "copy", kill_later(storage.copy))
        with pytest.raises(KilledError):
            copy(signed, target)
    copied = FileRegistry(target, signing_key=KEY)
    for name in copied.models():
        assert {one.version for one in copied.history(name)} <= set(copied.numbers(name))
        for version in copied.versions(name):
            copied.fetch(version, tmp_path / name / str(version.version))
    copy(signed, target)
    assert contents(copied) == contents(signed)


def test_copy_is_consistent_while_versions_are_promoted_and_deleted(
    store: Store, signed: Registry, target: UPath, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The champion of the promotions that have been read is replaced twice and deleted before it is copied."""
    original, pending = FileRegistry.numbers, ["once"]

    def numbers(registry: FileRegistry, name: str) -> list[int]:
        if pending and name == "flights":
            pending.pop()
            signed.register(model_dir, name="flights")
            signed.promote("flights", 3, "better")
            signed.promote("flights", 4, "better")
            signed.delete("flights", 2)
        return original(registry, name)

    monkeypatch.setattr(FileRegistry, "numbers", numbers)
    copy(signed, target)
    copied = FileRegistry(target, signing_key=KEY)
    assert copied.champion_number("flights") == 4
    assert copied.numbers("flights") == [1, 3, 4]
    assert copied.history("flights") == signed.history("flights")


def test_champion_before_is_copied_while_another_process_tries_to_delete_it(
    store: Store, signed: Registry, target: UPath
) -> None:
    copied = []

    def copy_meanwhile() -> None:
        copied.append(copy(signed, target))

    with pytest.raises(VersionNeededError):
        signed.delete("flights", 1, check=copy_meanwhile)
    assert copied == [{"flights": (3, 3, 2), "other": (1, 1, None)}]
    assert contents(FileRegistry(target, signing_key=KEY)) == contents(signed)


@pytest.mark.parametrize("promoted", [False, True])
def test_record_that_a_task_writes_to_the_target_during_the_copy_stays(
    promoted: bool, store: Store, signed: Registry, target: UPath, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, task = FileRegistry.numbers, FileRegistry(target)

    def numbers(registry: FileRegistry, name: str) -> list[int]:
        if registry is signed and name == "flights":
            task.register(model_dir, name=name, key="of the task")
            if promoted:
                task.promote(name, 1, "of the task")
        return original(registry, name)

    monkeypatch.setattr(FileRegistry, "numbers", numbers)
    with pytest.raises(InvalidInputError, match=r"target: got .*, expected a registry that no task uses: .*/0+1.*json"):
        copy(signed, target, has_deleted=False)
    assert task.version("flights", 1).key == "of the task"
    assert [one.reason for one in task.history("flights")] == ["of the task"] * promoted


def test_changed_file_and_unsigned_version_are_not_copied(store: Store, signed: Registry, target: UPath) -> None:
    assert isinstance(signed, FileRegistry)
    (store.folder(signed.version("flights", 1)) / "weights.pt").write_text("changed")
    store.change_manifest(signed.version("flights", 3), metrics={"auc": 1.0})
    found = {one.name: one for one in copies.copy_registry(signed, target, has_deleted=True)}["flights"]
    assert (found.versions, found.champion, len(found.problems)) == (1, 2, 2)
    assert "flights version 1 is not copied: " in found.problems[0]
    assert "weights.pt: got 'sha256 " in found.problems[0]
    assert "flights version 3 is not copied: signature of flights version 3: got" in found.problems[1]
    assert FileRegistry(target).numbers("flights") == [2]


def test_registry_without_a_model_is_rejected(store: Store, registry: Registry, target: UPath) -> None:
    with pytest.raises(InvalidInputError, match=r"registry: got .*, expected a registry with a model"):
        copy(registry, target)


def test_commands_copy_the_training_data_that_the_registry_lacks(
    store: Store, registry: Registry, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    window = tmp_path / "reports" / "window.parquet"
    window.parent.mkdir()
    window.write_text("rows")
    registry.register(model_dir, name="flights", data_window={"source": f"file://{window}"})
    registry.promote("flights", 1, "first")
    backup, restored = str(tmp_path / "backup"), str(tmp_path / "restored")
    assert cli.main(["backup", store.location, backup]) == 0
    assert capsys.readouterr().out == "flights: 1 version (1 new in the backup), champion 1\n"
    window.unlink()
    assert cli.main(["restore", backup, restored]) == 1
    shown = capsys.readouterr()
    assert shown.out == "flights: 1 version (1 new in the registry), champion 1\n"
    assert f"version 1 of flights needs {UPath(f'file://{window}')}, which is missing: add --sources" in shown.err
    assert cli.main(["restore", backup, restored, "--sources"]) == 0
    assert window.read_text() == "rows"
    assert FileRegistry(restored).champion("flights") == registry.champion("flights")
    assert cli.main(["backup", store.location, backup]) == 0


def test_backup_has_the_training_data_of_its_own_champions(
    store: Store, tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two other versions become champion after the promotions have been read."""
    registry, original, pending = store.open(), FileRegistry.numbers, ["once"]
    windows = [tmp_path / f"window-{number}.csv" for number in (1, 2, 3, 4)]
    for window in windows:
        window.write_text(window.name)
        registry.register(model_dir, name="flights", data_window={"source": f"file://{window}"})
    for number in (1, 2):
        registry.promote("flights", number, "better")

    def numbers(self: FileRegistry, name: str) -> list[int]:
        if pending:
            pending.pop()
            for number in (3, 4):
                registry.promote("flights", number, "better")
        return original(self, name)

    monkeypatch.setattr(FileRegistry, "numbers", numbers)
    backup, restored = str(tmp_path / "backup"), str(tmp_path / "restored")
    assert cli.main(["backup", store.location, backup]) == 0
    for window in windows:
        window.unlink()
    assert cli.main(["restore", backup, restored, "--sources"]) == 0
    assert [window.exists() for window in windows] == [True, True, False, False]
    assert FileRegistry(restored).champion_number("flights") == 2


def test_mlflow_is_referred_to_its_own_backup(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["backup", "mlflow://models", str(tmp_path / "backup")]) == 1
    assert (
        "REGISTRY: got 'mlflow://models', expected a folder or an object storage URL. Back up an MLflow server by "
        in (capsys.readouterr().err)
    )
    assert cli.main(["restore", str(tmp_path), "mlflow://models"]) == 1
    assert json.dumps(capsys.readouterr().err)
