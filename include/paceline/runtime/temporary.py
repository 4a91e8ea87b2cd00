"""Temporary folders of worker processes. They may contain inputs of jobs, so folders of killed processes are removed.

Every module that needs a temporary folder on a worker uses ``TemporaryFolder``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import weakref
from pathlib import Path

from paceline.runtime.scratch import Scratch

_PREFIX = ".paceline-files-"


class TemporaryFolder:
    """A folder that only this user can read. It is deleted at the end of the ``with`` statement, or with this object.

    The folder is locked while its process lives. Each new folder removes those of this user whose process was killed.

    Parameters
    ----------
    parent:
        Where to create the folder. Default: the machine's folder for temporary files.

    Examples
    --------
    >>> with TemporaryFolder() as folder:
    ...     oct(folder.stat().st_mode & 0o777)
    '0o700'
    >>> folder.exists()
    False
    """

    def __init__(self, parent: Path | None = None) -> None:
        remove_abandoned(parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            lock = _lock(self.path, wait=True)
            if self.path.exists():
                break
            if lock is not None:  # another process has removed the folder before it was locked
                os.close(lock)
        self._finalizer = weakref.finalize(self, _delete, self.path, lock, os.getpid())

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self._finalizer()


def find_abandoned(parent: Path | None = None) -> list[Path]:
    """Return this user's temporary folders in ``parent`` whose process has ended."""
    found = []
    for path in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        lock = _lock(path, wait=False)
        if lock is not None:
            found.append(path)
            os.close(lock)
    return found


def remove_abandoned(parent: Path | None = None) -> int:
    """Remove this user's temporary folders in ``parent`` whose process has ended; return their number."""
    removed = 0
    for path in find_abandoned(parent):
        lock = _lock(path, wait=False)  # another process may remove the same folders
        if lock is not None:
            _delete(path, lock, os.getpid())
            removed += not path.exists()
    return removed


def _lock(path: Path, *, wait: bool) -> int | None:
    """Return a locked file descriptor; ``None`` if ``path`` is in use, a link or another user's."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return folder
    os.close(folder)
    return None


def _delete(path: Path, lock: int | None, pid: int) -> None:
    if pid != os.getpid():  # a forked process must not delete its parent's folder
        return
    Scratch(path).delete()
    if lock is not None:
        os.close(lock)
