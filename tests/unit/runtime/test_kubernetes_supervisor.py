"""The first process of a pod, without a pod."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import LONG_S

from paceline.runtime.kubernetes import _supervisor

# SIGTERM arrives before the supervisor's first line. As in a pod, where it is process 1, it does not end the process.
EARLY = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


def source(home: Path) -> str:
    """Return the supervisor's source, with another home."""
    return Path(_supervisor.__file__).read_text().replace('HOME = "/paceline"', f"HOME = {str(home)!r}")


def test_supervisor_that_is_stopped_while_it_starts_leaves_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EARLY, source(tmp_path)]
    assert subprocess.run(command, timeout=LONG_S, check=False).returncode == 0


def test_supervisor_blocks_sigterm_before_anything_else_and_only_in_its_own_process(tmp_path: Path) -> None:
    """``_pod`` imports the module in the task's process, which Airflow stops with SIGTERM."""
    print_mask = "import signal\nprint(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, []))\nexit()\n"
    start, import_, rest = source(tmp_path).partition("import contextlib\n")
    assert import_
    ran = subprocess.run([sys.executable, "-c", start + print_mask + rest], capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
