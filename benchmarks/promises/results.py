"""What has been measured so far, in a file for each measurement: an interrupted run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Results:
    """Results of the measurements of one kind of run (whole or quick), by name.

    They are kept until the run has ended; the next one begins anew, as a machine is another one every day.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, name: str) -> bool:
        return self._path(name).exists()

    def __getitem__(self, name: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self._path(name).read_text())
        return result

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self._folder.glob("*.json")))

    def add(self, name: str, result: dict[str, Any]) -> None:
        """Keep a result. A run that is killed meanwhile leaves the file whole or does not leave it."""
        unfinished = self._path(name).with_suffix(".part")
        unfinished.write_text(json.dumps(result, indent=1) + "\n")
        unfinished.replace(self._path(name))

    def forget(self, name: str) -> None:
        """Let the next run measure it again."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"
