"""What the control loop asks of a controller, and what it gets back. ``deadline`` and ``paper`` implement it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from paceline.control.limits import Limits
from paceline.control.remaining import RemainingWork
from paceline.errors import InvalidInputError


@dataclass(frozen=True)
class Decision:
    """What one control step decided, and how things stand.

    ``devices`` is the allocation from now on, for ``next_s`` seconds. ``finish_s`` forecasts the end at the present
    speed, ``earliest_s`` the end with every device that is allowed; both are ``None`` until the job has shown its
    speed. ``feasible`` says whether the deadline can still be met. ``remaining`` says what others would take.
    """

    devices: float
    setpoint_pct: float
    progress_pct: float
    finish_s: float | None
    earliest_s: float | None
    feasible: bool
    next_s: float
    remaining: RemainingWork | None = None


class Observation(NamedTuple):
    """The state of a job at one control step. Times are in seconds since the moment that the deadline counts from.

    Parameters
    ----------
    now_s:
        The time.
    done, total:
        Batches done as last reported, and batches in all; ``done`` is ``None`` until the job has reported for the
        first time. The total may change from step to step.
    held_devices:
        What the job really held since the last step.
    done_s:
        When ``done`` were done.
    pending:
        The last allocation has not been carried out yet.
    ceiling:
        The most devices allowed from outside now.
    resting:
        The job is not training now, for example because it validates after an epoch.
    pauses_left_s:
        Expected time until the end in which the job will not train.
    busy:
        The share of what it held that the job has used lately, from 0 to 1; ``None`` if that is not known.
    save_s:
        Duration of the job's last checkpoint, in seconds; ``None`` if it has reported none. One more checkpoint
        follows the last batch.
    """

    now_s: float
    done: int | None
    total: int
    held_devices: float
    done_s: float = 0.0
    pending: bool = False
    ceiling: float | None = None
    resting: bool = False
    pauses_left_s: float = 0.0
    busy: float | None = None
    save_s: float | None = None


class Controller(Protocol):
    """Decides how many devices one job holds. Times are in seconds since the moment that the deadline counts from.

    ``deadline_s`` is infinite for a job without a deadline.
    """

    limits: Limits
    deadline_s: float
    alpha: float
    period_s: float
    began_s: float
    """Start of the job. ``alpha`` is a fraction of the time from the start to the deadline."""

    def begins(self, now_s: float) -> None:
        """Take ``now_s`` for the start of the job."""

    def start(self, now_s: float) -> float:
        """Return the allocation of a job that is started now, until its first report."""

    def step(self, seen: Observation) -> Decision:
        """One control step."""

    def move_deadline(self, now_s: float, deadline_s: float) -> None:
        """Take a new deadline."""

    def interrupt(self, now_s: float) -> None:
        """The job stood still or began again from a checkpoint: what was seen since the last step says nothing."""

    def learned(self) -> dict[str, Any] | None:
        """The speed of the job, as :class:`PastRun` has it; ``None`` while it is not known."""

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs to go on without a bump in another process, JSON-safe."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned."""


def aim(began_s: float, deadline_s: float, alpha: float) -> float:
    """Return the target end: ``alpha`` times the time from the start to the deadline, counted from the start.

    >>> aim(0.0, 100.0, alpha=0.9), aim(60.0, 100.0, alpha=0.9), aim(120.0, 100.0, alpha=0.9)
    (90.0, 96.0, 100.0)
    """
    return min(began_s + alpha * (deadline_s - began_s), deadline_s)


def check_target(deadline_s: float, alpha: float, period_s: float) -> None:
    """Raise InvalidInputError for a deadline, safety factor or control period that makes no sense."""
    if isinstance(alpha, bool) or not 0 < alpha <= 1:
        raise InvalidInputError("alpha", alpha, "a number in (0, 1]")
    if not period_s > 0:
        raise InvalidInputError("control_period", period_s, "a number of seconds greater than 0")
    if not deadline_s > 0:
        raise InvalidInputError("deadline", deadline_s, "a time that is still to come")
