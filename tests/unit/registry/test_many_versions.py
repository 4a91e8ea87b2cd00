"""What remains readable in a registry with many versions and deletions, and how many requests it takes."""

from __future__ import annotations

import argparse
import uuid
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.unit.registry.stores import MlflowStore, Store
from upath import UPath

from paceline.airflow import _model_command, _prune_command
from paceline.airflow._prune_items import Item
from paceline.airflow._prune_runs import Runs
from paceline.airflow._prune_versions import Versions
from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, Promotion, Registry, VersionNeededError, storage


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of lists and reads of the file system in memory, where each would be a request to a server."""
    counted: Counter[str] = Counter()

    def count(kind: str, method: str) -> None:
        original = getattr(MemoryFileSystem, method)

        def call(self: Any, path: str, *arguments: Any, **more: Any) -> Any:
            if kind == "LIST" or "rb" in (*arguments, more.get("mode")):
                counted[kind] += 1
            return original(self, path, *arguments, **more)

        monkeypatch.setattr(MemoryFileSystem, method, call)

    count("LIST", "ls")
    count("GET", "_open")
    return counted


@pytest.fixture
def in_memory() -> FileRegistry:
    return FileRegistry(UPath(f"memory://{uuid.uuid4().hex}/registry"))


def fill(registry: Registry, name: str, model_dir: Path, *, versions: int, promoted: int) -> list[Promotion]:
    """Register versions, promote the last ones, and return the history of promotions."""
    for _ in range(versions):
        registry.register(model_dir, name=name)
    for number in range(versions - promoted + 1, versions + 1):
        registry.promote(name, number, f"better than {number - 1}")
    return registry.history(name)


def test_newest_changes_of_the_champion_are_found_behind_those_of_many_deletions(
    store: Store, registry: Registry, name: str, model_dir: Path
) -> None:
    history = fill(registry, name, model_dir, versions=26, promoted=3)
    for number in range(1, 24):
        registry.delete(name, number)
    reader = store.open()
    assert reader.history(name) == history
    assert reader.history(name, newest=2) == history[-2:]
    assert reader.history(name, newest=20) == history


def test_history_takes_one_read_for_each_promotion_and_none_for_deletions(
    in_memory: FileRegistry, model_dir: Path, requests: Counter[str]
) -> None:
    history = fill(in_memory, "flights", model_dir, versions=12, promoted=3)
    for number in range(1, 9):
        in_memory.delete("flights", number)
    for newest, reads in ((None, 3), (20, 3), (2, 2), (1, 1)):
        requests.clear()
        assert in_memory.history("flights", newest=newest) == history[-(newest or 20) :]
        assert requests == {"LIST": 1, "GET": reads}


def test_history_between_promotions_and_deletions_is_that_of_the_promotions(
    in_memory: FileRegistry, model_dir: Path, requests: Counter[str]
) -> None:
    history = fill(in_memory, "flights", model_dir, versions=9, promoted=2)
    for deleted, promoted in ((1, 3), (2, 4)):
        in_memory.delete("flights", deleted)
        history.append(in_memory.promote("flights", promoted, "by a person"))
    in_memory.delete("flights", 5)
    requests.clear()
    assert in_memory.history("flights") == history
    assert requests["GET"] == 4


def test_records_with_which_an_earlier_release_repeats_a_promotion_are_no_changes(
    in_memory: FileRegistry, model_dir: Path
) -> None:
    """Its records do not name the record that they repeat, also those after a record that does."""
    history = fill(in_memory, "flights", model_dir, versions=6, promoted=3)
    folder = in_memory.root / "flights" / "promotions"
    text = (folder / "000003.json").read_text()
    for number in range(4, 7):
        (folder / f"{number:06}.json").write_text(text)
    in_memory.delete("flights", 1)
    assert sorted(path.name for path in folder.iterdir())[-1] == "000007.json"
    (folder / "000008.json").write_text(text)
    in_memory.delete("flights", 2)
    assert in_memory.history("flights") == history
    assert in_memory.history("flights", newest=3) == history
    assert in_memory.last_promotion("flights") == history[-1]


def test_reading_of_the_newest_changes_ends_after_a_thousand_records(
    in_memory: FileRegistry, model_dir: Path, requests: Counter[str]
) -> None:
    """A folder that any author of a DAG names must not keep the API server busy."""
    history = fill(in_memory, "flights", model_dir, versions=2, promoted=2)
    text = (in_memory.root / "flights" / "promotions" / "000002.json").read_text()
    for number in range(3, 1100):
        storage.put(in_memory.root, f"flights/promotions/{number:06}.json", text.encode())
    requests.clear()
    assert in_memory.history("flights", newest=20) == history[-1:]
    assert requests["GET"] == 1000
    assert in_memory.history("flights") == history


@pytest.mark.parametrize("named", [0, 3, 4])
def test_record_that_names_itself_or_a_later_one_is_read_as_a_promotion(
    named: int, in_memory: FileRegistry, model_dir: Path
) -> None:
    history = fill(in_memory, "flights", model_dir, versions=3, promoted=3)
    path = in_memory.root / "flights" / "promotions" / "000003.json"
    path.write_text(path.read_text().replace("{", f'{{"repeats": {named},', 1))
    assert in_memory.history("flights") == history


def test_newest_versions_take_one_list_and_one_read_each(
    in_memory: FileRegistry, model_dir: Path, requests: Counter[str]
) -> None:
    fill(in_memory, "flights", model_dir, versions=12, promoted=1)
    (in_memory.root / "flights" / "versions" / "000013").mkdir()
    storage.put(in_memory.root, "flights/versions/000013/reserved", b"of a registration that goes on")
    storage.put(in_memory.root, "flights/versions/000011/deleting", b"of a killed deletion")
    requests.clear()
    assert [one.version for one in in_memory.summaries("flights", 3)] == [12, 10, 9]
    assert requests == {"LIST": 1 + 5, "GET": 3}
    requests.clear()
    assert in_memory.unfinished("flights", known=in_memory.numbers("flights")) == [11]
    assert requests == {"LIST": 2 + 13, "GET": 2}


def test_error_for_a_missing_version_names_the_newest_versions(
    in_memory: FileRegistry, model_dir: Path, requests: Counter[str]
) -> None:
    fill(in_memory, "flights", model_dir, versions=22, promoted=0)
    requests.clear()
    with pytest.raises(
        InvalidInputError, match=r"got 99, expected a version of 'flights' \(\.\.\., 3, 4, .*, 21, 22\)$"
    ):
        in_memory.version("flights", 99)
    assert requests["LIST"] == 1 + 21


@pytest.fixture
def options(in_memory: FileRegistry, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Return the options of a command for the registry in memory."""
    monkeypatch.setattr(_model_command, "open_location", lambda *arguments: in_memory)
    return argparse.Namespace(registry="memory://", model="flights", signing_conn_id=None, asset=None, reason="worse")


