"""The settings of one training job: the operator's arguments, read once after the templates are rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.contract import DEADLINE, Deadline, StoredDeadline
from paceline.control import CPU_QUANTUM, BudgetController, Controller, Gains, Limits, PastRun, make_controller
from paceline.errors import InvalidInputError
from paceline.run._live import LiveState

_MIN_DEADLINE_S = 1e-3  # the controller needs a positive deadline, even if the deadline passed before the start


@dataclass(frozen=True)
class Settings:
    """The control settings of a training job.

    Parameters
    ----------
    deadline:
        ``Deadline()`` for no deadline: training ends as soon as the devices allow.
    written:
        The deadline as the user wrote it.
    alpha:
        Safety factor: the target end is this fraction of the time from the start to the deadline.
    min_devices, max_devices, quantum:
        Smallest allocation, largest allocation (``None`` for all devices of the machine), and smallest change.
    cores_per_device:
        Cores of CPU time that come with each device.
    period_s:
        Seconds between control steps.
    on_infeasible:
        ``"best_effort"``, ``"fail"`` or ``"extend"``.
    controller, gains:
        Name of the controller, and the gains of the ``"paper"`` controller.
    shared:
        Whether an arbiter allocates the devices.
    max_devices_field:
        The name of ``max_devices`` in messages to the user.
    """

    deadline: Deadline
    written: str | float | None = None
    alpha: float = 1.0
    min_devices: float = 0.1
    max_devices: float | None = None
    quantum: float = CPU_QUANTUM
    cores_per_device: float = 1.0
    period_s: float = 1.0
    on_infeasible: str = "best_effort"
    controller: str = "default"
    gains: Gains | None = None
    shared: bool = False
    max_devices_field: str = "max_devices"

    def limits(self, capacity: float, log: Any) -> Limits:
        """Return the limits of the allocation on a machine with ``capacity`` cores."""
        largest, capacity = self.max_devices, capacity / self.cores_per_device
        if largest is not None and largest > capacity:
            log.warning("%s: got %g, using all %g devices of the machine", self.max_devices_field, largest, capacity)
        # Without any devices, a job would never end, and its speed would stay unknown.
        smallest = max(self.min_devices, self.quantum)
        if largest is None and smallest > capacity:
            raise InvalidInputError("min_devices", smallest, f"at most the {capacity:g} cores of the machine")
        return Limits(smallest, capacity if largest is None else max(min(largest, capacity), smallest), self.quantum)

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
        """Return the user's deadline from ``store``; if it is not valid, store and return the DAG's deadline."""
        stored = StoredDeadline.read(store.get(DEADLINE))
        if stored.value is not None:
            try:
                return stored.parse()
            except InvalidInputError as error:
                log.warning("The deadline in the task state store was rejected. %s", error)
        store.set(DEADLINE, StoredDeadline(self.written).to_json())
        return self.deadline
