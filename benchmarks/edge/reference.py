"""Measures the current speed of this machine's processors, on which the emulated devices run."""

from __future__ import annotations

import ctypes
import os
import time

from benchmarks.edge.fleet import DEVICES, SERVER

_MAX_AGE_S = 0.1
_IMAGES = 4
# M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc: reuse freed memory for the next batch, as a job does.
_MALLOC = ((-3, 2**30), (-1, 2**30))


class Reference:
    """Measures the CPU time of a fixed, training-like workload on the processor of an emulated machine."""

    def __init__(self) -> None:
        import torch
        from torch import nn

        libc = ctypes.CDLL(None)
        for parameter, value in _MALLOC:
            libc.mallopt(parameter, value)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
        self._images = torch.randn(_IMAGES, 3, 32, 32)
        self._processor = {name: place for name, (_, _, place) in {**DEVICES, "server": SERVER}.items()}
        self._last: dict[int, tuple[float, float]] = {}

    def __call__(self, machine: str) -> float:
        """Return the CPU seconds of the workload on a machine's processor."""
        processor = self._processor[machine]
        at_s, took_s = self._last.get(processor, (0.0, 0.0))
        if time.monotonic() - at_s > _MAX_AGE_S:
            allowed = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {processor})  # affects only this thread
            began_s = time.thread_time()
            self._model(self._images).sum().backward()
            took_s = time.thread_time() - began_s
            os.sched_setaffinity(0, allowed)
            self._last[processor] = time.monotonic(), took_s
        return took_s
