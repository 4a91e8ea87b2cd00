"""Names the files that a job wrote in its working folder, where they are lost with the job.

``DockerJob`` and ``ProcessJob`` list the files; the task's warning about an empty output names them.
"""

from __future__ import annotations

import heapq
import os
import tarfile
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from paceline.runtime.archive import ChunkReader, members, relative_parts

MAX_NAMES = 5
_MAX_ENTRIES = 10_000
_MAX_BYTES = 256 * 1024**2  # of an archive, which has the contents between the names
_MAX_LENGTH = 200


class WorkEntry(NamedTuple):
    """A file or folder: time of the last change, path below the working folder, and whether it is a file."""

    changed_s: float
    path: str
    is_file: bool


def newest_files(entries: Iterable[WorkEntry], placed: Collection[str]) -> list[str]:
    """Return the newest files, which usually include the model, of the first 10,000 entries.

    Parameters
    ----------
    entries:
        The content of the working folder.
    placed:
        Files that the job had from its start.

    Examples
    --------
    >>> entries = [WorkEntry(1, "train.py", True), WorkEntry(2, "runs/a.log", True), WorkEntry(3, "model.pt", True)]
    >>> newest_files([*entries, WorkEntry(9, ".cache/font", True)], placed=["train.py"])
    ['model.pt', 'runs/a.log']
    """
    written = [
        entry
        for entry in islice(entries, _MAX_ENTRIES)
        if entry.is_file and entry.path not in placed and not _is_cache(entry.path)
    ]
    return [entry.path[:_MAX_LENGTH] for entry in heapq.nlargest(MAX_NAMES, written)]


def entries_in_folder(folder: Path) -> Iterator[WorkEntry]:
    """Yield the entries below ``folder``, without following links."""
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as children:
            for child in children:
                if child.is_dir(follow_symlinks=False):
                    pending.append(child.path)
                is_file = child.is_file(follow_symlinks=False)
                changed_s = child.stat(follow_symlinks=False).st_mtime
                yield WorkEntry(changed_s, os.path.relpath(child.path, folder), is_file)


def entries_in_archive(chunks: Iterable[bytes], root: str) -> Iterator[WorkEntry]:
    """Yield the entries below the top-level folder ``root`` of a tar archive, of which 256 MiB are read at most."""
    try:
        with tarfile.open(fileobj=ChunkReader(_up_to(_MAX_BYTES, chunks)), mode="r|") as archive:
            for member in members(archive):
                path = relative_parts(member.name, root)
                if path:
                    yield WorkEntry(member.mtime, "/".join(path), member.isreg())
    except tarfile.TarError:
        return  # the archive is longer than the limit


def _up_to(max_bytes: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        max_bytes -= len(chunk)
        if max_bytes <= 0:
            return


def _is_cache(path: str) -> bool:
    return any(part.startswith(".") or part == "__pycache__" for part in path.split("/"))
