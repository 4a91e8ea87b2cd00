"""Measures the time for which a GPU computes for this process: by CUDA events, else by the host's clock.

Called by ``gpu_share``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol


class GpuTimer(Protocol):
    """Measures spans of work that training code launches on a GPU."""

    def begin(self) -> None:
        """Begin a span."""

    def end(self) -> None:
        """End the span, whose work the GPU may not have computed yet."""

    def wait(self) -> float:
        """Wait until all work is computed; return the seconds that the spans since the last call took on the GPU."""


class CudaTimer:
    """Measures by pairs of events on the current stream of torch, on CUDA and on ROCm.

    The host does not wait between two spans, so it can launch the next while the GPU computes.
    """

    def __init__(self) -> None:
        self._cuda: Any = sys.modules["torch"].cuda
        self._spans: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        """Record the event at which the span begins."""
        begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._spans.append((begin, end))

    def end(self) -> None:
        """Record the event at which the span ends."""
        self._spans[-1][1].record()

    def wait(self) -> float:
        """Wait for all streams of the GPU, and add up the spans."""
        self._cuda.synchronize()
        spans, self._spans = self._spans, []
        return sum(float(begin.elapsed_time(end)) for begin, end in spans) / 1000


class HostTimer:
    """Measures by the host's clock, for libraries that wait for the GPU in each step, and for training on the CPU."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = self._total_s = 0.0

    def begin(self) -> None:
        """Begin a span now."""
        self._began_s = self._clock()

    def end(self) -> None:
        """End the span now."""
        self._total_s += self._clock() - self._began_s

    def wait(self) -> float:
        """Return the sum of the spans, without waiting."""
        total_s, self._total_s = self._total_s, 0.0
        return total_s


def choose_timer(current: GpuTimer | None) -> GpuTimer:
    """Return the timer for the next spans: ``current`` if it still suits what this process computes on."""
    torch = sys.modules.get("torch")
    uses_cuda = torch is not None and torch.cuda.is_initialized()
    if current is not None and isinstance(current, CudaTimer) == uses_cuda:
        return current
    return CudaTimer() if uses_cuda else HostTimer()
