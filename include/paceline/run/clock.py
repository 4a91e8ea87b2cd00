"""The clock of the control loop. Tests and the simulator use other clocks."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Provides the current time and a way to wait."""

    def now(self) -> float:
        """Return the seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""


class SystemClock:
    """A clock without jumps: the wall time at construction plus the monotonic time since then."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.monotonic() + self._offset_s

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        time.sleep(seconds)
