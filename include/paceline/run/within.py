"""Limits the time of a call, because a process that has to end cannot wait for a call that may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(limit_s: float, call: Callable[[], T], default: T) -> T:
    """Return the result of ``call``, or ``default`` if it raises or takes longer than ``limit_s`` seconds.

    >>> within(5.0, lambda: 1 / 2, default=0.0), within(5.0, lambda: 1 / 0, default=0.0)
    (0.5, 0.0)
    """
    results: list[T] = []

    def run_call() -> None:
        try:
            results.append(call())
        except Exception:
            results.append(default)

    thread = threading.Thread(target=run_call, name="paceline-within", daemon=True)
    thread.start()
    thread.join(limit_s)
    return results[0] if results else default
