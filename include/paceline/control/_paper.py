"""The controller of DECOR-NN as published, for comparisons: fixed gains on the error relative to a ramp from 0 %.

No clock, no I/O: times are in seconds since the origin of the deadline.
"""

from __future__ import annotations

import math
from typing import Any

from paceline.control._controller import Decision, Observation, check_target
from paceline.control._limits import Limits
from paceline.control._pi import Gains, PIController
from paceline.control._setpoint import Ramp
from paceline.control._stored import stored_number

# The best gains of a grid search on simulated jobs: `python -m benchmarks.gains`.
PAPER_GAINS = Gains(gain=0.1, integral_weight=0.05)
_SPEED_WINDOW_S = 20.0


class PaperController:
    """Implements equations (1) to (5) of DECOR-NN without additions, see :class:`~paceline.control.PIController`.

    The setpoint runs from 0 % at time 0 to 100 % at ``alpha * deadline_s``. A new deadline starts a new ramp from the
    same origin, so the error jumps. The forecast is not part of the paper and does not influence the allocation.

    Parameters
    ----------
    limits, deadline_s, alpha, period_s:
        As for :class:`~paceline.control.DeadlineController`.
    gains:
        ``K`` and ``eta``.

    Examples
    --------
    >>> controller = PaperController(Limits(0.1, 4.0), deadline_s=80, gains=Gains(gain=0.5, integral_weight=0.1))
    >>> controller.step(Observation(8.0, done=6, total=100, allocated_devices=1.0)).devices  # 4 % behind
    2.0
    """

    def __init__(
        self,
        limits: Limits,
        deadline_s: float,
        *,
        alpha: float = 1.0,
        period_s: float = 1.0,
        gains: Gains = PAPER_GAINS,
    ) -> None:
        check_target(deadline_s, alpha, period_s)
        self.limits = limits
        self.alpha = alpha
        self.period_s = period_s
        self.deadline_s = deadline_s
        self.began_s = 0.0  # independent of when the job starts: the setpoint starts at time 0
        self._pi = PIController(limits, gains)
        self._history: list[tuple[float, float]] = []

    def set_start(self, now_s: float) -> None:
        """Do nothing: the setpoint always starts at time 0."""

    def start(self, now_s: float) -> float:
        """Return the minimum: the error is zero at time 0."""
        return self.limits.quantize(self.limits.min_devices)

    def step(self, obs: Observation) -> Decision:
        """Run one control step, see :class:`~paceline.control.Controller`."""
        done, now_s = obs.done, obs.now_s
        progress_pct = 100.0 * (done or 0) / obs.total
        devices = self._pi.step(self._ramp.at(now_s), progress_pct, pending=obs.pending, ceiling=obs.ceiling)
        if done is not None and done >= obs.total:  # keep one device for saving, as in the default controller
            devices = self.limits.quantize(max(1.0, self.limits.min_devices), obs.ceiling)
        finish_s = self._finish_s(now_s, progress_pct) if done is not None else None
        on_time = now_s <= self.deadline_s
        return Decision(devices, self.setpoint_pct(now_s), progress_pct, finish_s, None, on_time, self.period_s)

    def setpoint_pct(self, now_s: float) -> float:
        """Return the setpoint in percent, at most 100."""
        return min(self._ramp.at(now_s), 100.0)

    @property
    def _ramp(self) -> Ramp:
        return Ramp(end_s=self.alpha * self.deadline_s)

    def move_deadline(self, now_s: float, deadline_s: float) -> None:
        """Set a new deadline."""
        self.deadline_s = deadline_s

    def interrupt(self, now_s: float) -> None:
        """Discard the measured speed. The error relative to the ramp does not change."""
        self._history.clear()

    def learned(self) -> None:
        """Return ``None``: this controller has no speed model."""

    def _finish_s(self, now_s: float, progress_pct: float) -> float | None:
        self._history.append((now_s, progress_pct))
        while now_s - self._history[0][0] > _SPEED_WINDOW_S:
            self._history.pop(0)
        from_s, from_pct = self._history[0]
        speed = (progress_pct - from_pct) / (now_s - from_s) if now_s > from_s else 0.0
        return now_s + (100.0 - progress_pct) / speed if speed > 0 and math.isfinite(speed) else None

    def state(self) -> dict[str, Any]:
        """Return the JSON-safe state for ``restore``, for a bumpless transfer to another process."""
        return {"deadline_s": self.deadline_s, "pi": self._pi.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the result of ``state``."""
        self.deadline_s = stored_number(state["deadline_s"])
        self._pi.restore(state["pi"])
