"""File operations of the registry, with the same guarantees on local and remote file systems.

Called by the registries and ``ProfileStore``. Local folders use the kernel's atomic link and rename. Other fsspec file
systems write a file in one request. For a file that only one of several writers may create, the request is conditional.
"""

from __future__ import annotations

import errno
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from upath import UPath

from paceline.errors import InvalidInputError

_BLOCK = 1 << 20
# Errors of file systems without hard links (FAT, some network and FUSE mounts).
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


def local(path: UPath) -> Path | None:
    """Convert a local ``path`` to a ``pathlib.Path``; return ``None`` for a remote path."""
    return Path(path.path) if path.protocol in ("", "file", "local") else None


def forget_listings(path: UPath) -> None:
    """Discard the cached listing of a remote folder, because other writers may have changed the folder."""
    if local(path) is None:
        path.fs.invalidate_cache()


def put(path: UPath, data: bytes) -> None:
    """Write ``data`` atomically: a reader sees either the old or the new content, never a mixture."""
    here = local(path)
    if here is None:
        path.write_bytes(data)
        return
    temporary = _write_temporary(here, data)
    os.replace(temporary, here)


def put_new(path: UPath, data: bytes) -> bool:
    """Write ``data`` unless ``path`` exists; among concurrent writers, exactly one gets ``True``.

    Remote stores need a conditional put (S3, Google Cloud Storage, Azure, memory). ``data`` must differ between
    writers, so that a writer recognises its own put after a lost response. It must not be empty, because s3fs writes
    empty files unconditionally.
    """
    here = local(path)
    if here is None:
        try:
            with path.open("xb") as file:
                file.write(data)
        except Exception as error:
            if read(path) == data:  # the put succeeded, but its response was lost
                return True
            if isinstance(error, FileExistsError):
                return False
            raise
        return True
    temporary = _write_temporary(here, data)
    try:
        os.link(temporary, here)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            with here.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
    finally:
        temporary.unlink()
    return True


def read(path: UPath) -> bytes | None:
    """Return the bytes of ``path``, or ``None`` if the file does not exist."""
    try:
        return bytes(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def numbered(folder: UPath, suffix: str = "") -> list[int]:
    """Return the sorted numbers of the entries in ``folder`` whose names are a six-digit number and ``suffix``."""
    forget_listings(folder)
    try:
        names = [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    stems = (name[: len(name) - len(suffix)] for name in names if name.endswith(suffix))
    numbers = (int(stem) for stem in stems if stem.isascii() and stem.isdigit() and stem == f"{int(stem):06}")
    return sorted(number for number in numbers if number > 0)


def files_below(folder: UPath, field: str) -> Iterator[tuple[str, UPath]]:
    """Yield (relative path, path) of the files below ``folder``, sorted. Reject symbolic links and devices."""
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        on_disk = local(entry)
        if on_disk is not None and on_disk.is_symlink():
            raise InvalidInputError(field, str(entry), "plain files and folders, not a symbolic link")
        if entry.is_dir():
            for inner, path in files_below(entry, field):
                yield f"{entry.name}/{inner}", path
        elif on_disk is None or on_disk.is_file():
            yield entry.name, entry
        else:
            raise InvalidInputError(field, str(entry), "plain files and folders")


def copy(source: UPath, target: UPath) -> tuple[int, str]:
    """Copy one file, and create the folder of ``target`` if necessary. Return the file's size in bytes and SHA-256."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as reader, target.open("wb") as writer:
        while block := reader.read(_BLOCK):
            digest.update(block)
            size += len(block)
            writer.write(block)
        if local(target) is not None:
            _flush_to_disk(writer)
    return size, digest.hexdigest()


def digest_of(folder: UPath, field: str) -> str:
    """Return the SHA-256 of the names and contents of all files below ``folder``."""
    whole = hashlib.sha256()
    for name, path in files_below(folder, field):
        digest = hashlib.sha256()
        with path.open("rb") as reader:
            while block := reader.read(_BLOCK):
                digest.update(block)
        whole.update(f"{len(name)}:{name}:{digest.hexdigest()}\n".encode())
    return whole.hexdigest()


def remove_folder(folder: UPath) -> None:
    """Remove ``folder``. Ignore errors, because the registry no longer uses the folder."""
    with suppress(OSError):
        folder.fs.rm(folder.path, recursive=True)


def _write_temporary(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with temporary.open("wb") as file:
        file.write(data)
        _flush_to_disk(file)
    return temporary


def _flush_to_disk(file: IO[bytes]) -> None:
    # After a power failure, a manifest must not exist without the files that it names.
    file.flush()
    os.fsync(file.fileno())
