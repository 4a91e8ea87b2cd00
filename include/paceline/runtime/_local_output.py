"""Reader for a local job's output folder. It follows no links, because a running job may change the folder.

Used by ``ProcessJob.collect``.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from paceline.errors import TrainingFailedError
from paceline.runtime._output import OutputCollector, Parts

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # do not block if a pipe has replaced the file
# Errors that show that the entry was removed or replaced after it was listed.
_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)


def collect_folder(source: Path, collector: OutputCollector) -> None:
    """Add everything below ``source`` to the collector.

    Raises
    ------
    TrainingFailedError
        ``source`` is not a folder, or the collector rejects an entry.
    """
    try:
        root = os.open(source, _FOLDER)
    except OSError as error:
        if error.errno in _CHANGED:
            raise TrainingFailedError(f"{collector.name}: the job removed its {collector.name} folder") from error
        raise
    try:
        pending: list[Parts] = [()]
        while pending:
            path = pending.pop()
            folder = _open_folder(root, path)
            if folder is None:
                continue
            try:
                for name in sorted(os.listdir(folder)):
                    if _collect_entry(folder, (*path, name), collector):
                        pending.append((*path, name))
            finally:
                os.close(folder)
    finally:
        os.close(root)


def _collect_entry(folder: int, path: Parts, collector: OutputCollector) -> bool:
    """Add one entry of an open folder to the collector; return whether the entry is a folder."""
    name = path[-1]
    handle = None
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(mode) else None
        if stat.S_ISREG(mode):
            handle = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno not in _CHANGED:
            raise
        collector.skip(path)
        return False
    if handle is not None:
        try:
            info = os.fstat(handle)
            if stat.S_ISREG(info.st_mode):
                with open(handle, "rb", closefd=False) as content:
                    collector.add_file(path, content, info.st_size)
            else:
                collector.skip(path)
        finally:
            os.close(handle)
    elif target is not None:
        collector.add_link(path, target)
    elif stat.S_ISDIR(mode):
        collector.add_folder(path)
        return True
    else:
        collector.skip(path)
    return False


def _open_folder(root: int, path: Parts) -> int | None:
    """Open a folder without following links in its path; return ``None`` if the folder no longer exists."""
    handle = os.dup(root)
    for name in path:
        try:
            child = os.open(name, _FOLDER, dir_fd=handle)
        except OSError as error:
            if error.errno in _CHANGED:
                return None
            raise
        finally:
            os.close(handle)
        handle = child
    return handle
