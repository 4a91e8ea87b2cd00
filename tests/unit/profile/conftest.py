"""One thread for linear algebra: on matrices as small as those of a profile, several wait more than they compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scipy.linalg  # noqa: F401  # has threads of its own, beside numpy's
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield
