"""Wait for a condition in a test, with a timeout that only a failing test reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LONG_S = 300.0  # timeout for operations that take seconds on an idle machine


def until(condition: Callable[[], Any], description: object = "", *, period_s: float = 0.5) -> Any:
    """Wait until ``condition`` returns a true value, and return that value.

    The error at a timeout contains ``description``. The polling interval grows to ``period_s`` seconds.
    """
    began_s = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - began_s
        assert waited_s < LONG_S, f"not within {LONG_S:g} s: {description}"
        time.sleep(min(0.02 + waited_s / 10, period_s))
    return found
