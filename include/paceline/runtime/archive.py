"""Tar streams to and from a container. Large input files are streamed. Output is untrusted and therefore validated.

Called by ``DockerRuntime`` (input files, checkpoints) and ``DockerJob`` (output).
"""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from paceline.errors import InvalidInputError, TrainingFailedError
from paceline.runtime._output import OutputCollector, collect_output

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A file or folder in a tar archive. ``source``: a local path, the content as bytes, or ``None`` for a folder."""

    path: str
    source: Path | bytes | None
    mode: int
    uid: int = 0
    gid: int = 0


def tar_stream(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield a tar archive of ``entries``, in chunks with at most 1 MiB of a file."""
    now = int(time.time())
    for entry in entries:
        header = tarfile.TarInfo(entry.path)
        header.mode, header.uid, header.gid, header.mtime = entry.mode, entry.uid, entry.gid, now
        if entry.source is None:
            header.type = tarfile.DIRTYPE
            yield header.tobuf(tarfile.PAX_FORMAT)
        elif isinstance(entry.source, bytes):
            header.size = len(entry.source)
            yield header.tobuf(tarfile.PAX_FORMAT) + entry.source + _padding(header.size)
        else:
            yield from _file_chunks(header, entry.source)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _file_chunks(header: tarfile.TarInfo, source: Path) -> Iterator[bytes]:
    # This generator must not raise OSError: the HTTP client that sends the chunks would report a connection error.
    try:
        stream = source.open("rb")
    except OSError as error:
        raise InvalidInputError("files", str(source), f"a readable file ({error.strerror})") from error
    with stream:
        header.size = left = os.fstat(stream.fileno()).st_size
        yield header.tobuf(tarfile.PAX_FORMAT)
        while left:
            try:
                block = stream.read(min(_BLOCK, left))
            except OSError as error:
                raise InvalidInputError("files", str(source), f"a readable file ({error.strerror})") from error
            if not block:
                raise InvalidInputError("files", str(source), "a file that does not shrink while it is read")
            left -= len(block)
            yield block
        yield _padding(header.size)


def change_owner(chunks: Iterable[bytes], *, uid: int, gid: int) -> Iterator[bytes]:
    """Yield the tar archive in ``chunks`` with another owner; leave out everything but files, folders and links."""
    with tarfile.open(fileobj=ChunkReader(chunks), mode="r|") as archive:
        for member in members(archive):
            if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                continue
            member.uid, member.gid, member.uname, member.gname = uid, gid, "", ""
            yield member.tobuf(tarfile.PAX_FORMAT)
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                while block := content.read(_BLOCK):
                    yield block
                yield _padding(member.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def extract_output(chunks: Iterable[bytes], destination: Path, *, root: str, max_bytes: int) -> list[str]:
    """Unpack the tar archive in ``chunks`` to ``destination``, see :func:`paceline.runtime._output.collect_output`.

    Parameters
    ----------
    chunks:
        The tar archive from the engine.
    destination, max_bytes:
        As for ``collect_output``, which also says what is returned and raised.
    root:
        Name of the archive's top-level folder; an entry outside this folder is an error.
    """

    def unpack(collector: OutputCollector) -> None:
        with tarfile.open(fileobj=ChunkReader(chunks), mode="r|") as archive:
            for member in members(archive):
                path = relative_parts(member.name, root)
                if path is None:
                    raise TrainingFailedError(f"{root}: {member.name!r} is outside the folder")
                if member.isdir():
                    collector.add_folder(path)
                elif member.isreg():
                    content = archive.extractfile(member)
                    assert content is not None  # not None for a regular file
                    collector.add_file(path, cast("BinaryIO", content), member.size)
                elif member.issym():
                    collector.add_link(path, member.linkname)
                elif member.islnk() and (target := relative_parts(member.linkname, root)) is not None:
                    collector.add_hard_link(path, target)
                else:
                    collector.skip(path)

    return collect_output(destination, unpack, max_bytes=max_bytes, name=root)


def members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the entries of a stream. ``tarfile`` would keep all of them, and a job chooses how many there are."""
    while (member := archive.next()) is not None:
        yield member
        archive.members.clear()  # type: ignore[attr-defined]


def relative_parts(name: str, root: str) -> tuple[str, ...] | None:
    """Return the path components of ``name`` below ``root``; ``None`` if ``name`` is outside ``root``."""
    path = PurePosixPath(name)
    parts = path.parts
    if path.is_absolute() or ".." in parts or not parts or parts[0] != root:
        return None
    return parts[1:]


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


class ChunkReader(io.RawIOBase):
    """A readable file object over an iterator of chunks, for ``tarfile``."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffered = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return at most ``size`` bytes, fewer only at the end; all if it is negative."""
        pieces = [self._buffered]
        available = len(self._buffered)
        while size < 0 or available < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            pieces.append(chunk)
            available += len(chunk)
        data = b"".join(pieces)
        cut = available if size < 0 else size
        self._buffered = data[cut:]
        return data[:cut]
