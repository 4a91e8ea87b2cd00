"""Starts training runs in forked processes, because the import of their library takes seconds and a fork does not.

``python starts.py MODULE FOLDER SCENARIOS`` imports the MODULE next to this file once, and calls its function
``train(options, restarts)`` in a new process for each start of each scenario. The scenarios are JSON: the options by
name; ``ends`` lists pairs of a signal and the step in which the process sends it to itself, one pair for each start.
The last start has no signal. The folder of a scenario then contains the exit codes and the log of each start.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path


def signal_at(options, restarts, done):
    """Send this process the signal that the scenario plans after ``done`` steps, if any."""
    if restarts < len(options.get("ends", ())) and options["ends"][restarts][1] == done:
        os.kill(os.getpid(), getattr(signal, options["ends"][restarts][0]))


def start(train, options, restarts, folder):
    """Run ``train`` in a forked process; return its exit code, or the negative number of the signal that ended it."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    with (folder / f"log-{restarts}").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        os.environ.update(PACELINE_OUTPUT=str(folder), PACELINE_CHECKPOINT=str(folder / "checkpoint"))
        os.chdir(folder)
        train(options, restarts)
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


if __name__ == "__main__":
    module, top, scenarios = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    train = importlib.import_module(module).train
    gc.freeze()  # a fork copies what garbage collection touches
    for name, options in scenarios.items():
        (top / name).mkdir()
        starts = range(len(options.get("ends", ())) + 1)
        codes = [start(train, options, restarts, top / name) for restarts in starts]
        (top / name / "codes").write_text(json.dumps(codes))
