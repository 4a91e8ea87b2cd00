"""Shared fixture of the unit tests of training code: a Python with torch imported, to fork processes from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.unit import forked


@pytest.fixture(scope="session")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., forked.Forked]]:
    """Start a process with torch imported; takes the arguments of ``subprocess.Popen``, without the program."""
    path = str(tmp_path_factory.mktemp("forked") / "socket")
    # One thread each: the threads of a pool do not survive a fork.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, forked.__file__, path],
        env={**os.environ, **threads},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield partial(forked.Forked, path)
        server.communicate()
