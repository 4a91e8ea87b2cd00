"""The scratch folder of one local job: its layout, and functions to read and write its JSON files.

``ProcessRuntime`` creates the folder, the launcher runs the job in it, and any later process finds the job by its path.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

USAGE_BYTES = 128  # fixed size, so that one write replaces the whole content


@dataclass(frozen=True)
class Scratch:
    """The paths in the scratch folder ``path``."""

    path: Path

    @property
    def job(self) -> Path:
        """Command, environment and limits; written once before the start."""
        return self.path / "job.json"

    @property
    def control(self) -> Path:
        """The allocation, ``{"devices": x}``; written by ``resize``, read by the launcher and the job."""
        return self.path / "control.json"

    @property
    def state(self) -> Path:
        """Identities of the launcher and the guardian, PID of the job, and the enforcement mechanism."""
        return self.path / "state.json"

    @property
    def usage(self) -> Path:
        """CPU time and memory; the launcher rewrites it in place ten times a second."""
        return self.path / "usage.json"

    @property
    def end(self) -> Path:
        """Exit code and reason; exists only after the job has ended."""
        return self.path / "exit.json"

    @property
    def stop(self) -> Path:
        """Grace period of a stop request."""
        return self.path / "stop.json"

    @property
    def lease(self) -> Path:
        """Seconds for which the lease lasts; each renewal replaces the file."""
        return self.path / "lease.json"

    @property
    def record(self) -> Path:
        """The record that the controlling process stores with the job."""
        return self.path / "record.json"

    @property
    def stdout(self) -> Path:
        """The job's complete standard output."""
        return self.path / "stdout.log"

    @property
    def stderr(self) -> Path:
        """The job's complete standard error."""
        return self.path / "stderr.log"

    @property
    def launcher_log(self) -> Path:
        """The launcher's own output, normally empty."""
        return self.path / "launcher.log"

    def folder(self, name: str) -> Path:
        """Return the path of ``sdk``, ``work``, ``input``, ``output``, ``checkpoint`` or ``tmp``."""
        return self.path / name

    def delete(self) -> None:
        """Delete the folder, including folders that the job has made read-only."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():
            for parent, names, _ in os.walk(self.path):
                for folder in (Path(parent, name) for name in names):
                    if not folder.is_symlink():
                        with contextlib.suppress(OSError):
                            folder.chmod(0o700)
            shutil.rmtree(self.path, ignore_errors=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace ``path`` atomically. Only the owner can read the file."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as stream:
        json.dump(value, stream)
    os.replace(fresh, path)


def write_end(scratch: Scratch, value: dict[str, Any]) -> None:
    """Record how the job ended. On a full disk, reuse the space of the usage file, which is no longer needed."""
    try:
        write_json(scratch.end, value)
    except OSError:
        with scratch.usage.open("r+b") as stream:
            stream.write(json.dumps(value).encode().ljust(USAGE_BYTES))
        os.replace(scratch.usage, scratch.end)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in ``path``; ``None`` if the file is missing or contains anything else."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
