"""The speed-up curve of a job in the forms that planning needs; plans, bounds and admission checks use it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from paceline.allocate._speeds import Speeds, useful

ROUNDING = 1e-9
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class SpeedUpCurve:
    """The speeds of a job, from the fewest devices to the fastest number of devices.

    ``counts`` are the numbers of devices on which the job is faster than on fewer devices, and ``per_s`` the speeds on
    them, which the job reaches with a probability of ``confidence``.
    """

    def __init__(self, speeds: Speeds, confidence: float = 0.5) -> None:
        reached = speeds.cautious(confidence)
        self._expected = None if reached is speeds.per_s else speeds.derive(SpeedUpCurve, 0.5)
        self._allowed = speeds.counts, reached
        self.counts = useful(speeds.counts, reached)
        self.per_s = reached
        if self.counts is not speeds.counts:
            self.per_s = tuple([self.speed_of[count] for count in self.counts])

    @property
    def expected(self) -> SpeedUpCurve:
        """The curve of the most likely speeds."""
        return self._expected or self

    @cached_property
    def speed_of(self) -> dict[int, float]:
        """The speeds on all allowed numbers of devices, including 0."""
        counts, reached = self._allowed
        return dict(zip((0, *counts), (0.0, *reached), strict=True))

    @cached_property
    def largest_up_to(self) -> Ints:
        """The largest of ``counts`` that is at most 0, 1, 2, ... devices."""
        return np.repeat((0, *self.counts), np.diff((0, *self.counts, self.counts[-1] + 1)))

    @cached_property
    def _hull(self) -> tuple[list[float], list[float]]:
        """Lower hull of devices over speed: two alternating counts may use less than a count between them."""
        speeds, counts = [0.0], [0.0]
        for speed, count in zip(self.per_s, self.counts, strict=True):
            while len(speeds) > 1 and (counts[-1] - counts[-2]) * (speed - speeds[-2]) >= (count - counts[-2]) * (
                speeds[-1] - speeds[-2]
            ):  # the last corner is above the line from the one before it to the new one
                del speeds[-1], counts[-1]
            speeds.append(speed)
            counts.append(float(count))
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
