"""The outcome of a run for users: its deviation from the deadline, and descriptions of failures."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.runtime import JobStatus


def error_pct(finished_s: float, deadline_s: float) -> float:
    """Return the deviation from the deadline in percent, equation (7) of DECOR-NN.

    >>> error_pct(finished_s=98, deadline_s=100)
    -2.0
    """
    return 100.0 * (finished_s - deadline_s) / deadline_s


def describe_failure(status: JobStatus, last_lines: Iterable[str]) -> str | None:
    """Return a description of the failure of an ended job; ``None`` after exit code 0."""
    if status.state == "gone":
        return "the job was removed while it ran" + (f" ({status.reason})" if status.reason else "")
    if status.exit_code == 0:
        return None
    reason = f"exit code {status.exit_code}" + (f", {status.reason}" if status.reason else "")
    return f"script: ended with {reason}, expected exit code 0. Its last lines:\n" + ("\n".join(last_lines) or "(none)")


def describe_silence(when: str, last_malformed: str | None) -> str:
    """Return an error message for a job that reported no progress."""
    hint = f" Last skipped line: {last_malformed}." if last_malformed else ""
    return (
        f"script: reported no progress {when}, expected a loop over paceline.train.track(...) "
        f"with at least one batch.{hint}"
    )
