"""The newest sample of a job: the value of the live state's key ``pace``.

The control loop writes it about once a second; the arbiter, the pages and the command line read it.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from paceline.contract._measured import Measured
from paceline.contract._record import Moment, Record, Rounded, Seconds, Text
from paceline.contract._units import Unit, unit_of

State = Literal["waiting", "starting", "training", "preempted", "finishing", "finished", "failed", "detached"]
Devices = Annotated[float, Field(ge=0, le=1e6)]


class Remaining(Record):
    """The controller's forecast of the remaining time: ``work_s / devices**exponent + after_s`` seconds.

    ``work_s`` is the remaining work in seconds on one device; ``after_s`` does not depend on the devices. The job
    cannot use more than ``usable_devices``; ``None`` while it uses its whole allocation. ``sd`` is the standard
    deviation of the speed, as a fraction, on ``sd_devices``; ``exponent_sd`` is that of the exponent.
    """

    work_s: float = Field(ge=0, le=1e11)
    exponent: float = Field(gt=0, le=2)
    after_s: float = Field(ge=0, le=1e11)
    usable_devices: float | None = Field(default=None, gt=0)
    sd: float = Field(default=0.0, ge=0, le=100)
    sd_devices: float = Field(default=1.0, gt=0, le=1e6)
    exponent_sd: float = Field(default=0.0, ge=0, le=2)


def _valid_or_none(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return None


class PaceSample(Measured):
    """The state, allocation and forecast of a job. Times are in seconds, counted from the same time as the deadline.

    Examples
    --------
    >>> sample = PaceSample(
    ...     state="training", t_s=30, updated_at=datetime.fromisoformat("2030-01-01T12:00:30+00:00"), progress_pct=50.0,
    ...     setpoint_pct=49.0, devices=1.5, min_devices=0.1, max_devices=2, quantum=0.05, deadline_s=60)
    >>> str(sample.origin)
    '2030-01-01 12:00:00+00:00'
    >>> PaceSample.read(sample.to_json()) == sample
    True
    >>> PaceSample.read({"state": "training"}) is None, PaceSample.read("fast") is None
    (True, True)
    """

    version: int = 1
    state: State
    reason: Text | None = None
    """Why the job has failed or is detached, in one line, if known; ``None`` in other states."""
    t_s: Seconds
    updated_at: Moment
    progress_pct: Rounded
    setpoint_pct: Rounded
    devices: Devices
    """The allocation, or its upper bound while the engine has not confirmed a resize."""
    min_devices: Devices
    max_devices: Devices
    quantum: Annotated[float, Field(ge=1e-6, le=1e6)]
    shares_gpus: bool = False
    """Whether the devices are a share of the time of the job's GPUs."""
    used_devices: Rounded | None = None
    """Devices that the job has kept busy."""
    mean_devices: Rounded | None = None
    """Mean allocation since the start of the job; ``None`` before it."""
    device_seconds: Rounded | None = None
    """Devices times seconds since the start of the job; ``None`` before it."""
    ceiling: float | None = Field(default=None, ge=0)
    """The largest allocation allowed now; ``None`` without a ceiling."""
    grant: int = Field(default=0, ge=0, le=10**9)
    """Number of the arbiter's grant in effect; 0 before the first."""
    shared: bool = False
    """Whether the job waits for grants of an arbiter, which may preempt it."""
    startup_s: Seconds | None = None
    """Seconds from the start of the container to the first batch, also of an earlier run; ``None`` while unknown."""
    restarts: int = 0
    resizes: int = 0
    step_ms: Rounded | None = None
    """Duration of the last control step, in milliseconds."""
    deadline_s: Seconds | None
    """``None`` for a job without a deadline."""
    alpha: float = Field(default=1.0, gt=0, le=1)
    """The target end is this fraction of the time from ``began_s`` to the deadline."""
    began_s: Seconds = 0.0
    """Start of the job, or the current time, rounded to a minute, while the job waits. 0 with ``PaperController``."""
    forecast_s: Seconds | None = None
    """The predicted end at the current speed; ``None`` while unknown."""
    forecast_low_s: Seconds | None = None
    forecast_high_s: Seconds | None = None
    """Nine of ten jobs end between these times: the controller cannot correct what comes after the last batch."""
    earliest_s: Seconds | None = None
    """The predicted end with all allowed devices."""
    feasible: bool = True
    remaining: Annotated[Remaining | None, WrapValidator(_valid_or_none)] = None
    epoch: int | None = None
    epochs: int | None = None
    threads: int | None = None
    devices_in_force: int | None = None
    """Number of whole devices that train now, if the job reports this number."""

    @property
    def unit(self) -> Unit:
        """What the numbers of devices count: ``"cores"``, ``"devices"`` or ``"GPUs"``."""
        return unit_of(self.quantum, shares_gpus=self.shares_gpus)

    @property
    def origin(self) -> datetime:
        """The time from which the deadline counts."""
        return self.updated_at - timedelta(seconds=self.t_s)

    @property
    def deadline_in_force_s(self) -> float:
        """The deadline; infinity, which JSON lacks, for a job without a deadline."""
        return math.inf if self.deadline_s is None else self.deadline_s
