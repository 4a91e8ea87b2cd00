"""What a control loop is given besides the job, its controller and the user's settings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from paceline.contract import Ceiling, PaceSample, RunTotals
from paceline.control import PastRun
from paceline.errors import DetachedError
from paceline.run._history import History
from paceline.run._states import Lifecycle
from paceline.run.clock import Clock, SystemClock
from paceline.run.host import Stage
from paceline.runtime import JobStatus

Leaves = Callable[[JobStatus | None], bool]


class ControlElsewhereError(DetachedError):
    """Raised when another process is to continue the control of a job."""


@dataclass(frozen=True)
class Handover:
    """The state of a job when a process begins to control it. Most of it is from an earlier process.

    Parameters
    ----------
    origin:
        The time from which the deadline is counted; all times in seconds are relative to it.
    allocated_devices:
        The current allocation.
    job_started_s:
        Start of the job in seconds after ``origin``. Device-seconds are counted from this time. Default: now.
    restarted:
        Whether this process has restarted the job of an earlier process, which resumes from its checkpoint.
    lifecycle:
        The job's current state, which the loop changes.
    history, totals:
        The history and the totals of the run so far; ``totals`` is ``None`` if no process has controlled it yet.
    past:
        Measurements of an earlier run.
    shared:
        The ceiling in effect, if an arbiter allocates the devices. A ceiling of 0 preempts the job; a later ceiling
        resumes it from its checkpoint.
    """

    origin: datetime
    allocated_devices: float
    job_started_s: float | None = None
    restarted: bool = False
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    history: History = field(default_factory=History)
    totals: RunTotals | None = None
    past: PastRun | None = None
    shared: Ceiling | None = None


@dataclass(frozen=True)
class Surroundings:
    """What a control loop needs of its process.

    Parameters
    ----------
    clock, log:
        The clock, and the log for messages and the job's own output.
    stopped:
        Called at every step; returns whether this process has to end.
    check_need:
        Called at every step with the stage of the job; raises an error if the job can be of no use any more.
    on_sample:
        Called with every published sample; must return quickly.
    mask:
        Returns a text without the secrets that it may contain, such as the last line of the job.
    leaves:
        Called after every step, and with the status of a job that has ended; returns whether another process continues.
        Default: never.
    """

    clock: Clock = field(default_factory=SystemClock)
    log: logging.Logger | Any = field(default_factory=lambda: logging.getLogger("paceline.run"))
    stopped: Callable[[], bool] = lambda: False
    check_need: Callable[[Stage], None] = lambda stage: None
    on_sample: Callable[[PaceSample], None] = lambda sample: None
    mask: Callable[[str], str] = str
    leaves: Leaves | None = None