def test_commands_look_at_few_versions(
    in_memory: FileRegistry, model_dir: Path, requests: Counter[str], options: argparse.Namespace
) -> None:
    fill(in_memory, "flights", model_dir, versions=30, promoted=2)
    requests.clear()
    assert _model_command._open(options) is in_memory
    assert requests == {"LIST": 2, "GET": 1}
    options.version = None
    requests.clear()
    assert _model_command._roll_back(options) == 0
    assert requests["LIST"] + requests["GET"] < 60, "far less than one of each for each version"
    assert in_memory.champion_number("flights") == 29


@pytest.mark.parametrize("signed", ["one of the newest", "the champion", "the version"])
def test_unsigned_command_is_refused_if_a_version_that_matters_is_signed(
    signed: str, in_memory: FileRegistry, model_dir: Path, options: argparse.Namespace
) -> None:
    with_key = FileRegistry(in_memory.root, signing_key="k" * 32)
    signed_number = {"one of the newest": 17, "the champion": 2, "the version": 3}[signed]
    for number in range(1, 21):
        (with_key if number == signed_number else in_memory).register(model_dir, name="flights")
    in_memory.promote("flights", 2, "the first")
    with pytest.raises(InvalidInputError, match=f"--signing-conn-id: got None, .*: version {signed_number} is signed"):
        _model_command._change(options, in_memory, 3, hold=False)
    assert in_memory.champion_number("flights") == 2


