"""Hold-out data and inputs on this machine: notices changes while models are scored. For ``EvaluateOperator``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.airflow.arguments import local_copies


class HoldOut:
    """The files and folders with the data on which several models are scored, and the other inputs of the script.

    Remote files are copied once. Local data stays where it is, so it may be replaced before the last model is scored.

    Parameters
    ----------
    data, inputs:
        The arguments of ``EvaluateOperator``.
    folder:
        Folder for copies of remote files.
    others:
        Other local files and folders whose changes count, such as the script.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = file.write_text("1")
    >>> holdout = HoldOut({"rows.csv": str(file)}, {}, file.parent / "copies")
    >>> holdout.changed_file() is None
    True
    >>> _ = file.write_text("1,2")
    >>> holdout.changed_file() == str(file)
    True
    """

    def __init__(
        self, data: Mapping[str, Any], inputs: Mapping[str, Any], folder: Path, others: Iterable[Path] = ()
    ) -> None:
        self.paths = local_copies("data", data, folder / "data")
        self.inputs = local_copies("inputs", inputs, folder / "inputs")
        self._watched = [*self.paths.values(), *self.inputs.values(), *others]
        self._before = dict(_states(self._watched))

    def changed_file(self) -> str | None:
        """Return the path of a file that has changed, appeared or disappeared since the start; ``None`` without one."""
        now = dict(_states(self._watched))
        changed = (path for path in sorted({*now, *self._before}) if now.get(path) != self._before.get(path))
        return next(changed, None)


def _states(paths: Iterable[Path]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each file and its state, which every change of the file or of its content changes."""
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            if not file.is_dir():
                yield str(file), _state(file)


def _state(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:  # a link to nowhere
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
