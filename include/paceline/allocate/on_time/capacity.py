"""The devices of a pool that nobody has been given yet, from now to the last deadline, and what fits into them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, inf, log2

import numpy as np
from numpy.typing import NDArray

from paceline.allocate.model import Speeds

Whole = NDArray[np.int64]
Real = NDArray[np.float64]

_FINE = 256  # so many deadlines are told apart exactly; beyond, the rest is put into as many groups
_LEAST = 64  # spans of time, however few deadlines there are
_ROUNDING = 1e-9


class SpeedUpCurve:
    """The speeds of a job as arrays, from none at all to the number of devices that makes it fastest."""

    def __init__(self, speeds: Speeds) -> None:
        self.counts: Whole = np.array((0, *speeds.useful), dtype=np.int64)
        self.per_s: Real = np.array([0.0, *(speeds.at(count) for count in speeds.useful)])
        # Plain copies: one number of an array costs ten times as much as one of a list.
        self.options = list(zip(self.counts.tolist()[1:], self.per_s.tolist()[1:], strict=True))
        self.speed_of = dict([(0, 0.0), *self.options])
        corners = [(0.0, 0.0)]  # of the lower hull of devices over speed: mixing two counts in time beats one between
        for count, speed in self.options:
            while len(corners) > 1 and _above(corners[-2], corners[-1], (speed, count)):
                corners.pop()
            corners.append((speed, float(count)))
        self._hull_speeds, self._hull_counts = zip(*corners, strict=True)

    def least_device_s(self, work: float, within_s: float) -> float:
        """Device seconds without which the work cannot be done in that time; infinite if it cannot at all."""
        rate = work / within_s if within_s > 0 else float("inf")
        if rate > self._hull_speeds[-1] * (1 + _ROUNDING):
            return float("inf")
        return within_s * float(np.interp(rate, self._hull_speeds, self._hull_counts))

    def next_count(self, count: int) -> int | None:
        """The next larger number of devices that is worth having."""
        place = int(np.searchsorted(self.counts, count, side="right"))
        return int(self.counts[place]) if place < len(self.counts) else None


def _above(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    slope = (last[1] - first[1]) / (last[0] - first[0])
    return middle[1] >= first[1] + slope * (middle[0] - first[0])


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices for one job, in each span of time from now on until it is done.

    ``most``: what it has where so many are free; ``changes_s``: when it first has another number of them.
    """

    devices: Whole
    device_s: float
    most: int
    changes_s: float

    @property
    def now(self) -> int:
        """How many it has at once."""
        return int(self.devices[0])


class Capacity:
    """What is free in each span of time between now and the deadlines of all jobs.

    Parameters
    ----------
    devices:
        Of the whole pool.
    now_s:
        The time.
    deadlines_s:
        Of all jobs; those that have passed do not count.

    Examples
    --------
    >>> capacity = Capacity(4, 0.0, [10.0, 20.0])
    >>> curve = SpeedUpCurve(Speeds.linear(4))
    >>> first = capacity.fit(curve, work=30.0, deadline_s=10.0)
    >>> first.now, round(first.device_s, 3)
    (3, 30.0)
    >>> capacity.take(first)
    >>> second = capacity.fit(curve, work=45.0, deadline_s=20.0)   # one now, and all of them later
    >>> second.now, int(second.devices[-1])
    (1, 4)
    >>> capacity.fit(curve, work=51.0, deadline_s=20.0) is None
    True
    """

    def __init__(self, devices: int, now_s: float, deadlines_s: Iterable[float]) -> None:
        ends = sorted({deadline_s for deadline_s in deadlines_s if deadline_s > now_s})
        if len(ends) > 2 * _FINE:
            late = ends[_FINE:]
            ends = ends[:_FINE] + late[:: -(-len(late) // _FINE)]
        elif ends and (step := (ends[-1] - now_s) / _LEAST):  # zero if the last deadline is a rounding error ahead
            # Jobs can follow each other on the same devices only from one span to the next: so there are enough. On the
            # clock, and in steps that halve, so that what was planned to end with a span can still do so later.
            step_s = 2.0 ** floor(log2(step))
            first, last = floor(now_s / step_s) + 1, ceil(ends[-1] / step_s)
            ends = sorted({*ends, *(step_s * number for number in range(first, last))})
        self._ends: Real = np.array(ends, dtype=np.float64)
        self._lengths: Real = np.diff(self._ends, prepend=now_s)
        self._free: Whole = np.full(len(ends), devices, dtype=np.int64)
        self._now_s = now_s
        self._devices = devices

    def fit(
        self, curve: SpeedUpCurve, work: float, deadline_s: float, held: int = 0, change_s: float = 0.0, least: int = 0
    ) -> Reservation | None:
        """The fewest devices with which a job is done in time, in what is free; ``None`` if it cannot be.

        A job keeps to that number, or to the largest below it that is free. The last span that it needs is its own to
        the end. ``change_s`` is how long it stands still to get another number than ``held``. Fewer than ``least`` are
        not considered.
        """
        spans = int(np.searchsorted(self._ends, deadline_s * (1 + _ROUNDING), side="right"))
        if spans == 0:
            return None
        free, lengths = self._free[:spans], self._lengths[:spans]
        room_s = float(self._ends[spans - 1]) - self._now_s
        for count, speed in curve.options:
            wanted = (work + (speed * change_s if count != held else 0.0)) * (1 - _ROUNDING)
            if speed * room_s < wanted or count < least:
                continue
            places = np.searchsorted(curve.counts, np.minimum(free, count), side="right") - 1
            done = np.cumsum(curve.per_s[places] * lengths)
            if done[-1] >= wanted:
                needed = int(np.searchsorted(done, wanted)) + 1
                devices = curve.counts[places[:needed]]
                return Reservation(devices, float(devices @ lengths[:needed]), count, self._changes_s(devices))
        return None

    def _changes_s(self, devices: Whole) -> float:
        other = np.flatnonzero(devices != devices[0])
        return float(self._ends[other[0] - 1]) if len(other) else inf

    def ends_s(self, curve: SpeedUpCurve, work: float, change_s: float = 0.0) -> dict[int, float]:
        """When a job would be done on up to so many devices, in what is free; after the last deadline, all are."""
        found = {}
        for count, speed in curve.options:
            if count > self._devices:
                break
            wanted = work + speed * change_s
            places = np.searchsorted(curve.counts, np.minimum(self._free, count), side="right") - 1
            speeds = curve.per_s[places]
            done = np.cumsum(speeds * self._lengths)
            span = int(np.searchsorted(done, wanted * (1 - _ROUNDING)))
            if span < len(done):
                found[count] = float(self._ends[span] - (done[span] - wanted) / speeds[span])
            else:
                done_by_then, last_s = (float(done[-1]), float(self._ends[-1])) if len(done) else (0.0, self._now_s)
                found[count] = last_s + (wanted - done_by_then) / speed
        return found

    def take(self, reservation: Reservation) -> None:
        """Reserve these devices."""
        self._free[: len(reservation.devices)] -= reservation.devices

    def give_back(self, reservation: Reservation) -> None:
        """They are free again."""
        self._free[: len(reservation.devices)] += reservation.devices
