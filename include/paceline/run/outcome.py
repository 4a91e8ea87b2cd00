"""The outcome of a run: its deviation from the deadline, descriptions of failures, measurements for the next run."""

from __future__ import annotations

import math
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
# Not a library of the node, or a file of a mount, which another try may find.
_NOT_LOADED = re.compile(r"(ImportError(?!: lib\S+\.so)|SyntaxError|IndentationError|TabError)\b")
_NO_FILE = re.compile(r"FileNotFoundError: \[Errno 2\] [^:]*: '(?!/)|\S*python\S*: can't open file ")
_REJECTED_ARGUMENT = re.compile(r"\S+: error: ")  # of argparse, which exits with the code 2
_ERROR, _USAGE_ERROR = 1, 2  # exit codes
_MAX_START_S = 120.0  # a script that ends later has done more than load its code and its files


def error_pct(finished_s: float, deadline_s: float, began_s: float) -> float | None:
    """Return the deviation from the deadline in percent, equation (7) of DECOR-NN.

    Returns ``None`` without a deadline, and if the deadline had passed when the job could begin: no allocation could
    have met it, and the time up to it is no measure of the delay.

    >>> error_pct(finished_s=98, deadline_s=100, began_s=10)
    -2.0
    >>> error_pct(finished_s=98, deadline_s=0.001, began_s=10) is None
    True
    """
    return None if deadline_s <= began_s or math.isinf(deadline_s) else 100.0 * (finished_s - deadline_s) / deadline_s


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


def unsuitable_code(status: JobStatus, last_lines: Iterable[str]) -> str | None:
    """Return what a user can do about a script that every further try would end in the same way.

    That is a script that has trained nothing, and lacks a module or a file, has invalid code, or rejects its arguments.
    Returns ``None`` for any other failure, such as one of the network, of memory, or after some minutes.

    >>> failed = JobStatus("exited", 1)
    >>> unsuitable_code(failed, ["Traceback (most recent call last):", "FileNotFoundError: [Errno 2] ...: 'rows.csv'"])
    'No further try follows: the file is not in the job. Name it in inputs={...} (data) or files={...} (code) of the \
task, and read it from paceline.train.input_dir() or beside the script.'
    >>> unsuitable_code(failed, ["torch.OutOfMemoryError: CUDA out of memory"]) is None
    True
    """
    took_s = (status.finished_s or 0.0) - (status.started_s or 0.0)
    is_killed = status.stopped or status.out_of_memory or status.exit_code not in (_ERROR, _USAGE_ERROR)
    if is_killed or took_s > _MAX_START_S:
        return None
    lines = [line.strip() for line in last_lines if line.strip()]
    last = lines[-1] if lines else ""
    if module := _MISSING_MODULE.match(last):
        name = module[1]
        return (
            f"No further try follows: module {name} is not in the job. If it is your own, add "
            f"files={{{name + '.py'!r}: {name + '.py'!r}}} to the task; a package has to be installed in the image, or "
            "in the environment of a local process."
        )
    if _NOT_LOADED.match(last):
        return "No further try follows: the code cannot be loaded. Change the script, or the version of the package."
    if _NO_FILE.match(last):
        return (
            "No further try follows: the file is not in the job. Name it in inputs={...} (data) or files={...} (code) "
            "of the task, and read it from paceline.train.input_dir() or beside the script."
        )
    if status.exit_code == _USAGE_ERROR and _REJECTED_ARGUMENT.match(last):
        return "No further try follows: the script rejects its arguments. Change arguments=[...] of the task."
    return None


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
