"""Files of registrations that were killed, and registrations that go on while such files are removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidInputError
from paceline.registry import FileRegistry, storage
from paceline.registry.interrupted import InterruptedRegistration, discard, find_interrupted

pytestmark = pytest.mark.parametrize("store", ["local", "object store"], indirect=True)


class KilledError(BaseException):
    """Ends a registration like a kill: nothing is tidied up."""


def kill(*_: object) -> None:
    raise KilledError


def interrupted(registry: FileRegistry, known: tuple[int, ...] = ()) -> list[InterruptedRegistration]:
    return list(find_interrupted(registry.root, "flights", known))


def names(registry: FileRegistry) -> set[str]:
    """Return the paths of all files of the model, without the random part of a folder's name."""
    return {path.partition("-")[0] for path in storage.sizes_below(registry.root / "flights")}


@pytest.fixture
def killed(registry: FileRegistry, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> FileRegistry:
    """Return a registry with version 1, and the files of a registration that was killed before its manifest."""
    registry.register(model_dir, name="flights", key="first")
    put_new = storage.put_new
    with monkeypatch.context() as patch:
        patch.setattr(storage, "put_new", lambda *them: kill() if "manifest" in them[1] else put_new(*them))
        patch.setattr(storage, "remove_folder", kill)
        with pytest.raises(KilledError):
            registry.register(model_dir, name="flights", key="killed")
    return registry


def test_files_of_a_killed_registration_are_found_and_removed(killed: FileRegistry, model_dir: Path) -> None:
    assert killed.numbers("flights") == [1]
    assert interrupted(killed, known=(1, 2)) == []
    (found,) = interrupted(killed)
    assert (found.name, found.version) == ("flights", 2)
    assert found.size_bytes >= sum(path.stat().st_size for path in model_dir.rglob("*") if path.is_file())
    assert {path.partition("-")[0] for path in found.files} == {"reserved", "files"}
    discard(killed.root, found)
    assert interrupted(killed) == []
    assert not any(path.startswith("versions/000002") for path in names(killed))
    if storage.local(killed.root) is not None:
        assert not (killed.root / "flights" / "versions" / "000002").exists()
    assert killed.register(model_dir, name="flights").version == 3, "no number is used twice"
    assert killed.register(model_dir, name="flights", key="killed").version == 4
    assert killed.register(model_dir, name="flights", key="killed").version == 4


def test_retry_that_has_written_a_file_keeps_all_files(
    killed: FileRegistry, model_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (found,) = interrupted(killed)
    earlier, copy = names(killed), storage.copy

    def discard_and_copy(*them: Any, **more: Any) -> tuple[int, str]:
        copied = copy(*them, **more)
        monkeypatch.setattr(storage, "copy", copy)
        with pytest.raises(InvalidInputError, match="got 2, expected a version whose registration has ended"):
            discard(killed.root, found)
        assert earlier <= names(killed)
        return copied

    monkeypatch.setattr(storage, "copy", discard_and_copy)
    version = killed.register(model_dir, name="flights", key="killed")
    assert version.version == 2
    killed.fetch(version, tmp_path / "complete")
    with pytest.raises(InvalidInputError, match="got 2, expected a version whose registration has ended"):
        discard(killed.root, found)
    killed.fetch(version, tmp_path / "still complete")
    assert interrupted(killed) == []


def before(
    monkeypatch: pytest.MonkeyPatch, function: str, path: str, action: Callable[[], object], call: int = 1
) -> None:
    """Call the action before a call of a function of ``storage`` for a path with this end, by default the first one."""
    original, left = getattr(storage, function), [*range(call)]

    def act_and_call(*them: Any, **more: Any) -> Any:
        if left and str(them[1]).endswith(path):
            left.pop()
            if not left:
                action()
        return original(*them, **more)

    monkeypatch.setattr(storage, function, act_and_call)


@pytest.mark.parametrize(
    ("function", "path", "call", "version"),
    [
        ("read", "000002/reserved", 1, 3),  # the registration has read the number of its key
        ("copy", "weights.pt", 1, 3),
        ("copy", "empty", 1, 3),
        ("read", "000002/reserved", 2, 3),  # it has copied all files
        ("remove_folder", "", 1, 2),  # it has written its manifest
    ],
)
def test_registration_whose_number_is_discarded_meanwhile_is_complete_under_another_one(
    killed: FileRegistry, model_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    function: str, path: str, call: int, version: int,
) -> None:  # fmt: skip
    """The discarded files include those of the registration, as if it had written none for a day."""
    before(monkeypatch, function, path, lambda: [discard(killed.root, one) for one in interrupted(killed)], call)
    made = killed.register(model_dir, name="flights", key="killed")
    assert made.version == version
    assert killed.numbers("flights") == [1, version]
    assert killed.register(model_dir, name="flights", key="killed") == made
    killed.fetch(made, tmp_path / "complete")
    assert interrupted(killed) == []


def test_file_that_is_written_while_its_number_is_discarded_keeps_all_others(
    killed: FileRegistry, model_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The registration has found ``reserved`` just before it is removed."""
    versions: list[Any] = []
    (found,) = interrupted(killed)
    before(monkeypatch, "remove", "000002/reserved", lambda: versions.append(register()))

    def register() -> Any:
        return killed.register(model_dir, name="flights", key="killed")

    with pytest.raises(InvalidInputError, match="got 2, expected a version whose registration has ended"):
        discard(killed.root, found)
    assert [one.version for one in versions] == [2]
    killed.fetch(versions[0], tmp_path / "complete")
    assert killed.register(model_dir, name="flights", key="killed") == versions[0]
