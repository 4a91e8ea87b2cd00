"""Copies a job's output folder. Replaces each link within the folder with a copy of its target.

``archive`` (containers) and ``_local_output`` (processes) add entries, which are untrusted output of user code.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from paceline.errors import TrainingFailedError
from paceline.runtime.temporary import TemporaryFolder

log = logging.getLogger(__name__)

MAX_ENTRIES = 200_000
MAX_DEPTH = 200  # nested folders; Python's recursive removal of a tree handles at most a thousand levels
_BLOCK = 1 << 20
_MAX_NAMED = 5  # number of skipped entries that the warning names
_MAX_LINKS = 40  # limit on links followed to resolve one link, as in the kernel
_MAX_STEPS = 4096  # limit on path components followed to resolve one link

Parts = tuple[str, ...]  # path components below the output folder; empty for the output folder


@dataclass(eq=False)
class _Folder:
    path: Parts
    entries: dict[str, _Folder | _File | _Link] = field(default_factory=dict)


@dataclass(frozen=True)
class _File:
    path: Parts


@dataclass(eq=False)
class _Link:
    path: Parts
    target: str
    hard: bool  # a hard link's target is relative to the output folder, not to the link's folder
    resolved: _Folder | _File | None = None


class OutputCollector:
    """Writes the entries of a job's output to an empty folder, without creating links.

    Files and folders are written immediately. Links are recorded, and ``finish`` resolves them in an in-memory tree of
    names. The file system never follows a link, so nothing outside the folder is read or written.

    Parameters
    ----------
    folder:
        An empty folder that no other process writes to.
    max_bytes:
        Limit on the sum of all file sizes, including copies in place of links.
    name:
        Name of the folder in error messages.

    Raises
    ------
    TrainingFailedError
        Raised by all methods: a limit is exceeded, two entries have the same path, or an entry's parent is not a
        folder.
    """

    def __init__(self, folder: Path, max_bytes: int, name: str = "output") -> None:
        self._folder = folder
        self.name = name
        self._max_bytes = max_bytes
        self._bytes = 0
        self._count = 0
        self._root = _Folder(())
        self._links: list[_Link] = []
        self._skipped: list[Parts] = []

    def add_folder(self, path: Parts) -> None:
        """Create a folder and its missing parents."""
        self._make_folder(path)

    def add_file(self, path: Parts, content: BinaryIO, size: int) -> None:
        """Write at most ``size`` bytes of ``content`` to a new file."""
        parent = self._parent_folder(path)
        self._count_entry(path, size)
        parent.entries[path[-1]] = _File(path)
        left = size
        # "x": never overwrite an existing file.
        with self._folder.joinpath(*path).open("xb") as out:
            while left > 0 and (block := content.read(min(_BLOCK, left))):
                out.write(block)
                left -= len(block)

    def add_link(self, path: Parts, target: str) -> None:
        """Record a symbolic link and its target text."""
        self._record_link(_Link(path, target, hard=False))

    def add_hard_link(self, path: Parts, target: Parts) -> None:
        """Record a hard link to the entry at ``target``."""
        self._record_link(_Link(path, "/".join(target), hard=True))

    def skip(self, path: Parts) -> None:
        """Record an entry that cannot be collected, such as a pipe, for the warning that ``finish`` logs."""
        self._parent_folder(path)
        self._record_skipped(path)

    def finish(self) -> None:
        """Replace links with copies, and log one warning about skipped entries."""
        for link in self._links:
            link.resolved = self._resolve(link)
        for link in self._links:
            self._copy_target(link)
        if self._skipped:
            names = ", ".join(repr("/".join(path)[:200]) for path in self._skipped[:_MAX_NAMED])
            more = len(self._skipped) - _MAX_NAMED
            log.warning(
                "Skipped %d entries of the job's %s that are not files, folders, or links within it: %s%s",
                len(self._skipped),
                self.name,
                names,
                f" and {more} more" if more > 0 else "",
            )

    def _count_entry(self, path: Parts, size: int = 0) -> None:
        self._count += 1
        self._bytes += size
        if self._bytes > self._max_bytes or self._count > MAX_ENTRIES:
            raise TrainingFailedError(
                f"{self.name}: exceeds the limit of {self._max_bytes} bytes (disk) or {MAX_ENTRIES} entries (a link "
                "counts as its target)"
            )
        if len(path) > MAX_DEPTH:
            raise TrainingFailedError(f"{self.name}: exceeds the limit of {MAX_DEPTH} nested folders")

    def _record_skipped(self, path: Parts) -> None:
        self._count_entry(path)
        self._skipped.append(path)

    def _make_folder(self, path: Parts) -> _Folder:
        folder = self._root
        for depth, name in enumerate(path, start=1):
            entry = folder.entries.get(name)
            if entry is None:
                self._count_entry(path[:depth])
                entry = folder.entries[name] = _Folder(path[:depth])
                self._folder.joinpath(*entry.path).mkdir()
            if not isinstance(entry, _Folder):
                raise TrainingFailedError(
                    f"{self.name}: {'/'.join(entry.path)!r} is not a folder, but contains an entry"
                )
            folder = entry
        return folder

    def _parent_folder(self, path: Parts) -> _Folder:
        """Return a new entry's parent folder. Reject a duplicate, because it could replace a checked entry."""
        if not path:
            raise TrainingFailedError(f"{self.name}: the job replaced its {self.name} folder with something else")
        parent = self._make_folder(path[:-1])
        if path[-1] in parent.entries:
            raise TrainingFailedError(f"{self.name}: two entries have the path {'/'.join(path)!r}")
        return parent

    def _record_link(self, link: _Link) -> None:
        parent = self._parent_folder(link.path)
        self._count_entry(link.path)
        parent.entries[link.path[-1]] = link
        self._links.append(link)

    def _resolve(self, link: _Link) -> _Folder | _File | None:
        """Return a link's target; ``None`` if the target is missing or outside the output, or if links form a cycle."""
        resolved_path: list[_Folder | _File] = [self._root]
        remaining = list(reversed(link.path))
        links = 0
        for _ in range(_MAX_STEPS):
            if not remaining:
                return resolved_path[-1]
            folder, name = resolved_path[-1], remaining.pop()
            if not isinstance(folder, _Folder):
                return None
            if name in ("", "."):
                continue
            if name == "..":
                resolved_path.pop()
                if not resolved_path:
                    return None
                continue
            entry = folder.entries.get(name)
            if entry is None:
                return None
            if isinstance(entry, _Link):
                links += 1
                if links > _MAX_LINKS or entry.target.startswith("/"):
                    return None
                if entry.hard:
                    resolved_path = [self._root]
                remaining.extend(reversed(entry.target.split("/")))
            else:
                resolved_path.append(entry)
        return None

    def _copy_target(self, link: _Link) -> None:
        """Copy a link's target, and replace links inside the target with copies.

        Skip a link if the copy of its target folder would have to contain itself.
        """
        pending: list[tuple[_Folder | _File | _Link, Parts, frozenset[Parts]]] = [(link, link.path, frozenset())]
        while pending:
            entry, path, visited = pending.pop()
            if isinstance(entry, _Link):
                parent, target = entry.path[:-1], entry.resolved
                if isinstance(target, _Folder):
                    ancestors = {parent[:depth] for depth in range(len(parent) + 1)}
                    if target.path in ancestors | visited:
                        target = None
                    visited = visited | ancestors
                if target is None:
                    self._record_skipped(path)
                    continue
                entry = target
            copy = self._folder.joinpath(*path)
            if isinstance(entry, _Folder):
                self._count_entry(path)
                copy.mkdir()
                pending.extend((child, (*path, name), visited) for name, child in entry.entries.items())
            else:
                source = self._folder.joinpath(*entry.path)
                self._count_entry(path, source.stat().st_size)
                shutil.copyfile(source, copy)


def collect_output(
    destination: Path, add_entries: Callable[[OutputCollector], None], *, max_bytes: int, name: str = "output"
) -> list[str]:
    """Collect the output, then move it to ``destination``; on an error, leave ``destination`` unchanged.

    Parameters
    ----------
    destination:
        Folder, created if missing. Existing entries with the same names are replaced.
    add_entries:
        Function that adds every entry of the output to the collector.
    max_bytes:
        Limit on the sum of all file sizes.
    name:
        Name of the folder in error messages.

    Returns
    -------
    list of str
        The names of the top-level entries of the output.

    Raises
    ------
    TrainingFailedError
        See ``OutputCollector``.
    """
    destination.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(destination) as folder:
        collector = OutputCollector(folder, max_bytes, name)
        try:
            add_entries(collector)
            collector.finish()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # ``destination`` may have a longer path than the job's folder
                raise TrainingFailedError(f"{name}: a path is longer than this machine allows") from error
            raise
        names = sorted(child.name for child in folder.iterdir())
        for name in names:
            child, target = folder / name, destination / name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            elif child.is_dir():
                target.unlink(missing_ok=True)  # os.replace does not replace a file or a link with a folder
            os.replace(child, target)
    return names
