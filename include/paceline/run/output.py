"""The job's own prints on their way to the task's log, in portions, so that a flood of them never holds up control."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

_LINES_A_STEP = 1_000
_MOST_WAITING = 200_000


class Output:
    """A queue of lines between the job and the log.

    >>> output = Output(logging.getLogger("example"))
    >>> output.take("epoch 1")
    >>> output.flush()
    >>> list(output.last)
    ['epoch 1']
    """

    def __init__(self, log: logging.Logger | Any) -> None:
        self._log = log
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self.last: deque[str] = deque(maxlen=20)

    def take(self, line: str) -> None:
        """Queue one line; beyond 200,000 waiting lines the newest are only counted."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(line)
        else:
            self._dropped += 1

    def flush(self, *, everything: bool = False) -> None:
        """Log what waits, at most 1,000 lines unless ``everything``."""
        for _ in range(len(self._waiting) if everything else min(len(self._waiting), _LINES_A_STEP)):
            line = self._waiting.popleft()
            self.last.append(line)
            self._log.info("%s", line)
        if self._dropped and not self._waiting:
            self._log.warning("%d more lines of output were left out", self._dropped)
            self._dropped = 0
