"""Durations of control steps. The control loop reports them in its samples and its outcome."""

from __future__ import annotations


class StepTimes:
    """Durations of the control steps, in milliseconds.

    >>> times = StepTimes()
    >>> times.add(0.002), times.add(0.004), times.newest_ms, times.mean_ms, times.max_ms
    (None, None, 4.0, 3.0, 4.0)
    """

    def __init__(self) -> None:
        self.newest_ms: float | None = None
        self.max_ms = 0.0
        self._sum_ms, self._count = 0.0, 0

    def add(self, duration_s: float) -> None:
        """Record the duration of one step."""
        self.newest_ms = 1000 * duration_s
        self.max_ms = max(self.max_ms, self.newest_ms)
        self._sum_ms, self._count = self._sum_ms + self.newest_ms, self._count + 1

    @property
    def mean_ms(self) -> float:
        """Mean duration of all steps so far; 0 before the first step."""
        return self._sum_ms / max(self._count, 1)
