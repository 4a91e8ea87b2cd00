"""How a run ended: the figures of a success, the sentence for a failure. Made by the control loop at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from paceline.runtime.base import JobStatus


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Times are in seconds since the moment that the deadline counts from. ``error_pct`` is equation (7) of DECOR-NN:
    negative for a run that ended before its deadline; both are
    ``None`` for a run without one. ``step_ms_*`` is what a control step costs, ``store_ms_mean``
    what an exchange with the live state beside it costs. ``learned`` is what the next run of the
    job begins with, see :class:`~paceline.control.PastRun`.
    """

    finished_s: float
    deadline_s: float | None
    error_pct: float | None
    met: bool
    mean_devices: float
    device_seconds: float
    resizes: int
    restarts: int
    step_ms_mean: float
    step_ms_max: float
    store_ms_mean: float
    loss: float | None
    metrics: dict[str, float]
    learned: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return asdict(self)


def error_pct(finished_s: float, deadline_s: float) -> float:
    """Deviation from the deadline in percent, equation (7) of DECOR-NN.

    >>> error_pct(finished_s=98, deadline_s=100)
    -2.0
    """
    return 100.0 * (finished_s - deadline_s) / deadline_s


def describe_failure(status: JobStatus, last_lines: Iterable[str]) -> str | None:
    """Say what went wrong with a job that has ended; ``None`` if its exit was clean."""
    if status.state == "gone":
        return "the job was removed by somebody while it ran" + (f" ({status.reason})" if status.reason else "")
    if status.exit_code == 0:
        return None
    reason = f"exit code {status.exit_code}" + (f", {status.reason}" if status.reason else "")
    return f"script: ended with {reason}, expected exit code 0. Its last lines:\n" + ("\n".join(last_lines) or "(none)")


def describe_silence(when: str, last_malformed: str | None) -> str:
    """Say that a job reported no progress, and what it should have done."""
    hint = f" The last line that was skipped: {last_malformed}." if last_malformed else ""
    return (
        f"script: reported no progress {when}, expected a loop over paceline.train.track(...) "
        f"with at least one batch.{hint}"
    )
