"""A shared fixture for unit tests of training code that forks processes from a Python process with torch imported."""

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
    """Yield a substitute for ``Popen`` that forks a Python process with torch imported; omit the program's name."""
    path = str(tmp_path_factory.mktemp("forked") / "socket")
    # Use one thread per library, because thread pools do not survive a fork.
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
