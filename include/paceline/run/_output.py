"""Forwards a job's output to the task's log, a limited number of lines per control step to avoid delays."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

_LINES_PER_STEP = 1_000
_MAX_QUEUED = 200_000


class Output:
    """A queue of lines between the job and the log.

    >>> output = Output(logging.getLogger("example"))
    >>> output.add("epoch 1")
    >>> output.flush()
    >>> list(output.last)
    ['epoch 1']
    """

    def __init__(self, log: logging.Logger | Any) -> None:
        self._log = log
        self._queue: deque[str] = deque()
        self._dropped = 0
        self.last: deque[str] = deque(maxlen=20)

    def add(self, line: str) -> None:
        """Queue a line, or count it as dropped if 200,000 lines are already queued."""
        if len(self._queue) < _MAX_QUEUED:
            self._queue.append(line)
        else:
            self._dropped += 1

    def flush(self, *, all_lines: bool = False) -> None:
        """Log at most 1,000 queued lines, or all lines if ``all_lines`` is true."""
        for _ in range(len(self._queue) if all_lines else min(len(self._queue), _LINES_PER_STEP)):
            line = self._queue.popleft()
            self.last.append(line)
            self._log.info("%s", line)
        if self._dropped and not self._queue:
            self._log.warning("%d lines of output were dropped", self._dropped)
            self._dropped = 0
