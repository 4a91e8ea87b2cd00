"""What remains readable, and how many requests it takes, after many versions have been deleted."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.unit.registry.stores import Store
from upath import UPath

from paceline.registry import FileRegistry, Promotion, Registry, storage


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
