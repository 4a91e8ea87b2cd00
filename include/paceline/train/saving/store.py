"""Checkpoint files: written atomically, read without running code from them. Called by ``checkpoint``.

A file is a ``torch.save`` archive, or one of ``_plain`` if the training code has not imported torch. Its name
contains a number and the checksum of the content, so a single rename publishes a complete file. The two newest files
are kept.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from paceline.train._values import bad_value, log

from . import _plain

FORMAT = 1
_NAME = re.compile(r"checkpoint-(\d{6,})-([0-9a-f]{8})\.(?:pt|zip)")
_CHUNK = 1 << 20
_ACCEPTED = "tensors, numbers, strings, lists, tuples and dicts only (Kept also keeps numpy arrays)"


class Store:
    """The checkpoint files in one folder.

    Parameters
    ----------
    folder:
        The folder, created if missing. Raises ``ValueError`` if it is not writable.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".checkpoint-*.tmp"):  # left by a process that was killed during a save
                leftover.unlink()
        except OSError as error:
            raise bad_value("path", str(folder), f"a writable folder ({error.strerror})") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise bad_value("path", str(folder), "a writable folder (Permission denied)")
        self._number = max((number for number, _, _ in self._files()), default=0)

    def save(self, content: dict[str, Any]) -> Path:
        """Write a checkpoint; on failure raise ``OSError`` and leave existing files unchanged."""
        temporary = self.folder / f".checkpoint-{os.getpid()}.tmp"
        try:
            with temporary.open("wb") as file:
                sink = _ChecksummedFile(file)
                suffix = _write({"format": FORMAT, **content}, sink)
                file.flush()
                os.fsync(file.fileno())
            path = self.folder / f"checkpoint-{self._number + 1:06d}-{sink.checksum:08x}{suffix}"
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        self._number += 1
        self._sync_folder()
        for _, _, old in self._files()[2:]:
            old.unlink(missing_ok=True)
        return path

    def load(self) -> tuple[dict[str, Any], Path] | None:
        """Read the newest usable checkpoint; log which files are unusable and why."""
        files = self._files()
        for _, checksum, path in files:
            try:
                return _read(path, checksum), path
            except Exception as error:  # torch raises many error types for a damaged archive
                log(f"checkpoint {path} is unusable, trying the previous checkpoint: {_first_line(error)}")
        if files:
            log(f"no usable checkpoint in {self.folder}: starting from the beginning")
        return None

    def _files(self) -> list[tuple[int, int, Path]]:
        matches = ((path, _NAME.fullmatch(path.name)) for path in self.folder.iterdir())
        return sorted(((int(m[1]), int(m[2], 16), path) for path, m in matches if m), reverse=True)

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_loadable(part: str, state: Any) -> None:
    """Raise ``ValueError`` unless ``state`` can be loaded without running code.

    Torch's own tensors always load, so the check omits them to save time.
    """
    if sys.modules.get("torch") is None:
        try:
            _plain.check(state)
        except TypeError as error:
            raise ValueError(f"{part}: got a state with {error}, expected {_ACCEPTED}") from None
        return
    import io
    import pickle

    import torch
    from torch.nn import parameter

    own = (torch.Tensor, parameter.Parameter, parameter.UninitializedParameter, parameter.UninitializedBuffer)
    buffer = io.BytesIO()
    try:
        torch.save(_without_tensors(state, own), buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError) as error:
        match = re.search(r"GLOBAL (\S+)", str(error)) or re.search(r"(.+)", str(error))
        detail = match[1] if match else type(error).__name__
        raise ValueError(f"{part}: got a state with {detail}, expected {_ACCEPTED}") from None


def check_complete(name: str, part: Any, state: Any) -> None:
    """Raise ``ValueError`` if ``state`` is a shard, because rank 0 alone cannot save a model that ranks share."""
    modules = part.modules() if callable(getattr(part, "modules", None)) else ()
    kinds = {type(item).__name__ for item in (*modules, *leaves(state))}
    if sharded := kinds & {"FullyShardedDataParallel", "DTensor", "ShardedTensor"}:
        raise bad_value(name, f"a sharded state ({min(sharded)})", "a state that is complete on rank 0, as with DDP")


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values within nested dicts, lists and tuples."""
    if isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


def _without_tensors(value: Any, tensors: tuple[type, ...]) -> Any:
    if type(value) in tensors:  # other subclasses may not load
        return None
    if type(value) in (dict, OrderedDict):
        return {key: _without_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_without_tensors(item, tensors) for item in value]
    return value


def _write(content: dict[str, Any], sink: _ChecksummedFile) -> str:
    """Write the content and return the suffix of its format."""
    if sys.modules.get("torch") is None:
        _plain.write(content, sink)  # type: ignore[arg-type]
        return ".zip"
    import torch

    try:
        torch.save(content, sink)  # type: ignore[arg-type]
    except RuntimeError as error:  # torch's error for a failed write
        raise sink.error or OSError(str(error)) from error
    return ".pt"


def _read(path: Path, checksum: int) -> dict[str, Any]:
    with path.open("rb") as file:
        computed = 0
        while chunk := file.read(_CHUNK):
            computed = zlib.crc32(chunk, computed)
        if computed != checksum:
            raise ValueError("its content does not match its checksum")
        file.seek(0)
        if path.suffix == ".zip":
            content: Any = _plain.read(file)
        else:
            import torch

            content = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("not a checkpoint of this version of paceline.train")
    return content


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _ChecksummedFile:
    """A writable file that computes the checksum of its content, which is written sequentially."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.checksum = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.checksum = zlib.crc32(data, self.checksum)
        return len(data)

    def flush(self) -> None:
        self._file.flush()
