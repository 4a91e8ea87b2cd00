"""What is run: models, deadlines, controllers, repeats; and what came of it so far, kept so that a run can go on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTROLLERS = ("default", "paper")
STATIC = "static"  # no controller: the smallest constant allocation that meets the deadline
REPEATS = 3


@dataclass(frozen=True)
class Cell:
    """One row of the paper's tables: the deadline is ``d_c`` times the shortest time, later ``changed_to`` times it."""

    model: str
    d_c: float
    changed_to: float | None = None

    @property
    def last(self) -> float:
        """The coefficient that counts in the end."""
        return self.changed_to or self.d_c

    def __str__(self) -> str:
        return f"{self.model} {self.d_c:g}" + (f" -> {self.changed_to:g}" if self.changed_to else "")


def cells(models: list[str], *, quick: bool) -> list[Cell]:
    """The cells of tables I and III of DECOR-NN, and 1.2 besides; or three of them.

    >>> [str(cell) for cell in cells(["vgg19"], quick=True)]
    ['vgg19 1', 'vgg19 1.5', 'vgg19 1.8 -> 1.44']
    """
    if quick:
        deadlines: list[tuple[float, float | None]] = [(1.0, None), (1.5, None), (1.8, 1.44)]
    else:
        deadlines = [(1.0, None), (1.2, None), (1.5, None), (1.8, None), (1.5, 1.2), (1.8, 1.44)]
    return [Cell(model, d_c, changed_to) for model in models for d_c, changed_to in deadlines]


class Record:
    """Finished runs by name, in a file that grows by a line for each: what was interrupted goes on where it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._runs: dict[str, Any] = dict(json.loads(line) for line in lines)

    def __contains__(self, name: str) -> bool:
        return name in self._runs

    def __getitem__(self, name: str) -> Any:
        return self._runs[name]

    def forget(self, name: str) -> None:
        """A run of this name will be made again; the file's last line for it counts."""
        self._runs.pop(name, None)

    def add(self, name: str, value: Any) -> None:
        """Keep what a run gave."""
        self._runs[name] = value
        with self._path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")
