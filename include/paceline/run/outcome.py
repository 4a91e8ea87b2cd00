"""The outcome of a run: its deviation from the deadline, descriptions of failures, measurements for the next run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.control import PastRun, TailForecast
from paceline.run.reading import ProgressReader
from paceline.runtime import JobStatus

# Logged once for a job that ended well without a progress line, such as a script with a single call of `fit`.
WITHOUT_STEPS = (
    "The script reported no progress, so its training had no forecast and was not steered to the deadline. For that, "
    "loop over paceline.train.track(...) or use an adapter of paceline.train.adapters"
)

# A learned speed that is this many times below that of the whole run contradicts the run.
_MAX_SLOWDOWN = 4.0
_MAX_REASON = 300  # characters; a sample is stored every second
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")


def error_pct(finished_s: float, deadline_s: float) -> float:
    """Return the deviation from the deadline in percent, equation (7) of DECOR-NN.

    >>> error_pct(finished_s=98, deadline_s=100)
    -2.0
    """
    return 100.0 * (finished_s - deadline_s) / deadline_s


def describe_failure(status: JobStatus, last_lines: Iterable[str]) -> str | None:
    """Return a description of the failure of an ended job; ``None`` after exit code 0 of a job that was not stopped."""
    if status.state == "gone":
        return "the job was removed while it ran" + (f" ({status.reason})" if status.reason else "")
    if status.exit_code == 0 and not status.stopped:
        return None
    if status.exit_code == 0:
        return "the job was stopped, because its lease ended or another process stopped it"
    reason = f"exit code {status.exit_code}" + (f", {status.reason}" if status.reason else "")
    return f"script: ended with {reason}, expected exit code 0. Its last lines:\n" + ("\n".join(last_lines) or "(none)")


def in_one_line(message: str) -> str:
    """Return the beginning of an error message with its last line, which says what an exception is.

    >>> in_one_line("script: ended with exit code 1. Its last lines:\\nTraceback:\\nValueError: negative rate")
    'script: ended with exit code 1. ... ValueError: negative rate'
    >>> in_one_line("deadline: 90 s has passed")
    'deadline: 90 s has passed'
    """
    first, *others = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    if others:
        first = f"{first.removesuffix(' Its last lines:')} ... {others[-1]}"
    return first if len(first) <= _MAX_REASON else f"{first[: _MAX_REASON - 3]}..."


def missing_module(last_lines: Iterable[str]) -> str | None:
    """Return the module that a Python script could not import, from its last lines; ``None`` if it ended otherwise.

    >>> missing_module(["Traceback (most recent call last):", "ModuleNotFoundError: No module named 'model.layers'"])
    'model'
    """
    lines = [line for line in last_lines if line.strip()]
    found = _MISSING_MODULE.match(lines[-1].strip()) if lines else None
    return found[1] if found else None


def describe_missing_module(name: str) -> str:
    """Return what a user can do about a module that a script could not import."""
    return (
        f"Module {name} is not in the job. If it is your own, add files={{{name + '.py'!r}: {name + '.py'!r}}} to the "
        "task; a package has to be installed in the image, or in the environment of a local process."
    )


def describe_missing_progress(when: str, last_malformed: str | None) -> str:
    """Return an error message for a job that reported no progress."""
    hint = f" Last skipped line: {last_malformed}." if last_malformed else ""
    return (
        f"script: reported no progress {when}, expected a loop over paceline.train.track(...) "
        f"with at least one batch.{hint}"
    )


def describe_tail(tail: TailForecast) -> str:
    """Return a line for the log about the forecast of what comes after the last batch, and where it comes from.

    >>> describe_tail(TailForecast(4.0, 2.5, 8.0, 6.0, "12 other jobs"))
    'After the last batch: 4.0 s (2.5 to 8.0 s), forecast from 12 other jobs; the plan reserves 6.0 s'
    """
    spread = "" if tail.low_s == tail.high_s else f" ({tail.low_s:.1f} to {tail.high_s:.1f} s)"
    return (
        f"After the last batch: {tail.median_s:.1f} s{spread}, forecast from {tail.source}; "
        f"the plan reserves {tail.reserved_s:.1f} s"
    )


def measurements(
    reader: ProgressReader,
    speed: Mapping[str, Any] | None,
    total: int | None,
    began_s: float,
    finished_s: float,
    max_devices: float,
) -> dict[str, Any] | None:
    """Return the measurements that the next run can use; ``None`` if this run has too few, or they contradict it.

    Parameters
    ----------
    reader:
        The progress reader, which has read all the job's lines.
    speed:
        The controller's measurements of the job's speed.
    total:
        Number of the job's batches.
    began_s, finished_s:
        Start and end of the job.
    max_devices:
        Most devices that the job may have had.
    """
    if reader.first_s is None or reader.trained_s is None or speed is None or not total:
        return None
    past = PastRun(
        batches=total,
        startup_s=round(max(reader.first_s - began_s, 0.0), 3),
        tail_s=round(max(finished_s - reader.trained_s, 0.0), 3),
        pauses_s=round(reader.pauses.total_s, 3),
        epochs=reader.newest.epochs if reader.newest else None,
        save_s=reader.newest.save_s if reader.newest else None,
        resize_s=reader.newest.resize_s if reader.newest else None,
        **speed,
    )
    # A worker that waits for a lost parameter server seems to become slower and slower. With that speed, the next run
    # would report, or fail with, a deadline that cannot be met.
    fastest = past.batches_per_s * max(1.0, max_devices / past.devices) ** past.exponent
    trained = total / max(reader.trained_s - reader.first_s, 1e-9)
    return None if _MAX_SLOWDOWN * fastest < trained else past.to_dict()
