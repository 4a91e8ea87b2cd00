"""Tar streams into and out of a job: made piece by piece, because inputs are large, and taken apart without trust.

Called by ``DockerRuntime`` (files in) and its jobs (output back).
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
from paceline.runtime.output import Intake, take_output

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One file or folder of a tar: ``source`` is a local file, its content, or ``None`` for a folder."""

    path: str
    source: Path | bytes | None
    mode: int
    uid: int = 0
    gid: int = 0


def tar_stream(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield a tar of ``entries`` without ever holding a whole file in memory."""
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
            yield from _file(header, entry.source)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _file(header: tarfile.TarInfo, source: Path) -> Iterator[bytes]:
    # An OSError must not leave here: whoever sends these chunks would take it for the connection's.
    try:
        stream = source.open("rb")
    except OSError as error:
        raise InvalidInputError("files", str(source), f"a file that can be read ({error.strerror})") from error
    with stream:
        header.size = left = os.fstat(stream.fileno()).st_size
        yield header.tobuf(tarfile.PAX_FORMAT)
        while left:
            try:
                block = stream.read(min(_BLOCK, left))
            except OSError as error:
                raise InvalidInputError("files", str(source), f"a file that can be read ({error.strerror})") from error
            if not block:
                raise InvalidInputError("files", str(source), "a file that does not shrink while it is read")
            left -= len(block)
            yield block
        yield _padding(header.size)


def extract_output(chunks: Iterable[bytes], destination: Path, *, root: str, max_bytes: int) -> list[str]:
    """Unpack the tar in ``chunks`` into ``destination``, all that can be collected or nothing.

    Parameters
    ----------
    chunks:
        The tar, as it comes from the engine.
    destination:
        Folder, created if missing.
    root:
        Name of the folder in the tar that is unpacked; entries outside are refused.
    max_bytes:
        Limit on the sum of all file sizes.

    Returns
    -------
    list of str
        The names in ``destination`` that are the output's.

    Raises
    ------
    TrainingFailedError
        An entry leads out of the folder, or there is too much. The job wrote this tar's content, so nothing in it is
        believed.
    """

    def unpack(intake: Intake) -> None:
        with tarfile.open(fileobj=_Reader(chunks), mode="r|") as archive:
            for member in archive:
                path = _parts(member.name, root)
                if path is None:
                    raise TrainingFailedError(f"output: {member.name!r} leads out of the output folder")
                if member.isdir():
                    intake.add_folder(path)
                elif member.isreg():
                    content = archive.extractfile(member)
                    assert content is not None  # a regular member has content
                    intake.add_file(path, cast("BinaryIO", content), member.size)
                elif member.issym():
                    intake.add_link(path, member.linkname)
                elif member.islnk() and (target := _parts(member.linkname, root)) is not None:
                    intake.add_hard_link(path, target)
                else:
                    intake.leave_out(path)

    return take_output(destination, unpack, max_bytes=max_bytes)


def _parts(name: str, root: str) -> tuple[str, ...] | None:
    """Return the parts of a name below ``root``; ``None`` for one that leads elsewhere."""
    path = PurePosixPath(name)
    parts = path.parts
    if path.is_absolute() or ".." in parts or not parts or parts[0] != root:
        return None
    return parts[1:]


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


class _Reader(io.RawIOBase):
    """A file over an iterator of chunks, as tarfile wants to read."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        pieces = [self._rest]
        have = len(self._rest)
        while size < 0 or have < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            pieces.append(chunk)
            have += len(chunk)
        data = b"".join(pieces)
        cut = have if size < 0 else size
        self._rest = data[cut:]
        return data[:cut]
