"""What a user wants of one training: the operator's arguments, read once, when its templates have been rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.contract import DEADLINE, Deadline, StoredDeadline
from paceline.control import CPU_QUANTUM, BudgetController, Controller, Gains, Limits, PastRun, make_controller
from paceline.errors import InvalidInputError
from paceline.run.live import LiveState

_SOONEST_S = 1e-3  # what comes after its deadline still has work to end


@dataclass(frozen=True)
class Settings:
    """How a training is to be steered.

    Parameters
    ----------
    deadline:
        ``Deadline()`` for none: it is done as soon as its devices allow.
    written:
        The deadline as the user wrote it.
    alpha:
        Safety factor: the target end is this fraction of the time from the start to the deadline.
    min_devices, max_devices, quantum:
        Fewest and most devices, ``None`` for all there are, and the step between allocations.
    period_s:
        Seconds between control steps.
    on_infeasible:
        ``"best_effort"``, ``"fail"`` or ``"extend"``.
    controller, gains:
        Which controller, and the ``"paper"`` one's gains.
    shared:
        Whether an arbiter has its devices.
    most_is:
        What the user calls ``max_devices``, for messages.
    """

    deadline: Deadline
    written: str | float | None = None
    alpha: float = 1.0
    min_devices: float = 0.1
    max_devices: float | None = None
    quantum: float = CPU_QUANTUM
    period_s: float = 1.0
    on_infeasible: str = "best_effort"
    controller: str = "default"
    gains: Gains | None = None
    shared: bool = False
    most_is: str = "max_devices"

    def limits(self, capacity: float, log: Any) -> Limits:
        """Fewest and most devices, on a machine that has ``capacity`` of them."""
        most = self.max_devices
        if most is not None and most > capacity:
            log.warning("%s: %g asked for, the machine has %g: using these", self.most_is, most, capacity)
        # A job with nothing at all would neither end nor show how fast it is.
        least = max(self.min_devices, self.quantum)
        if most is None and least > capacity:
            raise InvalidInputError("min_devices", least, f"at most the {capacity:g} cores of the machine")
        return Limits(least, capacity if most is None else max(min(most, capacity), least), self.quantum)

    def make_controller(self, limits: Limits, deadline_s: float, past: PastRun | None) -> Controller:
        """Who decides how many devices the job gets."""
        if self.deadline == Deadline():
            return BudgetController(limits, period_s=self.period_s, past=past)
        return make_controller(
            self.controller,
            limits,
            max(deadline_s, _SOONEST_S),
            alpha=self.alpha,
            period_s=self.period_s,
            past=past,
            gains=self.gains,
        )

    def deadline_in_force(self, store: LiveState, log: Any) -> Deadline:
        """What somebody has set in ``store`` already, else what the DAG says, which is written there now."""
        said = StoredDeadline.read(store.get(DEADLINE))
        if said.value is not None:
            try:
                return said.parse()
            except InvalidInputError as error:
                log.warning("The deadline in the task state store is not taken. %s", error)
        store.set(DEADLINE, StoredDeadline(self.written).to_json())
        return self.deadline
