"""The devices that a job really gets of the largest allocation."""

from __future__ import annotations

import math

_MIN_WINDOW_S, _WINDOW = 30.0, 0.1  # fraction of the time to the deadline


class AttainedDevices:
    """The mean number of devices in use while the job has the largest allocation, over a tenth of its time.

    It is less than the allocation if other programs on the host use its processors, or if the job waits for its data.
    A shorter time says little: data arrives in bursts, and a neighbour may leave again.

    >>> attained = AttainedDevices()
    >>> for second in range(41):
    ...     attained.add(float(second), 0.25, time_s=300.0)
    >>> round(attained.devices, 3)
    0.25
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again, because the allocation is not the largest one."""
        self.devices: float | None = None  # unknown
        self._mean = 0.0
        self._began_s = self._last_s = math.nan

    def add(self, now_s: float, in_use: float, *, time_s: float) -> None:
        """Add the devices in use until ``now_s``; ``time_s``: seconds from the start to the deadline."""
        window_s = max(_MIN_WINDOW_S, _WINDOW * time_s)
        if math.isnan(self._began_s):
            self._began_s = self._last_s = now_s
        passed_s, self._last_s = now_s - self._last_s, now_s
        seconds = min(now_s - self._began_s, window_s)
        if seconds > 0:
            self._mean += min(passed_s / seconds, 1.0) * (in_use - self._mean)
        if now_s - self._began_s >= window_s:
            self.devices = self._mean

    def skip(self, now_s: float) -> None:
        """Leave out the time until ``now_s``, in which the job does not train, or the engine does not respond."""
        self._began_s += now_s - self._last_s
        self._last_s = now_s
