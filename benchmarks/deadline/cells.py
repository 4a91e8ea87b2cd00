"""The cells of the benchmark (model and deadline), the controllers, and a resumable record of finished runs."""

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
    """One row of the paper's tables; ``d_c`` and ``changed_to`` are deadlines relative to the shortest time.

    The deadline changes from ``d_c`` to ``changed_to`` during the run (``None``: it does not change).
    """

    model: str
    d_c: float
    changed_to: float | None = None

    @property
    def final_coefficient(self) -> float:
        """The final deadline relative to the shortest time."""
        return self.changed_to or self.d_c

    def __str__(self) -> str:
        return f"{self.model} {self.d_c:g}" + (f" -> {self.changed_to:g}" if self.changed_to else "")


def cells(models: list[str], *, quick: bool) -> list[Cell]:
    """Return the cells of tables I and III of DECOR-NN and a cell with ``d_c`` 1.2; with ``quick``, only three cells.

    >>> [str(cell) for cell in cells(["vgg19"], quick=True)]
    ['vgg19 1', 'vgg19 1.5', 'vgg19 1.8 -> 1.44']
    """
    if quick:
        deadlines: list[tuple[float, float | None]] = [(1.0, None), (1.5, None), (1.8, 1.44)]
    else:
        deadlines = [(1.0, None), (1.2, None), (1.5, None), (1.8, None), (1.5, 1.2), (1.8, 1.44)]
    return [Cell(model, d_c, changed_to) for model in models for d_c, changed_to in deadlines]


class Record:
    """Finished runs by name, from which an interrupted benchmark resumes. The file has one line per run."""

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
        """Discard a result, so that the run is repeated. If a run has several lines in the file, the last counts."""
        self._runs.pop(name, None)

    def add(self, name: str, value: Any) -> None:
        """Store the result of a run."""
        self._runs[name] = value
        with self._path.open("a") as file:
            file.write(json.dumps([name, value]) + "\n")
