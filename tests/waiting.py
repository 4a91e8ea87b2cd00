"""How tests wait: for an event, with a limit that only a test that fails comes to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LONG_S = 300.0  # for what takes some seconds on a machine that has nothing else to do


def until(true: Callable[[], Any], what: object = "", *, period_s: float = 0.5) -> Any:
    """Wait until ``true`` returns something, and return it; ``what`` is printed if it never does.

    It is asked often in the beginning, then every ``period_s`` seconds.
    """
    began_s = time.monotonic()
    while not (found := true()):
        waited_s = time.monotonic() - began_s
        assert waited_s < LONG_S, f"not within {LONG_S:g} s: {what}"
        time.sleep(min(0.02 + waited_s / 10, period_s))
    return found
