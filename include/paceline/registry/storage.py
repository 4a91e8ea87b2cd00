"""File operations of the registry, with the same guarantees on local and remote file systems.

Called by the registries and ``ProfileStore``. A file is named by a root, which is a path or URL that the user has
chosen, and a path below it. Local folders use the kernel's atomic link and rename, and links below the root are not
followed. Other fsspec file systems write a file in one request. For a file that only one of several writers may create,
the request is conditional.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import IO

from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import _local
from paceline.registry.manifest import ACCEPTED_PATH, FileRecord, ModelVersion, digest_of_files, is_safe_path
from paceline.runtime.temporary import TemporaryFolder

_BLOCK = 1 << 20
MAX_RECORD_BYTES = 64 * 1024**2
"""Maximum size of a manifest, a promotion and other records: about 500,000 files in a version."""


def local(path: UPath) -> Path | None:
    """Convert a local ``path`` to a ``pathlib.Path``; return ``None`` for a remote path."""
    return Path(path.path) if path.protocol in ("", "file", "local") else None


def open_file(root: UPath, path: str) -> IO[bytes]:
    """Open the file ``path`` below ``root`` for reading.

    Raises FileNotFoundError if it does not exist, and InvalidInputError if it is a link or lies behind a link.
    """
    here = local(root)
    if here is not None:
        return _local.open_file(here, path)
    file: IO[bytes] = (root / path).open("rb")
    return file


def size_of(root: UPath, path: str) -> int:
    """Return the size of the file ``path`` below ``root`` in bytes. Raises the errors of :func:`open_file`."""
    with open_file(root, path) as file:
        return file.seek(0, os.SEEK_END)


def put(root: UPath, path: str, data: bytes) -> None:
    """Write ``data`` atomically: a reader sees either the old or the new content, never a mixture."""
    here = local(root)
    if here is None:
        with _local.naming(root / path):
            (root / path).write_bytes(data)
    else:
        _local.put(here, path, data)


def put_new(root: UPath, path: str, data: bytes) -> bool:
    """Write ``data`` unless ``path`` exists; among concurrent writers, exactly one gets ``True``.

    Remote stores need a conditional put (S3, Google Cloud Storage, Azure, memory). ``data`` must differ between
    writers, so that a writer recognises its own put after a lost response. It must not be empty, because s3fs writes
    empty files unconditionally.
    """
    here = local(root)
    if here is not None:
        return _local.put_new(here, path, data)
    try:
        with (root / path).open("xb") as file:
            file.write(data)
    except Exception as error:
        if read(root, path) == data:  # the put succeeded, but its response was lost
            return True
        if isinstance(error, FileExistsError):
            return False
        with _local.naming(root / path):
            raise
    return True


def read(root: UPath, path: str, max_bytes: int | None = None) -> bytes | None:
    """Return the bytes of the record ``path`` below ``root``, or ``None`` if it does not exist.

    Raises InvalidInputError for a record of more than ``max_bytes``, by default ``MAX_RECORD_BYTES``.
    """
    max_bytes = max_bytes or MAX_RECORD_BYTES
    try:
        with open_file(root, path) as file:
            data = bytes(file.read(max_bytes + 1))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(data) > max_bytes:
        raise InvalidInputError(str(root / path), "a larger file", f"a record of at most {max_bytes} bytes")
    return data


def names_in(root: UPath, path: str) -> list[str]:
    """Return the names of the entries of a folder; none if it does not exist. Other writers may have changed them."""
    here = local(root)
    try:
        if here is not None:
            return _local.names_in(here, path)
        folder = root / path
        folder.fs.invalidate_cache()
        return [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def numbered(root: UPath, path: str, suffix: str = "") -> list[int]:
    """Return the sorted numbers of the entries of a folder whose names are a six-digit number and ``suffix``."""
    names = names_in(root, path)
    stems = (name[: len(name) - len(suffix)] for name in names if name.endswith(suffix))
    numbers = (int(stem) for stem in stems if stem.isascii() and stem.isdigit() and stem == f"{int(stem):06}")
    return sorted(number for number in numbers if number > 0)


def files_below(root: UPath, field: str) -> list[str]:
    """Return the sorted paths of the files below ``root``, relative to it. Reject symbolic links and devices.

    Empty objects that stand for folders are left out.
    """
    here = local(root)
    found = _remote_files_below(root, field) if here is None else _local.files_below(here, field)
    return sorted(found, key=lambda path: path.split("/"))


def sizes_below(root: UPath) -> dict[str, int]:
    """Return the path and size in bytes of each file below ``root``. Links are left out, and so are folders' objects.

    Raises an error if a folder cannot be read; an object store may raise any exception.
    """
    here = local(root)
    if here is not None:
        return _local.sizes_below(here)
    root.fs.invalidate_cache()
    top = f"{root.path.rstrip('/')}/"
    found = root.fs.find(root.path, detail=True).items()
    sizes = {path.removeprefix(top): int(entry["size"] or 0) for path, entry in found if path.startswith(top)}
    return {path: size for path, size in sizes.items() if not {"", ".", ".."} & set(path.split("/"))}


def modified_at(root: UPath, path: str) -> datetime:
    """Return the time at which the file ``path`` below ``root`` was written. Raises the errors of :func:`open_file`."""
    if local(root) is not None:
        with open_file(root, path) as file:
            return datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, timezone.utc)
    modified: datetime = root.fs.modified((root / path).path)
    return modified if modified.tzinfo else modified.replace(tzinfo=timezone.utc)


def is_executable(root: UPath, path: str) -> bool:
    """Return whether the owner may execute the file ``path`` below ``root``; on an object store, ``False``."""
    if local(root) is None:
        return False
    with open_file(root, path) as file:
        return bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)


def make_executable(path: UPath) -> None:
    """Allow the users that may read the local file ``path`` to execute it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode | (mode & 0o444) >> 2)


