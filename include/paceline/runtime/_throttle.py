"""Computes when to stop and continue a group of processes so that its CPU time matches its allocation.

The caller, ``SignalEnforcer``, passes the clock readings and sends the signals.
"""

from __future__ import annotations

_RATE_WEIGHT = 0.3  # weight of the newest observation in the moving average of the running group's CPU usage
_DEBT_S = 1.0  # the longest stop after the tokens became negative: a longer stop would look like a hang


class DutyCycle:
    """A token bucket of CPU seconds: the allocation fills it, the CPU time of the group empties it.

    The group runs while there are tokens. At zero tokens, it stops until there are enough tokens for the next run.
    After a late update, the number of tokens may be negative; a longer stop then compensates for this, so the long-run
    usage is exact. Unused tokens beyond one period are lost, as with the kernel's CFS quota.

    Parameters
    ----------
    devices:
        The allocation, in cores.
    period_s:
        Length of one run-and-stop cycle, in seconds. Shorter cycles are smoother but cost more CPU time.
    min_s:
        Minimum length of a run or a stop, in seconds.

    Examples
    --------
    A busy thread with an allocation of half a core runs for 50 ms of every 100 ms.

    >>> cycle = DutyCycle(devices=0.5, period_s=0.1)
    >>> cycle.update(now_s=0.0, used_s=0.0)     # seconds until the next update is due
    0.05
    >>> round(cycle.update(now_s=0.05, used_s=0.05), 3), cycle.stopped
    (0.05, True)
    >>> round(cycle.update(now_s=0.10, used_s=0.05), 3), cycle.stopped
    (0.05, False)
    """

    def __init__(self, devices: float, period_s: float = 0.1, min_s: float = 0.002) -> None:
        self.devices = devices
        self.stopped = False
        self._period_s = period_s
        self._min_s = min_s
        self._rate = 1.0  # cores in use while the group runs
        self._tokens: float | None = None
        self._now_s = 0.0
        self._used_s = 0.0

    def update(self, now_s: float, used_s: float) -> float:
        """Account for the total CPU time ``used_s`` and set ``stopped``; return the seconds until the next call."""
        if self._tokens is None:
            self._tokens = self._run_tokens()
        else:
            elapsed_s, used = now_s - self._now_s, max(0.0, used_s - self._used_s)
            balance = self._tokens + self.devices * elapsed_s - used
            self._tokens = min(max(balance, -self.devices * _DEBT_S), self._bucket_size())
            if not self.stopped and elapsed_s >= self._min_s:
                self._rate += _RATE_WEIGHT * (max(used / elapsed_s, 0.05) - self._rate)
        self._now_s, self._used_s = now_s, max(used_s, self._used_s)
        if self.stopped and self._tokens >= self._run_tokens() - 1e-9:
            self.stopped = False
        elif not self.stopped and self._tokens <= 1e-9:
            self.stopped = True
        return self._seconds_until_update()

    def _run_tokens(self) -> float:
        """Return the number of tokens at which a stop ends, so that a run and a stop together last one period."""
        surplus = max(0.0, 1.0 - self.devices / self._rate)
        return self.devices * max(self._period_s * surplus, self._min_s)

    def _bucket_size(self) -> float:
        return max(self.devices * self._period_s, self._run_tokens())

    def _seconds_until_update(self) -> float:
        assert self._tokens is not None
        if self.stopped:
            return max(self._min_s, (self._run_tokens() - self._tokens) / self.devices)
        # A sleeping group may become busy at any time, so update at least once per period.
        net_rate = self._rate - self.devices
        until_empty = self._tokens / net_rate if net_rate > 0 else self._period_s
        return min(max(until_empty, self._min_s), self._period_s)
