"""The settings of one training: the operator's arguments, read once after its templates are rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.contract import DEADLINE, Deadline, StoredDeadline
from paceline.control import CPU_QUANTUM, BudgetController, Controller, Gains, Limits, PastRun, make_controller
from paceline.errors import InvalidInputError
from paceline.run.live import LiveState

_MIN_DEADLINE_S = 1e-3  # the controller needs a positive deadline, also if it has passed before the start


@dataclass(frozen=True)
class Settings:
    """The settings that control a training.

    Parameters
    ----------
    deadline:
        ``Deadline()`` for none: the training ends as soon as its devices allow.
    written:
        The deadline as the user wrote it.
    alpha:
        Safety factor: the target end is this fraction of the time from the start to the deadline.
    min_devices, max_devices, quantum:
        Smallest and largest allocation, ``None`` for all devices of the machine, and the step between allocations.
    period_s:
        Seconds between control steps.
    on_infeasible:
        ``"best_effort"``, ``"fail"`` or ``"extend"``.
    controller, gains:
        The controller, and the gains of the ``"paper"`` controller.
    shared:
        Whether an arbiter allocates the devices.
    max_devices_field:
        The user's name of ``max_devices``, for messages.
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
    max_devices_field: str = "max_devices"

    def limits(self, capacity: float, log: Any) -> Limits:
        """Return the limits of the allocation on a machine with ``capacity`` devices."""
        most = self.max_devices
        if most is not None and most > capacity:
            log.warning("%s: got %g, using all %g of the machine", self.max_devices_field, most, capacity)
        # Without any devices, a job would neither end nor show its speed.
        least = max(self.min_devices, self.quantum)
        if most is None and least > capacity:
            raise InvalidInputError("min_devices", least, f"at most the {capacity:g} cores of the machine")
        return Limits(least, capacity if most is None else max(min(most, capacity), least), self.quantum)

    def make_controller(self, limits: Limits, deadline_s: float, past: PastRun | None) -> Controller:
        """Return the controller that decides on the allocation."""
        if self.deadline == Deadline():
            return BudgetController(limits, period_s=self.period_s, past=past)
        return make_controller(
            self.controller,
            limits,
            max(deadline_s, _MIN_DEADLINE_S),
            alpha=self.alpha,
            period_s=self.period_s,
            past=past,
            gains=self.gains,
        )

    def deadline_in_force(self, store: LiveState, log: Any) -> Deadline:
        """Return a user's deadline from ``store``; without a valid one, return the DAG's deadline and store it."""
        stored = StoredDeadline.read(store.get(DEADLINE))
        if stored.value is not None:
            try:
                return stored.parse()
            except InvalidInputError as error:
                log.warning("The deadline in the task state store is rejected. %s", error)
        store.set(DEADLINE, StoredDeadline(self.written).to_json())
        return self.deadline
