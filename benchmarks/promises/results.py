"""Stores the result of each measurement in a file, from which an interrupted run resumes."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.promises.place import PROJECT


class Results:
    """Stored results of measurements by name, either of full runs or of quick runs.

    Results are stored until the run has ended; the next run measures everything again, because machines change. A
    stored result counts only if its ``about`` (commit, image and everything else that affects the figures) is equal.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._folder, self._about = folder, dict(about)
        folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, name: str) -> bool:
        return self._path(name).exists() and not self.difference(name)

    def __getitem__(self, name: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self._path(name).read_text())
        return result

    def difference(self, name: str) -> str:
        """Return how a stored result differs from this run; "" if the result counts or does not exist."""
        try:
            about = json.loads(self._path(name).read_text())["about"]
            differing = [key for key, value in self._about.items() if about.get(key) != value]
        except FileNotFoundError:
            return ""
        except (ValueError, LookupError, TypeError, AttributeError):
            return "an unknown run"
        return ", ".join(
            f"{key} {about.get(key) or 'unknown'}, not {self._about[key] or 'unknown'}" for key in differing
        )

    def add(self, name: str, result: dict[str, Any]) -> None:
        """Store a result atomically, so that a kill leaves a complete file or no file."""
        unfinished = self._path(name).with_suffix(".part")
        unfinished.write_text(json.dumps({**result, "about": self._about}, indent=1) + "\n")
        unfinished.replace(self._path(name))

    def forget(self, name: str) -> None:
        """Remove a result, so that the next run measures it again."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def commit() -> str:
    """Return the measured commit, with a digest of uncommitted changes; "unknown" outside of a clone."""

    def git(*arguments: str) -> bytes:
        command = ["git", "--no-optional-locks", "-C", str(PROJECT), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout

    try:
        head, changes = git("rev-parse", "--short=12", "HEAD").decode().strip(), git("diff", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+{hashlib.sha256(changes).hexdigest()[:8]}" if changes else head
