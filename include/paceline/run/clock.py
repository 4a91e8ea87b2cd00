"""The clock of the control loop. Tests and the simulator use other clocks.

A wall clock may be set at any time. So the control loop, and the later processes of its task on the same machine, count
durations in the time since the machine's boot.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

from paceline.contract import CLOCK, StoredClock
from paceline.run._live import LiveState

_MAX_ELAPSED_S = 10 * 365 * 86_400.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Provides the current time and a way to wait."""

    def now(self) -> float:
        """Return the seconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""


class SystemClock:
    """A clock without jumps: the wall time at construction plus the time since then, including suspensions.

    Parameters
    ----------
    wall_s:
        The wall time now. Default: that of this machine.
    """

    def __init__(self, wall_s: float | None = None) -> None:
        self._offset_s = (time.time() if wall_s is None else wall_s) - seconds_since_boot()

    def copy(self) -> SystemClock:
        """Return another clock with the same time."""
        return SystemClock(self.now())

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return seconds_since_boot() + self._offset_s

    def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        time.sleep(seconds)

    def keep(self, store: LiveState, origin: datetime) -> None:
        """Continue the clock of the process that first counted from ``origin``, if it ran since this machine's boot.

        Otherwise, store this clock for the later processes.
        """
        boot_id = ""
        with suppress(OSError):
            boot_id = _BOOT_ID.read_text().strip()
        stored = StoredClock.read(store.get(CLOCK))
        if stored is not None and boot_id and (stored.boot_id, stored.origin) == (boot_id, origin):
            elapsed_s = seconds_since_boot() + stored.offset_s - origin.timestamp()
            if abs(elapsed_s) <= _MAX_ELAPSED_S:  # else a user has written it
                self._offset_s = stored.offset_s
        else:
            store.set(CLOCK, StoredClock(boot_id=boot_id, origin=origin, offset_s=self._offset_s).to_json())


def seconds_since_boot() -> float:
    """Return the seconds since this machine's boot, including suspensions. They do not change if the clock is set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
