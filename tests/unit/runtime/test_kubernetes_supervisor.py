"""The first process of a pod, without a pod."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LONG_S, until

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
    text = Path(_supervisor.__file__).read_text().replace('HOME = "/paceline"', f"HOME = {str(home)!r}")
    return text.replace("/sys/fs/cgroup/", f"{home}/cgroup/")


@contextmanager
def supervisor(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", source(home)], stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def start_job(home: Path, command: list[str]) -> None:
    """Start a job in a container whose memory limit is 1,000 bytes."""
    state, groups = home / "state", home / "cgroup"
    until(lambda: (state / "control").exists(), "the supervisor")
    groups.mkdir()
    for name, content in {"memory.max": "1000", "memory.events": "oom_kill 0\n", "memory.current": "100"}.items():
        (groups / name).write_text(content)
    job: dict[str, Any] = {"command": command, "environment": {}, "lease_s": 0, "file_bytes": 0}
    (state / "job.json").write_text(json.dumps(job))
    (state / "control").write_text("start 1\n")


def run_of(home: Path) -> dict[str, Any]:
    path = home / "state" / "run.json"
    run: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return run


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


@pytest.mark.parametrize(("code", "kills", "expected"), [(1, 1, True), (1, 0, False), (137, 1, True)])
def test_kill_for_memory_is_known_whichever_process_it_ended(
    tmp_path: Path, code: int, kills: int, expected: bool
) -> None:
    with supervisor(tmp_path):
        start_job(tmp_path, ["/bin/sh", "-c", f"echo oom_kill {kills} >{tmp_path}/cgroup/memory.events; exit {code}"])
        until(lambda: run_of(tmp_path).get("state") == "exited", "the end of the job")
    assert (run_of(tmp_path)["code"], run_of(tmp_path)["out_of_memory"]) == (code, expected)


@pytest.mark.parametrize(("used", "expected"), [(990, True), (500, False)])
def test_memory_of_a_container_that_was_killed_as_a_whole_tells_why(tmp_path: Path, used: int, expected: bool) -> None:
    with supervisor(tmp_path) as first:
        start_job(tmp_path, ["/bin/sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"])
        until((tmp_path / "pid").exists, "the start of the job")
        (tmp_path / "cgroup" / "memory.current").write_text(str(used))
        until(lambda: run_of(tmp_path).get("memory_bytes") == used, "a reading of the memory")
        first.kill()
        first.wait()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        with supervisor(tmp_path):
            until(lambda: run_of(tmp_path)["state"] == "exited", "the report of the end")
    assert (run_of(tmp_path)["code"], run_of(tmp_path)["out_of_memory"]) == (None, expected)
