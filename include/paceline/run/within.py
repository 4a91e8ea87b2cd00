"""Limits the time of a call, because a process that has to end cannot wait for a call that may hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """A call in a thread of its own, whose result is ``default`` if it raises or takes too long.

    >>> Pending(lambda: 1 / 2, default=0.0).result(5.0), Pending(lambda: 1 / 0, default=0.0).result(5.0)
    (0.5, 0.0)
    """

    def __init__(self, call: Callable[[], T], default: T) -> None:
        self._call, self._default = call, default
        self._results: list[T] = []
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="paceline-within", daemon=True)
        self._thread.start()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self._began_s

    def result(self, limit_s: float) -> T:
        """Return the result; wait for it until ``limit_s`` seconds after the call began."""
        self._thread.join(max(0.0, limit_s - self.elapsed_s))
        return self._results[0] if self._results else self._default

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except Exception:
            self._results.append(self._default)


def within(limit_s: float, call: Callable[[], T], default: T) -> T:
    """Return the result of ``call``, or ``default`` if it raises or takes longer than ``limit_s`` seconds.

    >>> within(5.0, lambda: 1 / 2, default=0.0), within(5.0, lambda: 1 / 0, default=0.0)
    (0.5, 0.0)
    """
    return Pending(call, default).result(limit_s)
