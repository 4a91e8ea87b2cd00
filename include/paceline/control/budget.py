"""The controller of a job that is to end as soon as it can: it gives it all there is, and says when that will be."""

from __future__ import annotations

from dataclasses import replace

from paceline.control.controller import Decision
from paceline.control.deadline import DeadlineController
from paceline.control.limits import Limits
from paceline.control.past import PastRun

NO_DEADLINE_S = 365 * 86400.0


class BudgetController(DeadlineController):
    """Holds the whole budget from the beginning to the end, within the ceiling; keeps a deadline if it is given one.

    Parameters
    ----------
    limits:
        Its ``max_devices`` are the budget.
    period_s:
        Seconds between two steps.
    past:
        An earlier run of the same job.

    Examples
    --------
    >>> controller = BudgetController(Limits(0.1, 4.0))
    >>> controller.start(now_s=0.0)
    4.0
    >>> for second in range(10):
    ...     decision = controller.step(second, done=10 * second, total=200, done_s=second, held_devices=4.0)
    >>> decision.devices, decision.feasible, round(decision.finish_s)
    (4.0, True, 21)
    """

    def __init__(self, limits: Limits, *, period_s: float = 1.0, past: PastRun | None = None) -> None:
        super().__init__(limits, NO_DEADLINE_S, period_s=period_s, past=past, start_devices=limits.max_devices)

    def step(
        self,
        now_s: float,
        done: int | None,
        total: int,
        *,
        done_s: float = 0.0,
        held_devices: float,
        pending: bool = False,
        ceiling: float | None = None,
        resting: bool = False,
        pauses_left_s: float = 0.0,
        busy: float | None = None,
    ) -> Decision:
        """One control step, see :class:`~paceline.control.Controller`."""
        learned = super().step(
            now_s,
            done,
            total,
            done_s=done_s,
            held_devices=held_devices,
            pending=pending,
            ceiling=ceiling,
            resting=resting,
            pauses_left_s=pauses_left_s,
            busy=busy,
        )
        if self.deadline_s < NO_DEADLINE_S:
            return learned
        devices = self.limits.quantize(self.limits.max_devices, ceiling)
        return replace(learned, devices=devices, setpoint_pct=learned.progress_pct, feasible=True)
