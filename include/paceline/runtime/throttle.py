"""When to stop and when to continue a group of processes so that it gets its share of the CPU, no more and no less.

Pure arithmetic on clocks that come in from outside; the process launcher calls it and sends the signals.
"""

from __future__ import annotations

_RATE_WEIGHT = 0.3  # of the newest observation in the estimate of how fast the group burns CPU when it may
_DEBT_S = 1.0  # the longest stop that pays back an overdraft: a job must not seem dead


class DutyCycle:
    """A token bucket of CPU seconds: filled at the rate of the share, emptied by what the group really used.

    The group runs while there are tokens and is stopped when there are none, until there are enough for the next
    stretch. What it overdraws, because a look comes late, is paid back by a longer stop, so the long-run share is
    exact. Unused tokens beyond one period are lost, as with the kernel's CFS quota.

    Parameters
    ----------
    devices:
        The share, in cores.
    period_s:
        Length of one run-and-stop cycle. Short is smooth, long is cheap.

    Examples
    --------
    One thread that would use a whole core gets half of one: it runs 50 ms of every 100.

    >>> cycle = DutyCycle(devices=0.5, period_s=0.1)
    >>> cycle.update(now_s=0.0, used_s=0.0)     # seconds to the next look
    0.05
    >>> round(cycle.update(now_s=0.05, used_s=0.05), 3), cycle.stopped
    (0.05, True)
    >>> round(cycle.update(now_s=0.10, used_s=0.05), 3), cycle.stopped
    (0.05, False)
    """

    def __init__(self, devices: float, period_s: float = 0.1, least_s: float = 0.002) -> None:
        self.devices = devices
        self.stopped = False
        self._period_s = period_s
        self._least_s = least_s
        self._rate = 1.0  # cores that the group uses while it runs
        self._tokens: float | None = None
        self._now_s = 0.0
        self._used_s = 0.0

    def update(self, now_s: float, used_s: float) -> float:
        """Take the clock and the CPU time used so far; set ``stopped``; return the time to the next call."""
        if self._tokens is None:
            self._tokens = self._stretch()
        else:
            passed, used = now_s - self._now_s, max(0.0, used_s - self._used_s)
            balance = self._tokens + self.devices * passed - used
            self._tokens = min(max(balance, -self.devices * _DEBT_S), self._bucket())
            if not self.stopped and passed >= self._least_s:
                self._rate += _RATE_WEIGHT * (max(used / passed, 0.05) - self._rate)
        self._now_s, self._used_s = now_s, max(used_s, self._used_s)
        if self.stopped and self._tokens >= self._stretch() - 1e-9:
            self.stopped = False
        elif not self.stopped and self._tokens <= 1e-9:
            self.stopped = True
        return self._until_next()

    def _stretch(self) -> float:
        """Tokens to begin a run with, so that run and stop together last one period."""
        surplus = max(0.0, 1.0 - self.devices / self._rate)
        return self.devices * max(self._period_s * surplus, self._least_s)

    def _bucket(self) -> float:
        return max(self.devices * self._period_s, self._stretch())

    def _until_next(self) -> float:
        assert self._tokens is not None
        if self.stopped:
            return max(self._least_s, (self._stretch() - self._tokens) / self.devices)
        # A group that sleeps may wake and burn at full rate at once: look at least once a period.
        burn = self._rate - self.devices
        until_empty = self._tokens / burn if burn > 0 else self._period_s
        return min(max(until_empty, self._least_s), self._period_s)
