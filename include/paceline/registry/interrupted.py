"""What registrations that were interrupted have left in a ``FileRegistry``: files of a version without a manifest.

``paceline prune`` lists and removes it. A registration that goes on looks the same, but loses nothing: see ``discard``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import storage
from paceline.registry.manifest import check_name


@dataclass(frozen=True)
class InterruptedRegistration:
    """The files of a version that does not exist yet, and perhaps never will.

    Parameters
    ----------
    name, version:
        The model, and the number.
    size_bytes:
        Size of all files.
    files:
        When each file was written, by its path below the version's folder. There is at least one.
    """

    name: str
    version: int
    size_bytes: int
    files: Mapping[str, datetime]

    @property
    def written_at(self) -> datetime:
        """When the newest file was written."""
        return max(self.files.values())


def find_interrupted(root: UPath, name: str, known: Collection[int]) -> Iterator[InterruptedRegistration]:
    """Yield the registrations of a model that were interrupted, or that go on.

    ``known`` has the numbers of complete versions and of those that are being deleted, which need no request.
    """
    for number in storage.numbered(root, f"{check_name(name)}/versions"):
        if number not in known and (found := _read(root, name, number)) is not None and found.files:
            yield found


def discard(root: UPath, interrupted: InterruptedRegistration) -> None:
    """Remove the files of a registration. Raise InvalidInputError if it has written others since.

    A registration first writes its files, then looks for the file ``reserved``, and then writes the manifest. Without
    ``reserved``, it begins again with another number. Here, ``reserved`` goes first, and then the files are listed
    again. So a registration that goes on finds no ``reserved``, or it has written a file since, and all files stay.
    """
    home = _home(interrupted.name, interrupted.version)
    _check_unchanged(root, interrupted)
    storage.remove(root, f"{home}/reserved")
    _check_unchanged(root, interrupted)
    paths = [f"{home}/{path}" for path in interrupted.files]
    for path in paths:
        storage.remove(root, path)
    storage.remove_empty_folders(root, paths)


def _check_unchanged(root: UPath, interrupted: InterruptedRegistration) -> None:
    now = _read(root, interrupted.name, interrupted.version)
    if now is None or not now.files.items() <= interrupted.files.items():
        raise InvalidInputError("version", interrupted.version, "a version whose registration has ended: it goes on")


def _read(root: UPath, name: str, number: int) -> InterruptedRegistration | None:
    """Return what is in the folder of a version; ``None`` if the version is complete, or is being deleted."""
    home = _home(name, number)
    if {"manifest.json", "deleting"} & {*storage.names_in(root, home)}:
        return None
    try:
        sizes = storage.sizes_below(root / home)
        files = {path: storage.modified_at(root, f"{home}/{path}") for path in sizes}
    except FileNotFoundError:  # another process has removed it
        sizes, files = {}, {}
    return InterruptedRegistration(name, number, sum(sizes.values()), files)


def _home(name: str, number: int) -> str:
    return f"{name}/versions/{number:06}"
