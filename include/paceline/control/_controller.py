"""The protocol between the control loop and a controller. ``_deadline`` and ``_paper`` implement it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from paceline.control._limits import Limits
from paceline.control._remaining import RemainingWork
from paceline.control._tail import TailForecast
from paceline.errors import InvalidInputError


@dataclass(frozen=True)
class Decision:
    """The result of one control step.

    ``devices`` is the allocation for the next ``next_s`` seconds. ``finish_s`` forecasts the end at the current speed,
    ``earliest_s`` the end with all allowed devices; both are ``None`` until the speed is known. ``feasible`` says
    whether the deadline can still be met. ``remaining`` predicts the end for any allocation and any deadline, and
    ``tail`` the time after the last batch; ``None`` if the controller does not. ``margins_s`` are the seconds by which
    nine of ten jobs end at most before and after ``finish_s`` because of what comes after the last batch.
    """

    devices: float
    setpoint_pct: float
    progress_pct: float
    finish_s: float | None
    earliest_s: float | None
    feasible: bool
    next_s: float
    remaining: RemainingWork | None = None
    tail: TailForecast | None = None
    margins_s: tuple[float, float] = (0.0, 0.0)


class Observation(NamedTuple):
    """The state of a job at one control step. Times are in seconds since the origin of the deadline.

    Parameters
    ----------
    now_s:
        Current time.
    done, total:
        Batches done according to the last report, and the total number of batches. ``done`` is ``None`` before the
        first report; ``total`` may change.
    allocated_devices:
        Actual allocation since the last step.
    done_s:
        Time at which ``done`` was reached.
    pending:
        Whether the last allocation has not taken effect yet.
    ceiling:
        Current ceiling, in devices.
    in_pause:
        Whether the job is not training now, for example because it validates after an epoch.
    pauses_left_s:
        Expected time without training until the end.
    busy:
        Recently used fraction of the allocation, from 0 to 1; ``None`` if unknown.
    pause_sd_s:
        Standard deviation of the last of these pauses.
    save_s:
        Duration of the last checkpoint; ``None`` if the job has reported none. A final checkpoint follows the last
        batch.
    tail_s:
        Time from the last batch to the end that the training code has declared; ``None`` if it has not.
    resize_s:
        Seconds for which the last change of whole devices has interrupted training; ``None`` without one.
    restarting:
        Whether the job was restarted and has not reported since then: it is starting up again.
    """

    now_s: float
    done: int | None
    total: int
    allocated_devices: float
    done_s: float = 0.0
    pending: bool = False
    ceiling: float | None = None
    in_pause: bool = False
    pauses_left_s: float = 0.0
    busy: float | None = None
    pause_sd_s: float = 0.0
    save_s: float | None = None
    tail_s: float | None = None
    resize_s: float | None = None
    restarting: bool = False


class Controller(Protocol):
    """Decides the allocation of one job. Times are in seconds since the origin of the deadline.

    ``deadline_s`` is infinite for a job without a deadline.
    """

    limits: Limits
    deadline_s: float
    alpha: float
    period_s: float
    began_s: float
    """Start of the job. ``alpha`` is a fraction of the time from the start to the deadline."""

    def set_start(self, now_s: float) -> None:
        """Set the start of the job to ``now_s``."""

    def start(self, now_s: float) -> float:
        """Return the initial allocation of a job that starts now. It applies until the job's first report."""

    def step(self, obs: Observation) -> Decision:
        """Run one control step."""

    def setpoint_pct(self, now_s: float) -> float:
        """Return the setpoint in percent, at most 100; 0 before there is one."""

    def move_deadline(self, now_s: float, deadline_s: float) -> None:
        """Set a new deadline."""

    def interrupt(self, now_s: float) -> None:
        """Discard the measurements since the last step: the job was suspended or restarted from a checkpoint."""

    def learned(self) -> dict[str, Any] | None:
        """Return the job's speed as fields of :class:`PastRun`; ``None`` while the speed is unknown."""

    def state(self) -> dict[str, Any]:
        """Return the JSON-safe state for ``restore``, for a bumpless transfer to another process."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the result of ``state``."""


def target_end_s(began_s: float, deadline_s: float, alpha: float) -> float:
    """Return the target end: ``began_s + alpha * (deadline_s - began_s)``, at most the deadline.

    >>> target_end_s(0.0, 100.0, alpha=0.9), target_end_s(60.0, 100.0, alpha=0.9), target_end_s(120.0, 100.0, alpha=0.9)
    (90.0, 96.0, 100.0)
    """
    return min(began_s + alpha * (deadline_s - began_s), deadline_s)


def check_target(deadline_s: float, alpha: float, period_s: float) -> None:
    """Raise InvalidInputError for an invalid deadline, safety factor or control period."""
    if isinstance(alpha, bool) or not 0 < alpha <= 1:
        raise InvalidInputError("alpha", alpha, "a number in (0, 1]")
    if not period_s > 0:
        raise InvalidInputError("control_period", period_s, "a number of seconds greater than 0")
    if not deadline_s > 0:
        raise InvalidInputError("deadline", deadline_s, "a number of seconds greater than 0")
