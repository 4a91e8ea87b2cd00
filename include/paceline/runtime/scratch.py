"""The scratch folder of one local job: where everything is, and how the three processes that share it write there.

``ProcessRuntime`` lays it out, the launcher runs the job in it, and any later process finds the job again by its path.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

USAGE_BYTES = 128  # fixed, so that one write replaces it whole


@dataclass(frozen=True)
class Scratch:
    """Names inside the scratch folder ``path``."""

    path: Path

    @property
    def order(self) -> Path:
        """What to run, written once before the start: command, environment, limits."""
        return self.path / "job.json"

    @property
    def control(self) -> Path:
        """``{"devices": x}``: written by ``resize``, read by the launcher and the job."""
        return self.path / "control.json"

    @property
    def state(self) -> Path:
        """Who the launcher, its guardian and the job are, and which mechanism is in force."""
        return self.path / "state.json"

    @property
    def usage(self) -> Path:
        """CPU time and memory, rewritten in place by the launcher ten times a second."""
        return self.path / "usage.json"

    @property
    def end(self) -> Path:
        """How the job ended. Exists only once it has."""
        return self.path / "exit.json"

    @property
    def stop(self) -> Path:
        """How long a job that was asked to stop may take."""
        return self.path / "stop.json"

    @property
    def stdout(self) -> Path:
        """The job's standard output, all of it."""
        return self.path / "stdout.log"

    @property
    def stderr(self) -> Path:
        """The job's standard error, all of it."""
        return self.path / "stderr.log"

    @property
    def launcher_log(self) -> Path:
        """What the launcher itself has to say, normally nothing."""
        return self.path / "launcher.log"

    def folder(self, name: str) -> Path:
        """One of ``sdk``, ``work``, ``input``, ``output``, ``checkpoint``, ``tmp``."""
        return self.path / name


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace ``path`` in one step: a reader sees the old content or the new one. Only the owner can read it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as stream:
        json.dump(value, stream)
    os.replace(fresh, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in ``path``; ``None`` if there is no such file or it holds something else."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
