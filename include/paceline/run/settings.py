"""The settings of one training job: the operator's arguments, read once after the templates are rendered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from paceline.contract import DEADLINE, PACE, Deadline, PaceSample, StoredDeadline, storable_deadline, unit_of
from paceline.control import (
    CPU_QUANTUM,
    LATE_WEIGHT,
    BudgetController,
    Controller,
    Gains,
    Limits,
    PastRun,
    PastTail,
    TailModel,
    make_controller,
)
from paceline.errors import InvalidInputError
from paceline.run._live import LiveState


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
    shared_gpus:
        Number, or part, of GPUs of whose time the devices are a share; 0 if they are cores or whole GPUs.
    period_s:
        Seconds between control steps.
    on_infeasible:
        ``"best_effort"``, ``"fail"`` or ``"extend"``.
    controller:
        Name of the controller, or the gains of the ``"paper"`` controller.
    shared:
        Whether an arbiter allocates the devices.
    lease_s:
        Longest time for which the job runs without a controlling process.
    on_change:
        What a retry does if the job's code has changed: ``"resume"`` or ``"restart"``.
    late_weight:
        Cost of a second after the target end, relative to that of a second before it, in the plan for what comes after
        the last batch.
    needs_progress:
        Whether a job that has reported no progress has failed, even with exit code 0.
    """

    deadline: Deadline = field(default_factory=Deadline)
    written: str | int | float | None = None
    alpha: float = 1.0
    min_devices: float = 0.1
    max_devices: float | None = None
    quantum: float = CPU_QUANTUM
    cores_per_device: float = 1.0
    shared_gpus: float = 0.0
    period_s: float = 1.0
    on_infeasible: str = "best_effort"
    controller: str | Gains = "default"
    shared: bool = False
    lease_s: float = 6 * 3600.0
    on_change: str = "resume"
    late_weight: float = LATE_WEIGHT
    needs_progress: bool = False

    def limits(self, capacity: float, log: Any) -> Limits:
        """Return the limits of the allocation on a machine with ``capacity`` cores."""
        largest = self.max_devices
        capacity = self.shared_gpus or capacity / self.cores_per_device
        if largest is None and math.isinf(capacity):
            accepted = "a number, because the runtime does not know how many cores there are"
            raise InvalidInputError("max_devices", largest, accepted)
        if largest is not None and largest > capacity:
            owner = "job" if self.shared_gpus else "machine"
            unit = unit_of(self.quantum, shares_gpus=self.shared_gpus > 0)
            log.warning("max_devices: got %g, using all %g %s of the %s", largest, capacity, unit, owner)
        # Without any devices, a job would never end, and its speed would stay unknown.
        smallest = max(self.min_devices, self.quantum)
        if (largest is None or self.shared_gpus) and smallest > capacity:
            what = "GPUs of the job" if self.shared_gpus else "cores of the machine"
            field = "quantum" if self.quantum > self.min_devices else "min_devices"
            raise InvalidInputError(field, smallest, f"at most the {capacity:g} {what}")
        largest = capacity if largest is None else max(min(largest, capacity), smallest)
        return Limits(smallest, largest, self.quantum, shares_gpus=self.shared_gpus > 0)

    def make_controller(
        self, limits: Limits, deadline_s: float, past: PastRun | None, tails: Sequence[PastTail] = ()
    ) -> Controller:
        """Return the controller that decides on the allocation, with the ``tails`` of other jobs."""
        tail = TailModel(past, tails, self.late_weight)
        if self.deadline == Deadline():
            return BudgetController(limits, period_s=self.period_s, past=past, tail=tail)
        return make_controller(
            self.controller,
            limits,
            deadline_s,
            alpha=self.alpha,
            period_s=self.period_s,
            past=past,
            tail=tail,
        )

    def deadline_in_force_s(self, store: LiveState, origin: datetime, now_s: float, log: Any) -> float:
        """Return the user's deadline from ``store``, or else the DAG's, in seconds after ``origin``.

        If the stored deadline is rejected, replace it with the deadline of the last sample. ``now_s`` is the current
        time in seconds after ``origin``.
        """
        raw, sample = store.get(DEADLINE), PaceSample.read(store.get(PACE))
        before_s = None if sample is None else sample.deadline_s
        own_s = self.deadline.seconds_after(origin)
        if raw is not None:
            try:
                return StoredDeadline.read(raw).accept(origin, now_s, own_s if before_s is None else before_s)
            except InvalidInputError as error:
                log.warning("The deadline in the task state store was rejected. %s", error)
                if before_s is not None:
                    store.set(DEADLINE, storable_deadline(before_s, origin))
                    return before_s
        is_long = isinstance(self.written, float)  # a timedelta, which may be longer than a number of seconds
        store.set(DEADLINE, storable_deadline(own_s, origin) if is_long else StoredDeadline(self.written).to_json())
        return own_s
