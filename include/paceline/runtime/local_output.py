"""Reads the output folder of a local job, which may still run and change it: nothing is opened through a link.

``ProcessJob.collect`` hands it to an ``Intake``.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from paceline.errors import TrainingFailedError
from paceline.runtime.output import Intake, Parts

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe that took a file's place must not block
# The entry was removed, or another kind of entry took its place, after it was listed.
_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL)


def take_folder(source: Path, intake: Intake) -> None:
    """Hand over everything below ``source``.

    Raises
    ------
    TrainingFailedError
        ``source`` is no folder, or the intake refuses an entry.
    """
    try:
        root = os.open(source, _FOLDER)
    except OSError as error:
        if error.errno in _CHANGED:
            raise TrainingFailedError("output: the job removed its output folder") from error
        raise
    try:
        todo: list[Parts] = [()]
        while todo:
            path = todo.pop()
            folder = _open_folder(root, path)
            if folder is None:
                continue
            try:
                for name in sorted(os.listdir(folder)):
                    if _take_entry(folder, (*path, name), intake):
                        todo.append((*path, name))
            finally:
                os.close(folder)
    finally:
        os.close(root)


def _take_entry(folder: int, path: Parts, intake: Intake) -> bool:
    """Hand over one entry of an open folder; return whether it is a folder itself."""
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
        intake.leave_out(path)
        return False
    if handle is not None:
        try:
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode):
                with open(handle, "rb", closefd=False) as content:
                    intake.add_file(path, content, found.st_size)
            else:
                intake.leave_out(path)
        finally:
            os.close(handle)
    elif target is not None:
        intake.add_link(path, target)
    elif stat.S_ISDIR(mode):
        intake.add_folder(path)
        return True
    else:
        intake.leave_out(path)
    return False


def _open_folder(root: int, path: Parts) -> int | None:
    """Open a folder name by name, so that no link on the way is followed; ``None`` if it is not there any more."""
    handle = os.dup(root)
    for name in path:
        try:
            deeper = os.open(name, _FOLDER, dir_fd=handle)
        except OSError as error:
            if error.errno in _CHANGED:
                return None
            raise
        finally:
            os.close(handle)
        handle = deeper
    return handle
