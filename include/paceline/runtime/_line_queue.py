"""A bounded queue of a job's lines, between the thread that reads its log and the control loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

QUEUE_BYTES = 64 * 1024**2  # `put` waits above this size; unread output remains in the engine's log


class LineQueue:
    """Lines in the order of their arrival.

    >>> queue = LineQueue()
    >>> queue.put(["epoch 1", "epoch 2"])
    >>> queue.take(), queue.take()
    (['epoch 1', 'epoch 2'], [])
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._closed = False

    def put(self, lines: Iterable[str]) -> None:
        """Add lines, and wait while the queue is too large and open."""
        with self._changed:
            for line in lines:
                self._lines.append(line)
                self._size += len(line)
            self._changed.wait_for(lambda: self._size <= QUEUE_BYTES or self._closed)

    def take(self) -> list[str]:
        """Return all lines, and remove them."""
        with self._changed:
            lines = list(self._lines)
            self._lines.clear()
            self._size = 0
            self._changed.notify_all()
        return lines

    def close(self) -> None:
        """Let no `put` wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
