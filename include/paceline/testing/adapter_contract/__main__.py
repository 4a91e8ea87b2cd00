"""Starts trainings in forked processes, because the import of their library takes seconds and a fork does not.

``python -m paceline.testing.adapter_contract MODULE:FUNCTION FOLDER`` reads the scenarios from its input, see
``train_in_processes``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import operator
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.train import stop_early
from paceline.train.job import ENV_CHECKPOINT, ENV_OUTPUT

from ._trainings import Scenario

_LONGEST_S = 300


def _start(train: Callable[..., object], scenario: Scenario, restarts: int, folder: Path) -> int:
    """Train in a forked process; return its exit code."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code: Any = 1
    with (folder / f"log-{restarts}").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        signal.alarm(_LONGEST_S)  # ends a process that hangs
        os.environ[ENV_OUTPUT] = str(folder)
        if scenario.saves:
            os.environ[ENV_CHECKPOINT] = str(folder / "checkpoint")
        os.chdir(folder)
        is_last = restarts == len(scenario.signals)

        def after_step(done: int) -> None:
            if done == scenario.stop:
                stop_early()
            if not is_last and scenario.signals[restarts][1] == done:
                os.kill(os.getpid(), getattr(signal, scenario.signals[restarts][0]))

        options = scenario.options | (scenario.last if is_last else {})
        (folder / "result").write_text(json.dumps(train(after_step, **options), sort_keys=True))
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main(function: str, top: Path, scenarios: Mapping[str, Mapping[str, Any]]) -> None:
    """Run the scenarios; leave in the folder of each its ``codes``, ``result`` and logs."""
    module, _, name = function.partition(":")
    train = operator.attrgetter(name)(importlib.import_module(module))
    if isinstance(train, type):
        train = operator.attrgetter("train")(train())
    gc.freeze()  # a fork copies what garbage collection touches
    for title, values in scenarios.items():
        folder, scenario = top / title, Scenario(**values)
        folder.mkdir()
        codes = [_start(train, scenario, restarts, folder) for restarts in range(len(scenario.signals) + 1)]
        (folder / "codes").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.load(sys.stdin))
