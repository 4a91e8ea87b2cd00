"""Forwards a job's output to the task's log, within limits, so that a job that prints a lot does not delay its task.

The control loop and ``EvaluateOperator`` add the lines that they read, and call ``flush`` about once a second.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

LINES_PER_FLUSH = 1_000
MAX_LINES, MAX_BYTES = 50_000, 16 * 1024**2  # per try, without the last lines
LAST_LINES, LAST_BYTES = 1_000, 256 * 1024  # the last lines usually explain a failure
_MAX_WARNINGS = 100
_QUEUED_LINES, _QUEUED_BYTES = 10_000, 4 * 1024**2


class _Lines:
    """A queue of lines, with the sum of their lengths in bytes."""

    def __init__(self) -> None:
        self._lines: deque[tuple[str, int]] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: str, size: int) -> None:
        self._lines.append((line, size))
        self.size += size

    def pop(self) -> tuple[str, int]:
        line, size = self._lines.popleft()
        self.size -= size
        return line, size


class Output:
    """The lines between a job and the log: the next lines, which ``flush`` logs in order, and the newest lines.

    If lines arrive faster than ``flush`` logs them, those between the two are left out and counted. After the limits of
    a try, only the last lines are logged, at the end of the job.

    >>> output = Output(logging.getLogger("example"))
    >>> output.add("epoch 1")
    >>> output.flush()
    >>> list(output.last)
    ['epoch 1']
    """

    def __init__(self, log: logging.Logger | Any, prefix: str = "") -> None:
        self._log, self._prefix = log, prefix
        self._next, self._newest = _Lines(), _Lines()
        self._lines_left, self._warnings_left = MAX_LINES, _MAX_WARNINGS
        self._bytes_left = MAX_BYTES
        self._left_out_lines = self._left_out_bytes = 0
        self.last: deque[str] = deque(maxlen=20)

    @property
    def _is_limit_reached(self) -> bool:
        return self._lines_left <= 0 or self._bytes_left <= 0

    def add(self, line: str) -> None:
        """Queue a line. If the queue is full, leave out the oldest of the newest lines."""
        self.last.append(line)
        is_full = len(self._next) >= _QUEUED_LINES or self._next.size >= _QUEUED_BYTES or self._is_limit_reached
        if is_full or self._newest:
            self._add_newest(line, len(line.encode(errors="replace")))
        else:
            self._next.add(line, len(line.encode(errors="replace")))

    def warn(self, message: str) -> None:
        """Log a warning about a line. After 100 warnings, queue it like a line."""
        self._warnings_left -= 1
        if self._warnings_left >= 0:
            self._log.warning("%s%s", self._prefix, message)
        else:
            self.add(message)

    def flush(self, *, ended: bool = False) -> None:
        """Log at most 1,000 of the next lines; if the job has ``ended``, also its last lines."""
        was_reached = self._is_limit_reached
        for _ in range(min(len(self._next), LINES_PER_FLUSH)):
            if not self._is_limit_reached:
                self._write_next()
        if self._is_limit_reached and not was_reached:
            message = "%sThe job's output has reached %d lines or %d MiB: from here, only its last lines are logged"
            self._log.warning(message, self._prefix, MAX_LINES, MAX_BYTES // 1024**2)
        if ended or self._is_limit_reached:
            newest, self._newest = self._newest, _Lines()
            for lines in (self._next, newest):
                while lines:
                    self._add_newest(*lines.pop())
        if ended or not (self._next or self._is_limit_reached):
            self._report_left_out()
            self._next, self._newest = self._newest, _Lines()
        while ended and self._next:
            self._write_next()

    def _add_newest(self, line: str, size: int) -> None:
        newest = self._newest
        newest.add(line, size)
        while len(newest) > LAST_LINES or (newest.size > LAST_BYTES and len(newest) > 1):
            self._left_out_lines += 1
            self._left_out_bytes += newest.pop()[1]

    def _write_next(self) -> None:
        line, size = self._next.pop()
        self._lines_left -= 1
        self._bytes_left -= size
        self._log.info("%s%s", self._prefix, line)

    def _report_left_out(self) -> None:
        if self._left_out_lines:
            self._log.warning(
                "%s%d lines (%.1f MiB) of the job's output were left out here. Until the job is removed, the "
                "container's log keeps the newest 200 MB",
                self._prefix,
                self._left_out_lines,
                self._left_out_bytes / 1024**2,
            )
        self._left_out_lines = self._left_out_bytes = 0
