"""The clock of the control loop. Tests and the simulator substitute their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that returns the time and waits."""

    def now(self) -> float:
        """Return the seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""


class SystemClock:
    """This machine's clock without jumps: wall time at construction, then monotonic."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.monotonic() + self._offset_s

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        time.sleep(seconds)
