"""What the next process that steers a job goes on from: the value of the live state's key ``controller``."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from paceline.contract.record import Record, Text


class Reported(Record):
    """What the job has reported last. A job that has ended says it only once, perhaps to a process that died then."""

    done: int
    total: int
    epoch: int
    epochs: int
    loss: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    first_s: float | None = None
    """When the first batch began, as far as is known."""
    clock_offset_s: float | None = None
    """What is to be added to a time of the job's clock."""
    numbers: dict[Text, int] = Field(default_factory=dict)
    """The job's processes that have reported lately, and the number of the last line of each."""


class RunTotals(Record):
    """What a run has come to so far. Seconds count from the moment that the deadline counts from."""

    began_s: float
    restarts: int = Field(default=0, ge=0)
    last_step_s: float | None = None
    """Up to when ``device_s`` is counted."""
    device_s: float = Field(default=0.0, ge=0)
    """Device-seconds."""
    resizes: int = Field(default=0, ge=0)
    held_devices: float = Field(default=0.0, ge=0)
    in_use: float | None = None
    """Devices that the job's containers have; ``None``: all that it holds."""
    reported: Reported | None = None


class ControllerState(Record):
    """The state of a controller, which only a controller of its kind can read, and the run's totals.

    Examples
    --------
    >>> state = ControllerState(kind="default", controller={"deadline_s": 60.0}, run=RunTotals(began_s=2.0))
    >>> ControllerState.read(state.to_json()) == state
    True
    """

    version: int = 1
    kind: str
    """Name of the controller's class: a task may be given another one between two tries."""
    controller: dict[str, Any]
    run: RunTotals
