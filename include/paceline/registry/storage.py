"""File operations of the registry, with the same guarantees on local and remote file systems.

Called by the registries and ``ProfileStore``. A file is named by a root, which is a path or URL that the user has
chosen, and a path below it. Local folders use the kernel's atomic link and rename, and links below the root are not
followed. Other fsspec file systems write a file in one request. For a file that only one of several writers may create,
the request is conditional.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import _local
from paceline.registry.manifest import digest_of_files
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
        raise
    return True


def read(root: UPath, path: str) -> bytes | None:
    """Return the bytes of the record ``path`` below ``root``, or ``None`` if it does not exist."""
    try:
        with open_file(root, path) as file:
            data = bytes(file.read(MAX_RECORD_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(data) > MAX_RECORD_BYTES:
        raise InvalidInputError(str(root / path), "a larger file", f"a record of at most {MAX_RECORD_BYTES} bytes")
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
    """Return the sorted paths of the files below ``root``, relative to it. Reject symbolic links and devices."""
    here = local(root)
    found = _remote_files_below(root, "", field) if here is None else _local.files_below(here, field)
    return sorted(found, key=lambda path: path.split("/"))


def copy(
    source: UPath, path: str, target: UPath, target_path: str, *, size_bytes: int | None = None
) -> tuple[int, str]:
    """Copy a file, and create the target's folder if necessary. Return the file's size in bytes and its SHA-256.

    Reject a file that is larger than ``size_bytes``.
    """
    here = local(target)
    digest, size = hashlib.sha256(), 0
    with open_file(source, path) as reader, _create(target, target_path) as writer:
        while block := reader.read(_BLOCK):
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
    """Return the SHA-256 of the names and contents of all files below ``root``."""
    digests = {}
    for path in files_below(root, field):
        with open_file(root, path) as reader:
            digest = hashlib.sha256()
            while block := reader.read(_BLOCK):
                digest.update(block)
        digests[path] = digest.hexdigest()
    return digest_of_files(digests)


def remove_folder(root: UPath, path: str) -> None:
    """Remove the folder ``path`` below ``root``. Ignore errors, because the registry no longer uses the folder."""
    here = local(root)
    if here is not None:
        _local.remove_folder(here, path)
        return
    with suppress(OSError):
        root.fs.rm((root / path).path, recursive=True)


@contextmanager
def staged(destination: Path) -> Iterator[UPath]:
    """Yield an empty private folder. After the block, move its entries to ``destination``; after an error, remove them.

    Entries of ``destination`` with the same names are replaced, not followed if they are links.
    """
    destination.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(destination) as folder:
        yield UPath(folder)
        for entry in list(folder.iterdir()):
            target = destination / entry.name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            elif entry.is_dir():
                target.unlink(missing_ok=True)  # os.replace does not replace a file or a link with a folder
            os.replace(entry, target)


def _create(root: UPath, path: str) -> IO[bytes]:
    here = local(root)
    if here is not None:
        return _local.create_file(here, path)
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    file: IO[bytes] = (root / path).open("wb")
    return file


def _remote_files_below(folder: UPath, below: str, field: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.name in ("", ".", ".."):  # an object store accepts such names
            raise InvalidInputError(field, str(entry), "names of files and folders other than '.' and '..'")
        if entry.is_dir():
            yield from _remote_files_below(entry, f"{below}{entry.name}/", field)
        else:
            yield f"{below}{entry.name}"
