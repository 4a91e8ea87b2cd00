"""Trainings in real processes that end by signals and start again, and what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.train.progress import Progress, parse_line

EXIT_CODES = {"SIGTERM": 143, "SIGKILL": -signal.SIGKILL}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The starts of one training. All but the last end by a signal.

    Parameters
    ----------
    signals:
        For each start but the last, the name of a signal and the number of steps after which the process gets it.
    stop:
        Number of steps after which the training calls ``stop_early``, if any.
    options:
        Keyword arguments of the training function: values of JSON.
    last:
        Further keyword arguments, in the last start only.
    saves:
        Whether the job has a checkpoint folder.
    """

    signals: list[tuple[str, int]] = field(default_factory=list)
    stop: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    saves: bool = True


@dataclass(frozen=True)
class Trained:
    """What the starts of a training left.

    Parameters
    ----------
    codes:
        Exit code of each start, negative for the number of a signal.
    logs, progress:
        What each start printed, and the progress in it.
    result:
        What the training function returned, as JSON; ``None`` if it did not end.
    folder:
        The job's working and output folder.
    """

    codes: list[int]
    logs: list[str]
    progress: list[list[Progress]]
    result: str | None
    folder: Path


def train_in_processes(
    function: str, scenarios: Mapping[str, Scenario], folder: Path, **environment: str
) -> dict[str, Trained]:
    """Run each scenario in processes of its own, one after the other; return what they left, by name.

    Parameters
    ----------
    function:
        The training function, as ``"module:name"``; for a class, its method ``train``. It takes a function, which it
        calls after each step with the number of steps done, and the options. It returns a value of JSON that shows the
        trained model.
    scenarios:
        Scenarios by name.
    folder:
        Empty folder, in which each scenario gets a folder of its name.
    environment:
        Further environment variables.
    """
    content = json.dumps({name: asdict(one) for name, one in scenarios.items()})
    path = os.pathsep.join([*filter(None, sys.path), _folder_of(function)])
    variables = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}  # threads do not survive a fork
    command = [sys.executable, "-m", __package__, function, str(folder)]
    subprocess.run(command, input=content, text=True, env=os.environ | variables | environment, check=True)
    return {name: _read(folder / name) for name in scenarios}


def _folder_of(function: str) -> str:
    """Return the folder with the function's module or top package, which pytest may have imported by its path."""
    top = sys.modules.get(function.partition(":")[0].partition(".")[0])
    places = [*getattr(top, "__path__", []), getattr(top, "__file__", None)]
    return str(Path(places[0] or ".").parent)


def _read(folder: Path) -> Trained:
    codes = json.loads((folder / "codes").read_text())
    logs = [(folder / f"log-{restarts}").read_text() for restarts in range(len(codes))]
    progress = [[one for line in log.splitlines() if (one := parse_line(line))] for log in logs]
    result = folder / "result"
    return Trained(codes, logs, progress, result.read_text() if result.exists() else None, folder)
