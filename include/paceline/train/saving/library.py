"""Checkpoints whose files a library writes itself, such as a booster's model. Used by the adapters; needs no torch.

A checkpoint is a folder with the library's files and ``point.json``: the point to resume from and the files' checksums.
A single rename publishes a complete folder. The two newest folders are kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.train._values import bad_value, log
from paceline.train.job import rank

from .checkpoint import Saver
from .ranks import from_rank_0

FORMAT = 1
_POINT = "point.json"
_NAME = re.compile(r"checkpoint-(\d{6,})")
_CHUNK = 1 << 20


class LibraryCheckpoint(Saver):
    """The checkpoints of a library that writes its state into files.

    Parameters
    ----------
    write:
        Function that writes the state into an empty folder. If it raises ``OSError``, training continues.
    folder, every_s, clock:
        As for ``Saver``. The folder is created if missing. Raises ``ValueError`` if it is not writable.
    fingerprint:
        What identifies the training, by name. The checkpoint of another training is not restored.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from paceline.train.saving.checkpoint import Position
    >>> def write(folder):
    ...     _ = (folder / "model.txt").write_text("three trees")
    >>> folder = Path(mkdtemp())
    >>> LibraryCheckpoint(write, folder, None).save(Position(0, 0, 3, 3, 10, 10), {}, {}, {})
    True
    >>> (LibraryCheckpoint(write, folder, None).restore() / "model.txt").read_text()
    'three trees'
    """

    def __init__(
        self,
        write: Callable[[Path], None],
        folder: Path,
        every_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        fingerprint: Mapping[str, str] | None = None,
    ) -> None:
        self._write_files = write
        self._fingerprint = dict(fingerprint or {})
        self._temporary = folder / ".checkpoint.tmp"
        try:
            if rank() == 0:
                self._temporary.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(self._temporary)
        except OSError as error:
            raise bad_value("path", str(folder), f"a writable folder ({error.strerror})") from None
        super().__init__(folder, every_s, clock)
        self._number = max((number for number, _ in self._folders()), default=0) if rank() == 0 else 0

    def restore(self) -> Path | None:
        """Set the point to resume from; return the folder of the newest usable checkpoint, ``None`` if there is none.

        Read its files before the next save, which may remove the folder. Rank 0 chooses the folder for all ranks.
        """
        newest = from_rank_0(self._newest() if rank() == 0 else None)
        if newest is None:
            return None
        point, folder = newest
        if different := _differences(point.pop("fingerprint", None), self._fingerprint):
            log(f"{folder} is of another training ({different}): this training starts from the beginning")
            return None
        self._restore_point(point, folder)
        return folder

    def _newest(self) -> tuple[dict[str, Any], Path] | None:
        folders = self._folders()
        for _, folder in folders:
            try:
                return _read_point(folder), folder
            except (OSError, ValueError, KeyError, TypeError) as error:
                log(f"checkpoint {folder} is unusable, trying the previous checkpoint: {error}")
        if folders:
            log(f"no usable checkpoint in {self.folder}: starting from the beginning")
        return None

    def _write(self, point: dict[str, Any]) -> bool:
        try:
            self._temporary.mkdir()
            self._write_files(self._temporary)
            checksums = {str(path.relative_to(self._temporary)): _checksum(path) for path in _files(self._temporary)}
            content = {"format": FORMAT, "files": checksums, "fingerprint": self._fingerprint, **point}
            (self._temporary / _POINT).write_text(json.dumps(content, default=_plain_numbers), encoding="utf-8")
            for path in self._temporary.rglob("*"):
                _sync(path)
            _sync(self._temporary)
            self._temporary.rename(self.folder / f"checkpoint-{self._number + 1:06d}")
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)
        self._number += 1
        _sync(self.folder)
        for _, old in self._folders()[2:]:
            shutil.rmtree(old, ignore_errors=True)
        return True

    def _folders(self) -> list[tuple[int, Path]]:
        matches = ((path, _NAME.fullmatch(path.name)) for path in self.folder.iterdir())
        return sorted(((int(match[1]), path) for path, match in matches if match), reverse=True)


def _read_point(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / _POINT).read_text(encoding="utf-8"))
    if content.pop("format") != FORMAT:
        raise ValueError("not a checkpoint of this version of paceline.train")
    for name, checksum in content.pop("files").items():
        if _checksum(folder / name) != checksum:
            raise ValueError(f"the content of {name} does not match its checksum")
    return content


def _differences(before: dict[str, str] | None, now: dict[str, str]) -> str:
    """Return which values of two trainings differ; empty if none, or if it is unknown."""
    if before is None:
        return ""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    shown = [f"{name}: {_shortened(before.get(name))}, now {_shortened(now.get(name))}" for name in names[:3]]
    return "; ".join(shown) + (f"; {len(names) - 3} more" if len(names) > 3 else "")


def _shortened(text: str | None) -> str:
    return "none" if text is None else text if len(text) <= 40 else f"{text[:37]}..."


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _plain_numbers(value: Any) -> Any:
    """Convert a tensor, the state of a random number generator, to a list."""
    return value.tolist()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
