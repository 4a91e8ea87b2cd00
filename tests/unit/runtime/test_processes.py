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
