"""The setpoint: the progress that a job should have now. The controllers compute it at every step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ramp:
    """A setpoint that grows linearly with time, equation (3) of DECOR-NN.

    ``Ramp(end_s=alpha * deadline_s)`` is the paper's setpoint: 0 % at time 0, 100 % at the desired response time.
    A new deadline starts a new ramp at the current progress: the error stays zero, only the slope changes.

    Parameters
    ----------
    end_s:
        Time at which the setpoint reaches 100 %, in seconds.
    start_s, start_pct:
        Time in seconds and setpoint in percent at the start of the ramp.

    Examples
    --------
    >>> Ramp(end_s=200).at(50)
    25.0
    >>> replanned = Ramp(end_s=200).replan(now_s=60, progress_pct=30.0, end_s=160)
    >>> replanned.at(60), replanned.at(110)
    (30.0, 65.0)
    """

    end_s: float
    start_s: float = 0.0
    start_pct: float = 0.0

    @property
    def rate_pct_per_s(self) -> float:
        """Slope in percent per second; infinite if no time remains."""
        left_s = self.end_s - self.start_s
        return (100.0 - self.start_pct) / left_s if left_s > 0 else float("inf")

    def at(self, now_s: float) -> float:
        """Return the setpoint in percent. It exceeds 100 % after the end, so that the error of a late job grows."""
        if now_s <= self.start_s:
            return self.start_pct
        if self.end_s <= self.start_s:
            return 100.0 + (now_s - self.end_s)
        return self.start_pct + self.rate_pct_per_s * (now_s - self.start_s)

    def replan(self, now_s: float, progress_pct: float, end_s: float) -> Ramp:
        """Return a new ramp from the current progress to 100 % at ``end_s``."""
        return Ramp(end_s=end_s, start_s=now_s, start_pct=min(progress_pct, 100.0))