def copy(
    source: UPath, path: str, target: UPath, target_path: str, *, size_bytes: int | None = None
) -> tuple[int, str]:
    """Copy a file, and create the target's folder if necessary. Return the file's size in bytes and its SHA-256.

    Reject a file that is larger than ``size_bytes``.
    """
    here = local(target)
    digest, size = hashlib.sha256(), 0
    with (
        open_file(source, path) as reader,
        _local.naming(target / target_path),
        _create(target, target_path) as writer,
    ):
        while block := _read_block(reader, source / path):
            digest.update(block)
            size += len(block)
            if size_bytes is not None and size > size_bytes:
                raise InvalidInputError(
                    str(source / path), "a larger file", f"{size_bytes} bytes: the file has changed"
                )
            writer.write(block)
        if here is not None:
            _local.flush_to_disk(writer)
    return size, digest.hexdigest()


def digest_of(root: UPath, field: str) -> str:
    """Return the SHA-256 of the names, contents and executable bits of all files below ``root``.

    Reject a name that a registry does not accept.
    """
    files = {}
    for path in files_below(root, field):
        if not is_safe_path(path):
            raise InvalidInputError(field, path, ACCEPTED_PATH)
        sha256 = _digest_of_file(root, path)
        files[path] = FileRecord(size_bytes=0, sha256=sha256, executable=is_executable(root, path))
    return digest_of_files(files)


def remove_folder(root: UPath, path: str) -> None:
    """Remove the folder ``path`` below ``root``. Ignore errors, because the registry no longer uses the folder."""
    here = local(root)
    if here is not None:
        _local.remove_folder(here, path)
        return
    with suppress(OSError):
        root.fs.rm((root / path).path, recursive=True)


def remove(root: UPath, path: str) -> None:
    """Remove the file or folder ``path`` below ``root``, which need not exist. Links are not followed."""
    here = local(root)
    with _local.naming(root / path):
        if here is not None:
            _local.remove(here, path)
            return
        root.fs.invalidate_cache()
        for place in root.fs.find((root / path).path):
            with suppress(FileNotFoundError):
                root.fs.rm_file(place)