def test_newest_versions_are_found_behind_those_that_are_being_deleted(
    store: Store, registry: Registry, name: str, model_dir: Path
) -> None:
    fill(registry, name, model_dir, versions=6, promoted=2)
    for number in (6, 5):
        if isinstance(store, MlflowStore):
            tag = {"name": name, "version": str(number), "key": "paceline.deleting", "value": "of a killed command"}
            store.server.post("/model-versions/set-tag", tag)
        else:
            storage.put(store.root, f"{name}/versions/{number:06}/deleting", b"of a killed command")
    assert [one.version for one in store.open().summaries(name, 1)] == [4]
    assert [one.version for one in store.open().summaries(name, 3)] == [4, 3, 2]


@pytest.mark.parametrize("promoted", [3, 9])
def test_each_of_many_deletions_takes_the_same_requests_whatever_the_history(
    promoted: int, in_memory: FileRegistry, model_dir: Path, requests: Counter[str]
) -> None:
    history = fill(in_memory, "flights", model_dir, versions=20, promoted=promoted)
    reads = []
    for number in range(1, 9):
        requests.clear()
        in_memory.delete("flights", number, known=history)
        reads.append(requests["GET"])
    assert reads == [reads[0]] * 8
    assert reads[0] < 6


def test_prune_reads_the_history_once(in_memory: FileRegistry, model_dir: Path, requests: Counter[str]) -> None:
    fill(in_memory, "flights", model_dir, versions=20, promoted=9)
    runs = Mock(spec=Runs, is_active=lambda *_, **__: False, is_given_version=lambda *_, **__: False)
    later = datetime.now(timezone.utc) + timedelta(days=1)
    removals = [one.remove for one in Versions(in_memory, "memory://", runs, later, 1).find() if one.remove]
    assert len(removals) == 18
    reads = []
    for remove in removals:
        requests.clear()
        remove()
        reads.append(requests["GET"])
    assert reads == [reads[0]] * 18
    assert reads[0] < 9, "fewer than there are promotions"
    assert in_memory.numbers("flights") == [19, 20]


def test_promotion_after_the_known_history_keeps_its_version(registry: Registry, name: str, model_dir: Path) -> None:
    history = fill(registry, name, model_dir, versions=5, promoted=2)
    registry.delete(name, 1, known=history)
    registry.promote(name, 2, "by a person")
    for number, known in ((5, history), (5, ()), (5, history[:1]), (2, history)):
        with pytest.raises(VersionNeededError):
            registry.delete(name, number, known=known)
    registry.promote(name, 3, "by a person")
    foreign = [one.model_copy(update={"reason": "of another model", "version": 3}) for one in history]
    for known in (history, foreign):
        with pytest.raises(VersionNeededError, match="and the champion before it, for a rollback"):
            registry.delete(name, 2, known=known)
    registry.delete(name, 5, known=history)
    assert registry.numbers(name) == [2, 3, 4]


def test_table_of_items_compares_none_with_another(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    now = datetime.now(timezone.utc)
    items = [Item("version", f"flights {number}", now, 1, "not old enough") for number in range(3)]
    monkeypatch.setattr(Item, "__eq__", Mock(side_effect=AssertionError))
    _prune_command._print_table([*items, Item("version", "flights 3", now, 1, "the champion")])
    assert "Not old enough: 3 versions.\n" in capsys.readouterr().out
