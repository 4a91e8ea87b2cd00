"""The newest sample of a training: the value of the live state's key ``pace``.

The control loop writes it about once a second; the arbiter, the pages and the command line read it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from paceline.contract.record import Moment, Record, Rounded, Seconds

State = Literal["waiting", "starting", "training", "paused", "finishing", "finished", "failed", "detached"]
Devices = Annotated[float, Field(ge=0, le=1e6)]


class Remaining(Record):
    """The rest of a training as its controller expects it: ``work_s / devices**exponent + after_s`` seconds.

    ``work_s`` are seconds on one device. ``after_s`` are seconds that no device makes shorter. The training cannot use
    more than ``usable_devices``; ``None`` while it uses all that it is given.
    """

    work_s: float = Field(ge=0, le=1e11)
    exponent: float = Field(gt=0, le=2)
    after_s: float = Field(ge=0, le=1e11)
    usable_devices: float | None = Field(default=None, gt=0)


def _or_none(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return None


def _numbers(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kinds = (int, float)
    return {name: one for name, one in value.items() if isinstance(one, kinds) and not isinstance(one, bool)}


class PaceSample(Record):
    """What a training does, holds and expects. Seconds count from the moment that the deadline counts from.

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
    t_s: Seconds
    updated_at: Moment
    progress_pct: Rounded
    setpoint_pct: Rounded
    devices: Devices
    """Devices that the job may hold: an engine that did not answer may have changed them."""
    min_devices: Devices
    max_devices: Devices
    quantum: Devices
    used_devices: Rounded | None = None
    """Devices that the job has kept busy."""
    ceiling: float | None = Field(default=None, ge=0)
    """The most devices that it may be given now; ``None`` for as many as it likes."""
    grant: int | None = None
    """The arbiter's grant in force; ``None`` for a job whose devices are not shared."""
    restarts: int = 0
    resizes: int = 0
    step_ms: Rounded | None = None
    """What the last control step took, in milliseconds."""
    deadline_s: Seconds | None
    """``None`` for a training without a deadline."""
    alpha: float = Field(default=1.0, gt=0, le=1)
    """The target end is this fraction of the time from ``began_s`` to the deadline."""
    began_s: Seconds = 0.0
    """Start of the training; while it waits, the current time to a minute. 0 with the controller ``paper``."""
    forecast_s: Seconds | None = None
    """The end at the present speed; ``None`` while that is not known."""
    earliest_s: Seconds | None = None
    """The end with every device that is allowed."""
    feasible: bool = True
    remaining: Annotated[Remaining | None, WrapValidator(_or_none)] = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    metrics: Annotated[dict[str, float], BeforeValidator(_numbers)] = Field(default_factory=dict)
    threads: int | None = None
    devices_in_force: int | None = None
    """Whole devices that train now, for a job that sees to that itself."""

    @property
    def origin(self) -> datetime:
        """The moment that the seconds count from."""
        return self.updated_at - timedelta(seconds=self.t_s)
