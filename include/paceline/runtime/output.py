"""What is taken of a job's output folder: its files and folders, and a copy in place of each link that stays inside.

``archive`` (containers) and ``local_output`` (processes) hand entries over; the job made them, so none is trusted.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from paceline.errors import TrainingFailedError

log = logging.getLogger(__name__)

MAX_ENTRIES = 200_000
MAX_DEPTH = 200  # folders in each other; to remove a tree, Python recurses into it, up to a thousand deep
_BLOCK = 1 << 20
_NAMED = 5  # entries that a warning names
_MAX_LINKS = 40  # on the way to one target, as in the kernel's own resolution
_MAX_STEPS = 4096  # names on the way to one target

Parts = tuple[str, ...]  # a path below the output folder; empty for the folder itself


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
    hard: bool  # the target is read from the output folder, not from the folder that the link is in
    leads_to: _Folder | _File | None = None


class Intake:
    """Writes entries of a job's output into an empty folder, which never holds a link.

    Files and folders are written as they come. Links are noted, and followed by ``finish`` in a tree of names that is
    kept here. The file system follows none, so nothing is read or written outside of the folder.

    Parameters
    ----------
    folder:
        An empty folder that nobody else writes to.
    max_bytes:
        Limit on the sum of all file sizes, copies in place of links included.

    Raises
    ------
    TrainingFailedError
        From every method: a limit is exceeded, two entries have one name, or an entry lies in something that is no
        folder.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._bytes = 0
        self._count = 0
        self._root = _Folder(())
        self._links: list[_Link] = []
        self._left_out: list[Parts] = []

    def add_folder(self, path: Parts) -> None:
        """Make a folder, and the folders above it; one that is there already stays."""
        self._make_folder(path)

    def add_file(self, path: Parts, content: BinaryIO, size: int) -> None:
        """Write a regular file: ``size`` bytes of ``content``, fewer if there are no more."""
        parent = self._parent(path)
        self._take(path, size)
        parent.entries[path[-1]] = _File(path)
        left = size
        # "x": no file is ever written through a name that is taken.
        with self._folder.joinpath(*path).open("xb") as out:
            while left > 0 and (block := content.read(min(_BLOCK, left))):
                out.write(block)
                left -= len(block)

    def add_link(self, path: Parts, target: str) -> None:
        """Note a symbolic link and the text that it holds."""
        self._note(_Link(path, target, hard=False))

    def add_hard_link(self, path: Parts, target: Parts) -> None:
        """Note a second name of an entry, whose own path is ``target``."""
        self._note(_Link(path, "/".join(target), hard=True))

    def leave_out(self, path: Parts) -> None:
        """Count an entry that cannot be collected, such as a pipe, and name it in the warning of ``finish``."""
        self._parent(path)
        self._skip(path)

    def finish(self) -> None:
        """Put copies in the places of links, and log one warning that names what was left out."""
        for link in self._links:
            link.leads_to = self._follow(link)
        for link in self._links:
            self._copy(link)
        if self._left_out:
            names = ", ".join(repr("/".join(path)[:200]) for path in self._left_out[:_NAMED])
            more = len(self._left_out) - _NAMED
            log.warning(
                "Left %d out of the job's output, each no file, folder or link to one of the output: %s%s",
                len(self._left_out),
                names,
                f" and {more} more" if more > 0 else "",
            )

    def _take(self, place: Parts, size: int = 0) -> None:
        self._count += 1
        self._bytes += size
        if self._bytes > self._max_bytes or self._count > MAX_ENTRIES:
            raise TrainingFailedError(
                f"output: more than {self._max_bytes} bytes or {MAX_ENTRIES} entries, the limits (a link counts as "
                "what it leads to)"
            )
        if len(place) > MAX_DEPTH:
            raise TrainingFailedError(f"output: more than {MAX_DEPTH} folders in each other, the limit")

    def _skip(self, path: Parts) -> None:
        self._take(path)
        self._left_out.append(path)

    def _make_folder(self, path: Parts) -> _Folder:
        here = self._root
        for depth, name in enumerate(path, start=1):
            found = here.entries.get(name)
            if found is None:
                self._take(path[:depth])
                found = here.entries[name] = _Folder(path[:depth])
                self._folder.joinpath(*found.path).mkdir()
            if not isinstance(found, _Folder):
                raise TrainingFailedError(f"output: {'/'.join(found.path)!r} is no folder, and an entry lies in it")
            here = found
        return here

    def _parent(self, path: Parts) -> _Folder:
        """Return the folder for a new entry. Two entries of one name could pass for each other."""
        if not path:
            raise TrainingFailedError("output: the job replaced its output folder with something else")
        parent = self._make_folder(path[:-1])
        if path[-1] in parent.entries:
            raise TrainingFailedError(f"output: two entries are called {'/'.join(path)!r}")
        return parent

    def _note(self, link: _Link) -> None:
        parent = self._parent(link.path)
        self._take(link.path)
        parent.entries[link.path[-1]] = link
        self._links.append(link)

    def _follow(self, link: _Link) -> _Folder | _File | None:
        """Return the file or folder that a link leads to; ``None`` if it leads out, nowhere or in a circle."""
        way: list[_Folder | _File] = [self._root]
        ahead = list(reversed(link.path))
        links = 0
        for _ in range(_MAX_STEPS):
            if not ahead:
                return way[-1]
            here, name = way[-1], ahead.pop()
            if not isinstance(here, _Folder):
                return None
            if name in ("", "."):
                continue
            if name == "..":
                way.pop()
                if not way:
                    return None
                continue
            found = here.entries.get(name)
            if found is None:
                return None
            if isinstance(found, _Link):
                links += 1
                if links > _MAX_LINKS or found.target.startswith("/"):
                    return None
                if found.hard:
                    way = [self._root]
                ahead.extend(reversed(found.target.split("/")))
            else:
                way.append(found)
        return None

    def _copy(self, link: _Link) -> None:
        """Write a copy of what a link leads to, with copies in place of the links therein.

        A link to a folder that leads back to itself is left out where it would be copied into its own copy.
        """
        todo: list[tuple[_Folder | _File | _Link, Parts, frozenset[Parts]]] = [(link, link.path, frozenset())]
        while todo:
            entry, place, passed = todo.pop()
            if isinstance(entry, _Link):
                inside, target = entry.path[:-1], entry.leads_to
                if isinstance(target, _Folder):
                    above = {inside[:depth] for depth in range(len(inside) + 1)}
                    if target.path in above | passed:
                        target = None
                    passed = passed | above
                if target is None:
                    self._skip(place)
                    continue
                entry = target
            copy = self._folder.joinpath(*place)
            if isinstance(entry, _Folder):
                self._take(place)
                copy.mkdir()
                todo.extend((child, (*place, name), passed) for name, child in entry.entries.items())
            else:
                source = self._folder.joinpath(*entry.path)
                self._take(place, source.stat().st_size)
                shutil.copyfile(source, copy)


def take_output(destination: Path, fill: Callable[[Intake], None], *, max_bytes: int) -> list[str]:
    """Let ``fill`` hand over a job's output, and move it to ``destination``: all that can be collected, or nothing.

    Parameters
    ----------
    destination:
        Folder, created if missing. What it has of the same names is replaced.
    fill:
        Adds every entry of the output.
    max_bytes:
        Limit on the sum of all file sizes.

    Returns
    -------
    list of str
        The names in ``destination`` that are the output's.

    Raises
    ------
    TrainingFailedError
        See ``Intake``.
    """
    destination.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".paceline-", dir=destination) as folder:
        intake = Intake(Path(folder), max_bytes)
        try:
            fill(intake)
            intake.finish()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # the job's folder may lie less deep than ours
                raise TrainingFailedError("output: a path is longer than this machine allows") from error
            raise
        names = sorted(child.name for child in Path(folder).iterdir())
        for name in names:
            child, target = Path(folder) / name, destination / name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            os.replace(child, target)
    return names
