"""The speed-up curve of a job in the forms that planning needs; plans, bounds and admission checks use it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from paceline.allocate._speeds import Speeds

ROUNDING = 1e-9
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class SpeedUpCurve:
    """The speeds of a job, from the fewest devices to the fastest number of devices.

    ``counts`` are the numbers of devices on which the job is faster than on fewer devices, ``per_s`` the speeds on
    them, and ``speed_of`` the speeds on all allowed numbers, including 0. The job reaches these speeds with a
    probability of ``confidence``. ``expected`` is the curve of the most likely speeds.
    """

    def __init__(self, speeds: Speeds, confidence: float = 0.5) -> None:
        likely, speeds = speeds, speeds.cautious(confidence)
        self.expected = self if speeds is likely else SpeedUpCurve(likely)
        self.counts = speeds.useful
        self.speed_of = {0: 0.0, **dict(zip(speeds.counts, speeds.per_s, strict=True))}
        self.per_s = [self.speed_of[count] for count in self.counts]

    @cached_property
    def largest_up_to(self) -> Ints:
        """The largest of ``counts`` that is at most 0, 1, 2, ... devices."""
        return np.repeat((0, *self.counts), np.diff((0, *self.counts, self.counts[-1] + 1)))

    @cached_property
    def _hull(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower hull of devices over speed: two alternating counts may use less than a count between them."""
        corners = [(0.0, 0.0)]
        for count, speed in zip(self.counts, self.per_s, strict=True):
            while len(corners) > 1 and _is_above_chord(corners[-2], corners[-1], (speed, count)):
                corners.pop()
            corners.append((speed, float(count)))
        speeds, counts = zip(*corners, strict=True)
        return speeds, counts

    def is_fast_enough(self, work: float, within_s: float) -> bool:
        """Return whether the fastest number of devices completes ``work`` within ``within_s``."""
        return within_s > 0 and work / within_s <= self.per_s[-1] * (1 + ROUNDING)

    def min_device_s(self, work: float, within_s: float) -> float:
        """Return the fewest device seconds that complete ``work`` within ``within_s``; infinite if impossible."""
        if not self.is_fast_enough(work, within_s):
            return inf
        speeds, counts = self._hull
        rate = work / within_s
        right = min(max(bisect_left(speeds, rate), 1), len(speeds) - 1)
        slope = (counts[right] - counts[right - 1]) / (speeds[right] - speeds[right - 1])
        return within_s * min(counts[right - 1] + slope * (rate - speeds[right - 1]), counts[-1])

    def next_count(self, count: int) -> int | None:
        """Return the next larger useful number of devices; ``None`` after the largest."""
        index = bisect_right(self.counts, count)
        return self.counts[index] if index < len(self.counts) else None


def _is_above_chord(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    slope = (last[1] - first[1]) / (last[0] - first[0])
    return middle[1] >= first[1] + slope * (middle[0] - first[0])
