"""Opens the gauges of a task, which measure machines, and closes them also when the task is stopped."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from paceline.errors import TaskStoppedError

if TYPE_CHECKING:
    from paceline.fleet.usage import MachineGauge


class Gauges:
    """The gauges that a task has open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[MachineGauge] = []
        self._is_stopped = False

    @contextlib.contextmanager
    def opened(self, make: Callable[[], MachineGauge]) -> Iterator[MachineGauge]:
        """Open a gauge, and close it at the end. Raises TaskStoppedError after ``stop``."""
        gauge = make()
        with self._lock:
            self._open.append(gauge)
            is_stopped = self._is_stopped
        try:
            if is_stopped:
                raise TaskStoppedError("the task was stopped")
            yield gauge
        finally:
            gauge.close()

    def stop(self) -> None:
        """Close all gauges at the same time, because a stopped task has little time."""
        with self._lock:
            self._is_stopped = True
            gauges = list(self._open)
        with ThreadPoolExecutor(max(len(gauges), 1)) as pool:
            list(pool.map(lambda gauge: gauge.close(), gauges))
