"""The state from which the next process resumes control: the value of the live state's key ``controller``."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from paceline.contract._measured import Measured
from paceline.contract._record import Record, Seconds, Text


class Reported(Measured):
    """The job's last report, stored because a job that has ended does not report again after the task restarts."""

    done: int
    total: int
    epoch: int
    epochs: int
    may_end_early: bool = False
    first_s: Seconds | None = None
    """Start of the first batch, if known."""
    clock_offset_s: float | None = Field(default=None, ge=-1e11, le=1e11)
    """Seconds to add to a time on the job's clock to get the task's time."""
    numbers: dict[Text, int] = Field(default_factory=dict)
    """Number of the last progress line from each recent process of the job."""


class RunTotals(Record):
    """Totals of a run so far. Times are in seconds, counted from the same time as the deadline."""

    began_s: Seconds
    restarts: int = Field(default=0, ge=0)
    restarts_without_progress: int = Field(default=0, ge=0)
    """The last ``restarts``, since the job had done more than ever before."""
    done_before: float = -1.0
    """The most that the job had done when it ended, before these restarts."""
    preemptions: int = Field(default=0, ge=0)
    restarting: bool = False
    """Whether the job was restarted and has not sent a report since then."""
    last_step_s: Seconds | None = None
    """The time up to which ``device_s`` is counted."""
    device_s: float = Field(default=0.0, ge=0, le=1e15)
    """Device-seconds used by the job."""
    resizes: int = Field(default=0, ge=0)
    allocated_devices: float = Field(default=0.0, ge=0)
    in_use: float | None = None
    """Devices that the containers of the job use; ``None`` if they use the whole allocation."""
    reported: Reported | None = None


class ControllerState(Record):
    """The state of a controller, readable only by a controller of the same class, and the run's totals.

    Examples
    --------
    >>> state = ControllerState(kind="default", controller={"deadline_s": 60.0}, run=RunTotals(began_s=2.0))
    >>> ControllerState.read(state.to_json()) == state
    True
    """

    version: int = 1
    kind: str
    """Name of the controller's class; a user may choose another controller between two tries."""
    controller: dict[str, Any]
    run: RunTotals
