"""Identity and end of processes, also of zombies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace

import psutil
import pytest

from paceline.runtime.processes import Identity, carrying, family, identify, kill_carrying

WAITS = "import sys; sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, env={"OF_JOB": f"{os.getpid()}"})
    yield process
    process.kill()
    process.communicate()


def test_a_zombie_is_not_alive(child):
    who = identify(child.pid)
    assert who.alive()
    assert who in map(identify, [one.pid for one in family(frozenset())])
    assert not who.wait(0.0) or who.alive(), "a timeout of 0 does not wait"
    child.stdin.close()
    who.wait(60)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not who.alive()
    assert not who.wait(60), "it ended before the call"
    assert child.pid not in [one.pid for one in family(frozenset())]


def test_a_reused_pid_is_another_process(child):
    who = identify(child.pid)
    assert not replace(who, born_s=who.born_s - 1.0).alive()
    assert Identity.read(asdict(who)) == who


@pytest.mark.parametrize("stored", [None, {}, {"pid": 1}, {"pid": "one", "born_s": 2.0}, [1, 2], "1"])
def test_invalid_identities_are_none(stored):
    assert Identity.read(stored) is None


def test_kill_carrying_kills_the_processes_of_one_job(child):
    other = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, env={"OF_JOB": "another"})
    try:
        assert [one.pid for one in carrying("OF_JOB", str(os.getpid()))] == [child.pid]
        assert kill_carrying("OF_JOB", str(os.getpid()))
        assert child.wait(60) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()
