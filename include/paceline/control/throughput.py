"""How fast a job goes, learned while it runs. The deadline controller tunes itself and forecasts with it."""

from __future__ import annotations

from collections import deque


class Throughput:
    """Progress for each second and for each device-second, over a sliding window.

    Parameters
    ----------
    window_s:
        Length of the window in seconds. Long enough to smooth single batches, short enough to follow a neighbour
        that comes or goes.

    Examples
    --------
    >>> speed = Throughput(window_s=10)
    >>> for second in range(5):
    ...     speed.observe(now_s=second, progress_pct=3 * second, devices=1.5)
    >>> speed.pct_per_s, speed.pct_per_device_s
    (3.0, 2.0)
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._device_s = 0.0
        self._last_s: float | None = None
        self._points: deque[tuple[float, float, float]] = deque()  # time, progress, device-seconds so far
        self._prior: tuple[float, float] | None = None

    def observe(self, now_s: float, progress_pct: float, devices: float) -> None:
        """Take in one reading; ``devices`` is what the job has held since the reading before."""
        if self._last_s is not None:
            self._device_s += devices * max(now_s - self._last_s, 0.0)
        self._last_s = now_s
        self._points.append((now_s, progress_pct, self._device_s))
        while len(self._points) > 2 and now_s - self._points[1][0] >= self.window_s:
            self._points.popleft()

    def remember(self, pct_per_s: float, pct_per_device_s: float) -> None:
        """Start from figures known from before, until the window has its own."""
        self._prior = (pct_per_s, pct_per_device_s)

    def forget(self) -> None:
        """Drop the window, for instance after a gap in which nothing was seen; keep the figures as a start."""
        if self.pct_per_s and self.pct_per_device_s:
            self._prior = (self.pct_per_s, self.pct_per_device_s)
        self._points.clear()
        self._last_s = None

    @property
    def observed_s(self) -> float:
        """How much time the window covers."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0

    @property
    def pct_per_s(self) -> float | None:
        """Percent a second; ``None`` while nothing has moved yet."""
        return self._slope(0) or (self._prior[0] if self._prior else None)

    @property
    def pct_per_device_s(self) -> float | None:
        """Percent for each device-second; ``None`` while nothing has moved yet."""
        return self._slope(2) or (self._prior[1] if self._prior else None)

    def _slope(self, against: int) -> float | None:
        if len(self._points) < 2:
            return None
        first, last = self._points[0], self._points[-1]
        run = last[against] - first[against]
        rise = last[1] - first[1]
        return rise / run if run > 0 and rise > 0 else None
