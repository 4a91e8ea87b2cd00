"""``FileCopies``: copies of a job's checkpoint in a folder or in object storage.

Each copy is one file, ``copy-000007.tar``, whose last entry shows that it is complete. The two newest are kept.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.airflow.stored_files import COPY_NAME, has_record, remove_record, write_record
from paceline.errors import TrainingFailedError
from paceline.runtime.archive import Entry, extract_output, tar_stream

if TYPE_CHECKING:
    from airflow.sdk import ObjectStoragePath

    from paceline.contract import StoredFiles

_KEPT = 2
_ROOT, _ABOUT = "copy", "about.json"


class FileCopies:
    """The copies of one job's checkpoint.

    Parameters
    ----------
    folder:
        Folder of this job only; created with the first copy.
    log:
        The task's log.
    record:
        The record of the folder for ``paceline prune``, written with the first copy; by default, none.
    """

    def __init__(self, folder: ObjectStoragePath, log: Any, record: StoredFiles | None = None) -> None:
        self._folder, self._log, self._record = folder, log, record
        self._number: int | None = None  # of the newest copy, once known

    @property
    def place(self) -> str:
        """The folder as a text."""
        return str(self._folder)

    @property
    def is_prepared(self) -> bool:
        """Whether this process reads what ``prepare`` has written, maybe on another machine."""
        try:
            return has_record(self._folder)
        except Exception:  # of an object store, for example without credentials
            return False

    def prepare(self) -> bool:
        """Create the folder and its record; return true."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._record is not None:
            write_record(self._folder, self._record, self._log)
        return True

    def save(self, checkpoint: Path, about: Mapping[str, Any], is_cancelled: Callable[[], bool]) -> None:
        """Store a copy of a local folder, with a few JSON values about it, and remove all older copies but one.

        Stops without a copy as soon as ``is_cancelled`` returns true.
        """
        if self._number is None:
            self._number = max(self._numbers(), default=0)
            self.prepare()
        path = self._path(self._number + 1)
        try:
            with path.fs.open(path.path, "wb") as out:
                for chunk in tar_stream(_entries(checkpoint, about)):
                    if is_cancelled():
                        raise InterruptedError
                    out.write(chunk)
            if is_cancelled():  # a small file is stored when it is closed
                raise InterruptedError
        except BaseException as error:
            with contextlib.suppress(Exception):
                path.unlink(missing_ok=True)
            if isinstance(error, InterruptedError):
                return
            raise
        self._number += 1
        for number in self._numbers():
            if number <= self._number - _KEPT:
                self._path(number).unlink(missing_ok=True)

    def load(self, checkpoint: Path) -> dict[str, Any] | None:
        """Extract the newest complete copy into an empty local folder, and return the values that ``save`` stored.

        Return ``None`` if there is no complete copy. Errors of the storage are not caught: they say nothing about
        whether there is a copy.
        """
        for number in sorted(self._numbers(), reverse=True):
            unpacked = checkpoint / str(number)
            try:
                with self._folder.fs.open(self._path(number).path, "rb") as stream:
                    chunks = iter(partial(stream.read, 1 << 20), b"")
                    extract_output(chunks, unpacked, root=_ROOT, max_bytes=sys.maxsize)
                about: dict[str, Any] = json.loads((unpacked / _ABOUT).read_text())
            except (TrainingFailedError, tarfile.TarError, FileNotFoundError, ValueError) as error:
                self._log.warning("%s is incomplete and is not used: %s", self._path(number), error)
                continue
            for child in (unpacked / "checkpoint").iterdir():
                child.rename(checkpoint / child.name)
            return about
        return None

    def remove(self) -> None:
        """Remove all copies, and the folder if it is then empty."""
        for number in self._numbers():
            self._path(number).unlink(missing_ok=True)
        remove_record(self._folder)
        for folder in (self._folder, self._folder.parent):
            with contextlib.suppress(OSError):  # it is not empty, or does not exist
                folder.fs.rmdir(folder.path)

    def _numbers(self) -> list[int]:
        fs = self._folder.fs
        fs.invalidate_cache()  # another process may have stored or removed copies
        try:
            names = [str(one).rpartition("/")[2] for one in fs.ls(self._folder.path, detail=False)]
        except FileNotFoundError:
            return []
        return [int(match[1]) for name in names if (match := COPY_NAME.fullmatch(name))]

    def _path(self, number: int) -> ObjectStoragePath:
        return self._folder / f"copy-{number:06d}.tar"


def _entries(checkpoint: Path, about: Mapping[str, Any]) -> Iterator[Entry]:
    yield Entry(f"{_ROOT}/checkpoint", None, 0o755)
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint)
        if any(part.startswith(".") and part.endswith(".tmp") for part in name.parts):
            continue  # a checkpoint that is being written
        yield Entry(f"{_ROOT}/checkpoint/{name.as_posix()}", path if path.is_file() else None, 0o644)
    yield Entry(f"{_ROOT}/{_ABOUT}", json.dumps(dict(about)).encode(), 0o644)
