"""Processes are identified even if a pid is reused, and zombies count as ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace

import psutil
import pytest

from paceline.runtime.processes import Identity, descendants, find_by_environment, identify, kill_by_environment

WAITS = "import sys; sys.stdin.read()"
# A subreaper whose child forks and exits in a loop, each time in a new session; the loop ends if the test fails.
FORKS_IN_A_LOOP = """
import ctypes, os
from paceline.runtime.processes import kill_descendants

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
if not os.fork():
    for _ in range(20_000):
        if os.fork():
            os._exit(0)
        os.setsid()
    os._exit(0)
os.wait()  # the loop has begun
kill_descendants()
try:
    print("left:", os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("none left")
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, env={"OF_JOB": f"{os.getpid()}"})
    yield process
    process.kill()
    process.communicate()


def test_zombie_is_not_alive(child):
    identity = identify(child.pid)
    assert identity.is_alive()
    assert identity in map(identify, [one.pid for one in descendants()])
    assert not identity.wait(0.0) or identity.is_alive(), "a timeout of 0 does not wait"
    child.stdin.close()
    identity.wait(60)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not identity.is_alive()
    assert not identity.wait(60), "the process ended before the call"
    assert child.pid not in [one.pid for one in descendants()]


def test_reused_pid_is_another_process(child):
    identity = identify(child.pid)
    assert not replace(identity, born_s=identity.born_s - 1.0).is_alive()
    assert Identity.read(asdict(identity)) == identity


@pytest.mark.parametrize("stored", [None, {}, {"pid": 1}, {"pid": "one", "born_s": 2.0}, [1, 2], "1"])
def test_invalid_identities_are_read_as_none(stored):
    assert Identity.read(stored) is None


def test_kill_by_environment_kills_only_processes_of_one_job(child):
    other = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, env={"OF_JOB": "another"})
    try:
        assert [one.pid for one in find_by_environment("OF_JOB", str(os.getpid()))] == [child.pid]
        assert kill_by_environment("OF_JOB", str(os.getpid()))
        assert child.wait(60) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


def test_process_that_forks_and_exits_in_a_loop_is_killed():
    done = subprocess.run([sys.executable, "-c", FORKS_IN_A_LOOP], capture_output=True, text=True, timeout=60)
    assert done.stdout == "none left\n", done.stderr
