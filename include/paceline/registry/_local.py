"""Opens files and folders below a local root. Never follows a symbolic link, wherever below the root it lies.

Called by ``storage``. Each component of a path is opened relative to the folder before it, so that replacing a folder
with a link during the call does not lead outside the root. The root itself may be a link, because its user chose it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from paceline.errors import InvalidInputError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
# Errors of file systems without hard links (FAT, some network and FUSE mounts).
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


@contextmanager
def open_folder(root: Path, path: str, *, create: bool = False) -> Iterator[int]:
    """Open the folder ``path`` below ``root`` (``""``: the root) and yield its descriptor.

    Raises
    ------
    InvalidInputError
        If a component of ``path`` is a symbolic link.
    OSError
        If the folder does not exist and ``create`` is false, or if a component is a file.
    """
    if create:
        root.mkdir(parents=True, exist_ok=True)
    folder, place = os.open(root, _FOLDER), root
    try:
        for name in path.split("/") if path else ():
            place = place / name
            if create:
                with suppress(FileExistsError), naming(place):
                    os.mkdir(name, dir_fd=folder)
            inner = _open(folder, name, _FOLDER, place)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def open_file(root: Path, path: str) -> IO[bytes]:
    """Open the file ``path`` below ``root`` for reading. Reject links, and everything that is not a plain file."""
    with _open_parent(root, path) as (folder, name):
        file = os.fdopen(_open(folder, name, os.O_RDONLY, root / path), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InvalidInputError(str(root / path), "no plain file", "a plain file")
    return file


def create_file(root: Path, path: str) -> IO[bytes]:
    """Create the file ``path`` below ``root``, and its folders. Raise FileExistsError if it exists."""
    with naming(root / path), _open_parent(root, path, create=True) as (folder, name):
        return _create(folder, name)


def put(root: Path, path: str, data: bytes) -> None:
    """Write ``data`` atomically, as ``storage.put`` describes."""
    with (
        naming(root / path),
        _open_parent(root, path, create=True) as (folder, name),
        _temporary_file(folder, name, data) as temporary,
    ):
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def put_new(root: Path, path: str, data: bytes) -> bool:
    """Write ``data`` unless ``path`` exists, as ``storage.put_new`` describes."""
    with (
        naming(root / path),
        _open_parent(root, path, create=True) as (folder, name),
        _temporary_file(folder, name, data) as temporary,
    ):
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                _write(folder, name, data)
            except FileExistsError:
                return False
    return True


def names_in(root: Path, path: str) -> list[str]:
    """Return the names of the entries of the folder ``path`` below ``root``."""
    with open_folder(root, path) as folder:
        return os.listdir(folder)


def files_below(root: Path, field: str) -> list[str]:
    """Return the paths of all files below ``root``. Reject links and devices; ``field`` is for the error message."""
    found = []
    with open_folder(root, "") as top:
        for folder, folders, files, descriptor in os.fwalk(".", dir_fd=top, onerror=_reraise):
            for name in (*folders, *files):
                path = Path(folder, name)
                mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode):
                    found.append(path.as_posix())
                elif not stat.S_ISDIR(mode):
                    kind = ", not a symbolic link" if stat.S_ISLNK(mode) else ""
                    raise InvalidInputError(field, str(root / path), f"plain files and folders{kind}")
    return found


def sizes_below(root: Path) -> dict[str, int]:
    """Return the path and size in bytes of each plain file below ``root``. Links are left out."""
    found = {}
    with open_folder(root, "") as top:
        for folder, _, files, descriptor in os.fwalk(".", dir_fd=top, onerror=_reraise_unless_missing):
            for name in files:
                with suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found[Path(folder, name).as_posix()] = status.st_size
    return found


def remove_if_empty(root: Path, path: str) -> None:
    """Remove the folder ``path`` below ``root`` if it is an empty folder."""
    with suppress(OSError, InvalidInputError), _open_parent(root, path) as (folder, name):
        os.rmdir(name, dir_fd=folder)


def remove_folder(root: Path, path: str) -> None:
    """Remove the folder ``path`` below ``root``, but not the targets of links in it. Ignore errors."""
    with suppress(OSError, InvalidInputError), _open_parent(root, path) as (folder, name):
        # Python 3.10 has no rmtree(dir_fd=...).
        shutil.rmtree(f"/proc/self/fd/{folder}/{name}", ignore_errors=True)


def remove(root: Path, path: str) -> None:
    """Remove the file or folder ``path`` below ``root``, but not the targets of links in it. It need not exist."""
    with suppress(FileNotFoundError, NotADirectoryError), _open_parent(root, path) as (folder, name):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(f"/proc/self/fd/{folder}/{name}")
        else:
            os.unlink(name, dir_fd=folder)


@contextmanager
def naming(path: object) -> Iterator[None]:
    """Add ``path`` to an error that names no path, such as that of a full disk or of an object store's permissions."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # of an object store; an error without a number does not show its path
            code = errno.EACCES if isinstance(error, PermissionError) else errno.EIO
            error.errno, error.strerror = code, str(error)
        if not os.path.isabs(str(error.filename)):
            error.filename = str(path)
        raise


def flush_to_disk(file: IO[bytes]) -> None:
    """Write the file's content to the disk: after a power failure, no manifest may exist without its files."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _open_parent(root: Path, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    parent, _, name = path.rpartition("/")
    with open_folder(root, parent, create=create) as folder:
        yield folder, name


def _open(folder: int, name: str, flags: int, place: Path) -> int:
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(folder, name):
            raise InvalidInputError(str(place), "a symbolic link", "a plain file or folder") from None
        raise


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _create(folder: int, name: str) -> IO[bytes]:
    return os.fdopen(os.open(name, _NEW_FILE, 0o666, dir_fd=folder), "wb")  # O_EXCL never follows a link


def _write(folder: int, name: str, data: bytes) -> None:
    """Create a file, or leave none if the disk is full. Raise FileExistsError if it exists."""
    file = _create(folder, name)
    try:
        with file:
            file.write(data)
            flush_to_disk(file)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise


@contextmanager
def _temporary_file(folder: int, name: str, data: bytes) -> Iterator[str]:
    temporary = f".{name}.{uuid.uuid4().hex}"
    _write(folder, temporary, data)
    try:
        yield temporary
    finally:
        with suppress(FileNotFoundError):  # it has been renamed
            os.unlink(temporary, dir_fd=folder)


def _reraise(error: OSError) -> None:
    raise error


def _reraise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