def remove_empty_folders(root: UPath, paths: Iterable[str]) -> None:
    """Remove the folders below ``root`` that contained the files ``paths``, as far as they are empty now."""
    here = local(root)
    if here is not None:
        folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents[:-1]}
        for folder in sorted(folders, key=lambda folder: folder.count("/"), reverse=True):
            _local.remove_if_empty(here, folder)


@contextmanager
def staged(destination: Path, versions: Callable[[], Iterable[ModelVersion]]) -> Iterator[UPath]:
    """Yield an empty private folder. After the block, its entries replace the previous model in ``destination``.

    Entries of ``destination`` with the same names are replaced, not followed if they are links. Other files are removed
    if one of ``versions`` has a file with the same path and content. After an error, ``destination`` is as before.
    """
    destination.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(destination) as folder, _local.open_folder(destination, "") as lock:
        (new := folder / "new").mkdir()
        yield UPath(new)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        names = {entry.name for entry in new.iterdir()}
        others = {entry.name for entry in destination.iterdir()} - names - {folder.name}
        stale = _files_of(versions, destination, others) if others else set()
        _move_all(
            [*((new / name, name) for name in names), *((None, path) for path in stale)], destination, folder / "old"
        )
    for parent in sorted({str(parent) for path in stale for parent in PurePosixPath(path).parents[:-1]}, reverse=True):
        with suppress(OSError):  # it contains other files
            (destination / parent).rmdir()


def _files_of(versions: Callable[[], Iterable[ModelVersion]], folder: Path, names: Collection[str]) -> set[str]:
    """Return the paths of the files below ``folder``, in entries with these ``names``, that are files of a version."""
    digests: dict[str, str] = {}
    found = set()
    with suppress(InvalidInputError):  # another version's damaged manifest does not prevent the exchange
        for version in versions():
            for path, record in version.files.items():
                if path.partition("/")[0] in names:
                    digests[path] = digests.get(path) or _digest_if_file(folder, path)
                    if digests[path] == record.sha256:
                        found.add(path)
    return found


def _digest_if_file(folder: Path, path: str) -> str:
    """Return a file's SHA-256, or "no file" if it does not exist, is a link or lies behind one."""
    try:
        return _digest_of_file(UPath(folder), path)
    except (FileNotFoundError, NotADirectoryError, InvalidInputError):
        return "no file"


def _move_all(moves: Iterable[tuple[Path | None, str]], destination: Path, old: Path) -> None:
    """Move each source to its path below ``destination``, and what it replaces to ``old``. Undo this after an error."""
    done: list[tuple[Path, Path]] = []

    def move(source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)
        done.append((source, target))

    try:
        for source, path in moves:
            if os.path.lexists(destination / path):
                move(destination / path, old / path)
            if source is not None:
                move(source, destination / path)
    except BaseException:
        for source, target in reversed(done):
            os.rename(target, source)
        raise


def _digest_of_file(root: UPath, path: str) -> str:
    digest = hashlib.sha256()
    with open_file(root, path) as reader:
        while block := _read_block(reader, root / path):
            digest.update(block)
    return digest.hexdigest()


def _read_block(file: IO[bytes], path: object) -> bytes:
    with _local.naming(path):
        return file.read(_BLOCK)


def _create(root: UPath, path: str) -> IO[bytes]:
    here = local(root)
    if here is not None:
        return _local.create_file(here, path)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    file: IO[bytes] = (root / path).open("wb")
    return file


def _remote_files_below(root: UPath, field: str) -> Iterator[str]:
    top = f"{root.path.rstrip('/')}/"
    found = root.fs.find(root.path, detail=True).items()
    sizes = {path.removeprefix(top): entry["size"] for path, entry in found if path.startswith(top)}
    folders = {str(folder) for path in sizes for folder in PurePosixPath(path).parents}
    for path, size in sizes.items():
        if not size and (path.endswith("/") or path in folders or not path):
            continue  # tools and consoles create such objects for folders
        if any(name in ("", ".", "..") for name in path.split("/")):  # an object store accepts such names
            raise InvalidInputError(field, f"{root}/{path}", "names of files and folders other than '.' and '..'")
        yield path
