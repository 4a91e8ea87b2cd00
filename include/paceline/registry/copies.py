"""Copies a registry in a folder to another folder, for ``paceline backup`` and ``paceline restore``.

The copy is a registry, too. It is consistent while tasks register, promote and delete versions: the promotions are read
first and written last, so that each one that the copy has names a version that the copy has, unless that version was
deleted before. Manifests and promotions are copied byte for byte, so their signatures stay valid.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import storage
from paceline.registry._files import FileRegistry
from paceline.registry.base import champion_before, check_digest
from paceline.registry.manifest import ModelVersion, Promotion, decode

_ATTEMPTS = 5
_MANIFEST = "manifest.json"


class _ChangedError(Exception):
    """Raised if the champion of the promotions that have been read was replaced and deleted in the meantime."""


class _TargetChangedError(InvalidInputError):
    """Raised if a task has written to the target in the meantime."""


@dataclass(frozen=True)
class CopiedModel:
    """What has been copied of a model.

    ``versions`` is the number of versions of the copy, ``new`` of these the number that it did not have before, and
    ``champion`` the number of its champion. ``problems`` has an error for each version that could not be copied.
    """

    name: str
    versions: int
    new: int
    champion: int | None
    problems: tuple[str, ...] = ()


def copy_registry(source: FileRegistry, target: UPath, *, has_deleted: bool) -> Iterator[CopiedModel]:
    """Copy all models, and check the digest of each file. Yield each model when its copy is complete.

    Parameters
    ----------
    source:
        The registry. With a signing key, a version without a valid signature is not copied.
    target:
        The folder of the copy. An interrupted copy is completed, and an earlier one is updated.
    has_deleted:
        Whether the target may have versions that the source lacks, because they have been deleted there.

    Raises
    ------
    InvalidInputError
        If the source has no model, or if the target has a record that differs from that of the source: nothing has been
        written then. Also if a task writes such a record to the target in the meantime, which stays.
    """
    models = source.models()
    if not models:
        raise InvalidInputError("registry", str(source.root), "a registry with a model")
    for name in {*models, *FileRegistry(target).models()}:
        _check_target(source.root, target, name, has_deleted=has_deleted)
    for name in models:
        for attempt in range(_ATTEMPTS):
            try:
                yield _copy_model(source, target, name)
                break
            except _ChangedError:
                if attempt == _ATTEMPTS - 1:
                    accepted = "a registry with the version that was promoted last"
                    raise InvalidInputError("registry", f"{source.root}/{name}", accepted) from None


def _check_target(root: UPath, target: UPath, name: str, *, has_deleted: bool) -> None:
    """Raise InvalidInputError if the target has another registry's record of a model."""
    promotions = [f"{name}/promotions/{file}" for file in storage.names_in(target, f"{name}/promotions")]
    numbers = storage.numbered(target, f"{name}/versions")
    is_deleted_model = has_deleted and not storage.names_in(root, name)
    for path in [*promotions, *(f"{name}/versions/{number:06}/{_MANIFEST}" for number in numbers)]:
        found, expected = storage.read(target, path), storage.read(root, path)
        is_deleted = expected is None and (is_deleted_model or (has_deleted and path not in promotions))
        if found is not None and found != expected and not is_deleted:
            raise InvalidInputError("target", str(target), f"an empty folder, or a copy of {root}: its {path} differs")


def _copy_model(source: FileRegistry, target: UPath, name: str) -> CopiedModel:
    promotions = [f"{name}/promotions/{number:06}.json" for number in _promotions(source.root, name)]
    records = {path: storage.read(source.root, path) or b"" for path in promotions}
    champion = decode(Promotion, records[promotions[-1]], promotions[-1]).version if promotions else None
    history = []
    for path, record in records.items():
        with suppress(InvalidInputError):  # a damaged record is copied as it is
            history.append(decode(Promotion, record, path))
    # Both, even if another process has marked one for a deletion that the registry will refuse.
    needed = {number for number in (champion, champion_before(history, champion)) if number is not None}
    numbers, new, problems = {*source.numbers(name), *needed}, 0, []
    copied = 0
    for number in sorted(numbers):
        try:
            new += _copy_version(source, target, source.version(name, number))
            copied += 1
        except _TargetChangedError:
            raise
        except (InvalidInputError, FileNotFoundError, NotADirectoryError) as error:
            if storage.read(source.root, f"{_home(name, number)}/{_MANIFEST}") is not None:
                problems.append(f"{name} version {number} is not copied: {error}")
            elif number == champion:
                raise _ChangedError from error
    # After the versions, so that the copy does not use the number of a version that was registered in the meantime.
    for part in ("numbers", "keys"):
        known = storage.names_in(target, f"{name}/{part}")
        for file in storage.names_in(source.root, f"{name}/{part}"):
            path = f"{name}/{part}/{file}"
            if file not in known and not file.startswith(".") and (data := storage.read(source.root, path)) is not None:
                storage.put(target, path, data)
    for path, data in records.items():
        _add(target, path, data)
    return CopiedModel(name, copied, new, champion, tuple(problems))


def _promotions(root: UPath, name: str) -> list[int]:
    return storage.numbered(root, f"{name}/promotions", ".json")


def _home(name: str, number: int) -> str:
    return f"{name}/versions/{number:06}"


def _copy_version(source: FileRegistry, target: UPath, version: ModelVersion) -> bool:
    """Copy a version, its manifest last. Return whether it is new in the target."""
    home = _home(version.name, version.version)
    manifest = storage.read(source.root, f"{home}/{_MANIFEST}")
    if manifest is None:
        raise FileNotFoundError(_MANIFEST)
    if storage.read(target, f"{home}/{_MANIFEST}") == manifest:
        return False
    files = {f"{version.folder}/{path}": record.sha256 for path, record in version.files.items()}
    if version.reference is not None:
        files[version.reference.path] = version.reference.sha256
    for path, expected in files.items():
        storage.remove(target, f"{home}/{path}")  # of an interrupted copy
        _, sha256 = storage.copy(source.root, f"{home}/{path}", target, f"{home}/{path}")
        check_digest(str(source.root / home / path), sha256, expected)
    for path, record in version.files.items():
        if record.executable and storage.local(target) is not None:
            storage.make_executable(target / home / version.folder / path)
    storage.put(target, f"{home}/reserved", uuid.uuid4().bytes)
    _add(target, f"{home}/{_MANIFEST}", manifest)
    return True


def _add(target: UPath, path: str, data: bytes) -> None:
    """Write a record unless the target has it. Raise InvalidInputError if a task has written another one."""
    if storage.read(target, path) != data and not storage.put_new(target, path, data):
        raise _TargetChangedError("target", str(target), f"a registry that no task uses: a task has written {path}")
