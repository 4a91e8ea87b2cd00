"""The controller of a job without a deadline: it allocates the maximum and forecasts the end."""

from __future__ import annotations

import math

from paceline.control._deadline import DeadlineController
from paceline.control._limits import Limits
from paceline.control._past import PastRun
from paceline.control._tail import TailModel


class BudgetController(DeadlineController):
    """Allocates ``max_devices`` to the job, within the ceiling. ``deadline_s`` is infinite.

    After ``move_deadline``, it meets the new deadline like a :class:`DeadlineController`.

    Parameters
    ----------
    limits:
        ``max_devices`` is the budget.
    period_s:
        Control period in seconds.
    past, tail:
        As for :class:`DeadlineController`.

    Examples
    --------
    >>> from paceline.control import Observation
    >>> controller = BudgetController(Limits(0.1, 4.0))
    >>> controller.start(now_s=0.0)
    4.0
    >>> for second in range(10):
    ...     decision = controller.step(Observation(second, 10 * second, 200, done_s=second, allocated_devices=4.0))
    >>> decision.devices, decision.feasible, round(decision.finish_s)
    (4.0, True, 21)
    """

    def __init__(
        self, limits: Limits, *, period_s: float = 1.0, past: PastRun | None = None, tail: TailModel | None = None
    ) -> None:
        super().__init__(limits, math.inf, period_s=period_s, past=past, tail=tail, start_devices=limits.max_devices)

    def _plan(self, left: float, left_s: float, allocation: float, in_use: float, ceiling: float | None) -> float:
        """Return the maximum; with a deadline, return the smallest allocation that meets the deadline."""
        if math.isfinite(self.deadline_s):
            return super()._plan(left, left_s, allocation, in_use, ceiling)
        return self.limits.quantize(self.limits.max_devices, ceiling)
