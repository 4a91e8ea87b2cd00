"""The speed of a job on each number of devices, and how exactly it is known."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import exp, isfinite, log2
from operator import lt
from statistics import NormalDist
from typing import Any, TypeVar

from paceline.errors import InvalidInputError

_Curve = TypeVar("_Curve")


@dataclass(frozen=True)
class Speeds:
    """Speed of a job for each allowed device count of one kind.

    Parameters
    ----------
    counts:
        Allowed device counts, ascending.
    per_s:
        Work per second for each of ``counts``, in the unit of ``ClusterJob.work``.
    sd:
        Standard deviation of each of ``per_s``, as a fraction of it; errors of the estimated work count as errors of
        the speed. Empty if all speeds are exact.

    Examples
    --------
    >>> speeds = Speeds.doubling_efficiency(8)
    >>> speeds.counts, round(speeds.at(4), 2)
    ((1, 2, 4, 8), 2.56)
    >>> speeds.largest_count(7)
    4
    """

    counts: tuple[int, ...]
    per_s: tuple[float, ...]
    sd: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.counts or not all(map(lt, self.counts, self.counts[1:])) or self.counts[0] < 1:
            raise InvalidInputError("counts", self.counts, "ascending numbers of devices, each 1 or more")
        if len(self.per_s) != len(self.counts) or min(self.per_s) <= 0 or not isfinite(sum(self.per_s)):
            raise InvalidInputError("per_s", self.per_s, f"{len(self.counts)} positive numbers")
        if self.sd and (len(self.sd) != len(self.counts) or min(self.sd) < 0 or not isfinite(sum(self.sd))):
            raise InvalidInputError("sd", self.sd, f"{len(self.counts)} numbers of at least 0, or none")

    @classmethod
    def doubling_efficiency(cls, max_devices: int, efficiency: float = 0.8, base: float = 1.0) -> Speeds:
        """Return the curve k · 0.8^log2(k) of ModelArts (figure 6): each doubling of k cuts efficiency by a fifth."""
        if max_devices < 1:
            raise InvalidInputError("max_devices", max_devices, "1 or more devices")
        counts = tuple(2**power for power in range(int(log2(max_devices)) + 1))
        return cls(counts, tuple(base * count * efficiency ** log2(count) for count in counts))

    @classmethod
    def linear(cls, max_devices: int, base: float = 1.0) -> Speeds:
        """Return a linear speed-up curve; every number of devices up to ``max_devices`` is allowed."""
        return cls(tuple(range(1, max_devices + 1)), tuple(base * count for count in range(1, max_devices + 1)))

    @cached_property
    def _speed_by_count(self) -> dict[int, float]:
        return dict(zip(self.counts, self.per_s, strict=True))

    def at(self, devices: int) -> float:
        """Return the work per second on ``devices`` devices, which has to be an allowed count or 0."""
        if devices == 0:
            return 0.0
        try:
            return self._speed_by_count[devices]
        except KeyError:
            raise InvalidInputError("devices", devices, f"one of {self.counts}") from None

    def largest_count(self, devices: int) -> int:
        """Return the largest allowed device count up to ``devices``; 0 if there is none."""
        index = bisect_right(self.counts, devices)
        return self.counts[index - 1] if index else 0

    def cautious(self, confidence: float) -> tuple[float, ...]:
        """Return the speeds that the job reaches with a probability of ``confidence``, if errors are log-normal.

        >>> [round(speed, 2) for speed in Speeds((1, 2), (1.0, 2.0), sd=(0.0, 0.1)).cautious(0.9)]
        [1.0, 1.76]
        """
        if confidence == 0.5 or not any(self.sd):
            return self.per_s
        deviations = -_deviations(confidence)
        return tuple([speed * exp(deviations * sd) for speed, sd in zip(self.per_s, self.sd, strict=True)])

    @cached_property
    def _derived(self) -> dict[object, Any]:
        return {}

    def derive(self, make: Callable[..., _Curve], *arguments: float) -> _Curve:
        """Return ``make(self, *arguments)``, kept as long as this object: what a policy needs of the speeds to plan.

        >>> speeds = Speeds((1, 2), (1.0, 2.0), sd=(0.1, 0.1))
        >>> speeds.derive(Speeds.cautious, 0.9) is speeds.derive(Speeds.cautious, 0.9)
        True
        """
        key = (make, *arguments)
        curve: _Curve | None = self._derived.get(key)
        if curve is None:
            curve = self._derived[key] = make(self, *arguments)
        return curve

    @cached_property
    def useful(self) -> tuple[int, ...]:
        """The allowed device counts on which the job is faster than on every smaller number."""
        return useful(self.counts, self.per_s)

    @cached_property
    def fastest(self) -> int:
        """The smallest number of devices with the highest speed."""
        return self.useful[-1]


def useful(counts: tuple[int, ...], per_s: Sequence[float]) -> tuple[int, ...]:
    """Return the device counts with a higher speed than every smaller number."""
    if all(map(lt, per_s, per_s[1:])):
        return counts
    best, chosen = 0.0, []
    for count, speed in zip(counts, per_s, strict=True):
        if speed > best:
            best = speed
            chosen.append(count)
    return tuple(chosen)


@cache
def _deviations(confidence: float) -> float:
    """Return how many standard deviations below its mean a normal value is with a probability of ``confidence``."""
    return NormalDist().inv_cdf(confidence)
