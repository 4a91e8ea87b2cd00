"""Deletion of versions: what stays, and what other processes see, in each kind of registry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.unit.registry.stores import Store

from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, Registry, VersionNeededError, _files, _mlflow, storage
from paceline.registry._mlflow_server import MlflowServer
from paceline.registry.base import DeletionMark


class KilledError(BaseException):
    """Ends a deletion like a kill: nothing is tidied up."""


@pytest.fixture
def champions(registry: Registry, name: str, model_dir: Path) -> Registry:
    """Return a registry with five versions, of which 2, 3 and 4 have been champion one after the other."""
    for number in range(1, 6):
        registry.register(model_dir, name=name, key=f"run {number}")
    for number in (2, 3, 4):
        registry.promote(name, number, f"better than {number - 1}")
    return registry


def test_deleted_version_is_gone_and_its_number_and_the_history_stay(
    store: Store, champions: Registry, name: str, model_dir: Path
) -> None:
    history, folder = champions.history(name), store.folder(champions.version(name, 2))
    for number in (2, 5):
        champions.delete(name, number)
    reader = store.open()
    assert reader.numbers(name) == [one.version for one in reader.versions(name)] == [1, 3, 4]
    assert reader.history(name) == history
    assert (reader.last_promotion(name), reader.champion_number(name)) == (history[-1], 4)
    assert reader.models() == [name] or name in reader.models()
    if isinstance(reader, FileRegistry):  # `mlflow gc` removes the files of a deleted run
        folder.fs.invalidate_cache()
        assert not folder.parent.exists()
    for call in (lambda: reader.version(name, 5), lambda: reader.promote(name, 5, ""), lambda: reader.delete(name, 5)):
        with pytest.raises(InvalidInputError, match=rf"version: got 5, expected a version of '{name}' \(1, 3, 4\)"):
            call()
    assert reader.register(model_dir, name=name, key="run 5").version == 6
    assert reader.register(model_dir, name=name, key="run 5").version == 6
    assert reader.promote(name, 6, "later").previous == 4


def test_champion_and_the_champion_before_it_stay(champions: Registry, name: str) -> None:
    with pytest.raises(VersionNeededError, match=f"got 4, expected a version of '{name}' other than the champion, 4$"):
        champions.delete(name, 4)
    with pytest.raises(VersionNeededError, match=r"got 3, expected .* and the champion before it, for a rollback"):
        champions.delete(name, 3)
    champions.promote(name, 3, "worse", hold=True)
    for number in (2, 3, 4):  # another rollback goes to 2, and a release may be followed by a promotion of 4
        with pytest.raises(VersionNeededError):
            champions.delete(name, number)
    assert champions.numbers(name) == [1, 2, 3, 4, 5]
    assert champions.unfinished(name) == []
    assert champions.promote(name, 2, "still usable").previous == 3


def test_model_without_a_champion_keeps_all_versions(registry: Registry, name: str, model_dir: Path) -> None:
    registry.register(model_dir, name=name)
    with pytest.raises(VersionNeededError, match="a model with a champion; others keep all versions"):
        registry.delete(name, 1)
    assert registry.numbers(name) == [1]


def test_version_stays_if_the_check_fails(champions: Registry, name: str) -> None:
    def refuse() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        champions.delete(name, 1, check=refuse)
    assert champions.unfinished(name) == []
    assert champions.promote(name, 1, "still usable").version == 1


def test_nothing_begins_to_use_a_version_while_it_is_checked(
    store: Store, champions: Registry, name: str, model_dir: Path
) -> None:
    """A retry of the evaluation that has registered the version registers its model anew."""
    other = store.open()

    def use() -> None:
        with pytest.raises(InvalidInputError, match="version: got 1, expected a version of"):
            other.promote(name, 1, "late")
        assert other.register(model_dir, name=name, key="run 1").version == 6

    champions.delete(name, 1, check=use)
    assert other.numbers(name) == [2, 3, 4, 5, 6]


def before(monkeypatch: pytest.MonkeyPatch, function: str, action: Callable[[], object]) -> None:
    """Call the action before the first call of a function of both kinds of registries."""
    pending = [action]
    for module in (_files, _mlflow):
        original = getattr(module, function)

        def call(*arguments: object, original: Callable[..., object] = original) -> object:
            if pending:
                pending.pop()()
            return original(*arguments)

        monkeypatch.setattr(module, function, call)


def test_promotion_that_has_found_its_version_fails_if_the_deletion_comes_first(
    store: Store, champions: Registry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before(monkeypatch, "check_not_held", lambda: store.open().delete(name, 5))
    with pytest.raises(InvalidInputError, match="version: got 5, expected a version of"):
        champions.promote(name, 5, "late")
    assert champions.champion_number(name) == 4


def test_deletion_fails_if_a_promotion_that_has_found_the_version_comes_first(
    store: Store, champions: Registry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, is_marked = threading.Event(), threading.Event()

    def wait() -> None:
        found.set()
        assert is_marked.wait(60)

    before(monkeypatch, "check_not_held", wait)
    promoter = threading.Thread(target=lambda: store.open().promote(name, 5, "in time", expected_champion=4))
    promoter.start()
    assert found.wait(60)

    def promote() -> None:
        is_marked.set()
        promoter.join()

    # The deletion has marked the version, and has read the newest promotion.
    before(monkeypatch, "check_deletable", promote)
    with pytest.raises(VersionNeededError):
        champions.delete(name, 5)
    champion = store.open().champion(name)
    assert champion is not None
    assert champion.version == 5
    assert champions.unfinished(name) == []


@pytest.mark.parametrize("step", range(9))
def test_killed_deletion_is_finished_by_another(
    step: int, store: Store, champions: Registry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list(range(step + 1))

    def kill_at(step_function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            if arguments[1] != "GET":
                if len(steps) == 1:
                    raise KilledError
                steps.pop()
            return step_function(*arguments, **more)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(DeletionMark, "may_remove", lambda mark, found: False)
        patch.setattr(storage, "put_new", kill_at(storage.put_new))
        patch.setattr(storage, "remove", kill_at(storage.remove))
        patch.setattr(MlflowServer, "_send", kill_at(MlflowServer._send))
        killed = False
        try:
            champions.delete(name, 1)
        except KilledError:
            killed = True
    reader = store.open()
    if 1 in reader.numbers(name):
        reader.fetch(reader.version(name, 1), tmp_path / "complete")
    unfinished = reader.unfinished(name)
    assert killed or unfinished == []
    assert (1 in reader.numbers(name)) + len(unfinished) <= 1
    monkeypatch.setattr("paceline.registry.base._DELETION_TIMEOUT", timedelta(0))
    if unfinished or 1 in reader.numbers(name):
        reader.delete(name, 1)
    assert reader.unfinished(name) == []
    assert [one.version for one in reader.versions(name)] == [2, 3, 4, 5]
    assert reader.champion_number(name) == 4


def test_mark_of_a_killed_deletion_is_removed_from_a_needed_version_after_ten_minutes(
    store: Store, champions: Registry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill() -> None:
        raise KilledError

    def is_usable_after_another_deletion() -> bool:
        with pytest.raises((ZeroDivisionError, InvalidInputError)):
            champions.delete(name, 1, check=lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        return champions.unfinished(name) == []

    with monkeypatch.context() as patch:
        patch.setattr(DeletionMark, "may_remove", lambda mark, found: False)
        with pytest.raises(KilledError):
            champions.delete(name, 1, check=kill)
    assert not is_usable_after_another_deletion(), "the other process may be deleting the version now"
    monkeypatch.setattr("paceline.registry.base._DELETION_TIMEOUT", timedelta(0))
    assert is_usable_after_another_deletion()


def test_version_is_deleted_by_one_process_only(
    store: Store, champions: Registry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the one that keeps the version after all would remove the mark of the other."""

    def keep() -> None:
        with pytest.raises(InvalidInputError, match=r"got 1, expected a version that no other process deletes since"):
            store.open().delete(name, 1)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        champions.delete(name, 1, check=keep)
    assert champions.promote(name, 1, "still usable").version == 1
