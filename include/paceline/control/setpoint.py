"""The setpoint: where a job should be by now. The deadline controller asks it at every step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ramp:
    """A straight line of ideal progress, equation (3) of DECOR-NN.

    ``Ramp(end_s=alpha * deadline_s)`` is the paper's setpoint: 0 % at time 0, 100 % at the desired response time.
    A deadline that moves on the way starts a new line from where the job is, so that the error stays what it
    was (none) and only the slope changes.

    Parameters
    ----------
    end_s:
        When progress should reach 100 %, in seconds on the clock that ``at`` is asked with.
    start_s, start_pct:
        Where the line begins.

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
        """Slope in percent a second; infinite when there is no time left."""
        left_s = self.end_s - self.start_s
        return (100.0 - self.start_pct) / left_s if left_s > 0 else float("inf")

    def at(self, now_s: float) -> float:
        """Ideal progress in percent. Goes on beyond 100 % after the end, so that a late job is pushed harder."""
        if now_s <= self.start_s:
            return self.start_pct
        if self.end_s <= self.start_s:
            return 100.0 + (now_s - self.end_s)
        return self.start_pct + self.rate_pct_per_s * (now_s - self.start_s)

    def replan(self, now_s: float, progress_pct: float, end_s: float) -> Ramp:
        """A new line from where the job is now to 100 % at ``end_s``."""
        return Ramp(end_s=end_s, start_s=now_s, start_pct=min(progress_pct, 100.0))
