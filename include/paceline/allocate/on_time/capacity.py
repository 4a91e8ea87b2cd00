"""The free devices of a pool from now to the last deadline, and reservations of devices for jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, floor, inf, log2

import numpy as np
from numpy.typing import NDArray

from paceline.allocate._model import Speeds

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_EXACT_DEADLINES = 256  # number of early deadlines that each end a span; later deadlines share at most 256 spans
# With few deadlines: minimum number of spans before the first deadline, and in each doubling of the time after it. So a
# job that is due in a month leaves the spans of jobs that are due in an hour short.
_SPANS_BEFORE_FIRST, _SPANS_PER_DOUBLING, _MAX_DOUBLINGS = 64, 16, 16
_ROUNDING = 1e-9


class SpeedUpCurve:
    """The speeds of a job as arrays, from 0 devices to the fastest number of devices."""

    def __init__(self, speeds: Speeds) -> None:
        self.counts: Ints = np.array((0, *speeds.useful), dtype=np.int64)
        self.per_s: Floats = np.array([0.0, *(speeds.at(count) for count in speeds.useful)])
        # Copies of the arrays as lists: reading one element of an array takes ten times as long.
        self.options = list(zip(self.counts.tolist()[1:], self.per_s.tolist()[1:], strict=True))
        self.speed_of = dict([(0, 0.0), *self.options])
        # Lower hull of devices over speed: two alternating counts may use less than a count between them.
        corners = [(0.0, 0.0)]
        for count, speed in self.options:
            while len(corners) > 1 and _is_above_chord(corners[-2], corners[-1], (speed, count)):
                corners.pop()
            corners.append((speed, float(count)))
        self._hull_speeds, self._hull_counts = zip(*corners, strict=True)

    def min_device_s(self, work: float, within_s: float) -> float:
        """Return the fewest device seconds that complete ``work`` within ``within_s``; infinite if impossible."""
        rate = work / within_s if within_s > 0 else float("inf")
        if rate > self._hull_speeds[-1] * (1 + _ROUNDING):
            return float("inf")
        return within_s * float(np.interp(rate, self._hull_speeds, self._hull_counts))

    def next_count(self, count: int) -> int | None:
        """Return the next larger useful number of devices; ``None`` after the largest."""
        index = int(np.searchsorted(self.counts, count, side="right"))
        return int(self.counts[index]) if index < len(self.counts) else None


def _is_above_chord(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    slope = (last[1] - first[1]) / (last[0] - first[0])
    return middle[1] >= first[1] + slope * (middle[0] - first[0])


def _added_ends(now_s: float, first_s: float, last_s: float) -> Iterator[float]:
    """Yield ends of spans whose length grows with the time from now.

    They are multiples of powers of two, so that later plans have the same ends.
    """
    until_s, spans = max(first_s, now_s + (last_s - now_s) / 2**_MAX_DOUBLINGS), _SPANS_BEFORE_FIRST
    begin_s = now_s
    while begin_s < last_s:
        if length_s := (until_s - now_s) / spans:  # 0 if the deadline differs from now only by a rounding error
            step_s = 2.0 ** floor(log2(length_s))
            yield from (step_s * number for number in range(floor(begin_s / step_s) + 1, ceil(until_s / step_s)))
        begin_s, until_s, spans = until_s, min(now_s + 2 * (until_s - now_s), last_s), 2 * _SPANS_PER_DOUBLING


@dataclass(frozen=True, slots=True)
class Reservation:
    """Devices reserved for one job in each span from now until the job ends.

    The job uses ``max_devices`` in spans with that many free devices; ``changes_s`` is when their number first changes.
    """

    devices: Ints
    device_s: float
    max_devices: int
    changes_s: float

    @property
    def devices_now(self) -> int:
        """Devices in the first span."""
        return int(self.devices[0])


class Capacity:
    """Free devices in each span between now and the deadlines of all jobs.

    Parameters
    ----------
    devices:
        Number of devices of the pool.
    now_s:
        The time in seconds.
    deadlines_s:
        Deadlines of all jobs; past deadlines are ignored.

    Examples
    --------
    >>> capacity = Capacity(4, 0.0, [10.0, 20.0])
    >>> curve = SpeedUpCurve(Speeds.linear(4))
    >>> first = capacity.fit(curve, work=30.0, deadline_s=10.0)
    >>> first.devices_now, round(first.device_s, 3)
    (3, 30.0)
    >>> capacity.reserve(first)
    >>> second = capacity.fit(curve, work=45.0, deadline_s=20.0)   # one device now, all four later
    >>> second.devices_now, int(second.devices[-1])
    (1, 4)
    >>> capacity.fit(curve, work=51.0, deadline_s=20.0) is None
    True
    """

    def __init__(self, devices: int, now_s: float, deadlines_s: Iterable[float]) -> None:
        ends = sorted({deadline_s for deadline_s in deadlines_s if deadline_s > now_s})
        if len(ends) > 2 * _EXACT_DEADLINES:
            late = ends[_EXACT_DEADLINES:]
            ends = ends[:_EXACT_DEADLINES] + late[:: -(-len(late) // _EXACT_DEADLINES)]
        elif ends:
            # Devices move between jobs only at ends of spans, so add spans if deadlines are few.
            ends = sorted({*ends, *_added_ends(now_s, ends[0], ends[-1])})
        self._ends: Floats = np.array(ends, dtype=np.float64)
        self._lengths: Floats = np.diff(self._ends, prepend=now_s)
        self._free: Ints = np.full(len(ends), devices, dtype=np.int64)
        self._now_s = now_s
        self._devices = devices

    def fit(
        self,
        curve: SpeedUpCurve,
        work: float,
        deadline_s: float,
        held: int = 0,
        change_s: float = 0.0,
        min_devices: int = 0,
    ) -> Reservation | None:
        """Return the smallest reservation that meets the deadline; ``None`` if there is none.

        In each span the job uses ``Reservation.max_devices``, or else the largest useful number that is free. The
        reservation covers the last span entirely. Every number other than ``held`` costs ``change_s`` seconds without
        progress. The search skips numbers below ``min_devices``.
        """
        spans = int(np.searchsorted(self._ends, deadline_s * (1 + _ROUNDING), side="right"))
        if spans == 0:
            return None
        free, lengths = self._free[:spans], self._lengths[:spans]
        room_s = float(self._ends[spans - 1]) - self._now_s
        for count, speed in curve.options:
            wanted = (work + (speed * change_s if count != held else 0.0)) * (1 - _ROUNDING)
            if speed * room_s < wanted or count < min_devices:
                continue
            sizes = np.searchsorted(curve.counts, np.minimum(free, count), side="right") - 1
            done = np.cumsum(curve.per_s[sizes] * lengths)
            if done[-1] >= wanted:
                needed = int(np.searchsorted(done, wanted)) + 1
                devices = curve.counts[sizes[:needed]]
                return Reservation(devices, float(devices @ lengths[:needed]), count, self._first_change_s(devices))
        return None

    def _first_change_s(self, devices: Ints) -> float:
        other = np.flatnonzero(devices != devices[0])
        return float(self._ends[other[0] - 1]) if len(other) else inf

    def ends_s(self, curve: SpeedUpCurve, work: float, change_s: float = 0.0) -> dict[int, float]:
        """Return the end time of a job for each maximum number of devices; after the last deadline, all are free."""
        ends_s_by_count = {}
        for count, speed in curve.options:
            if count > self._devices:
                break
            wanted = work + speed * change_s
            sizes = np.searchsorted(curve.counts, np.minimum(self._free, count), side="right") - 1
            speeds = curve.per_s[sizes]
            done = np.cumsum(speeds * self._lengths)
            span = int(np.searchsorted(done, wanted * (1 - _ROUNDING)))
            if span < len(done):
                ends_s_by_count[count] = float(self._ends[span] - (done[span] - wanted) / speeds[span])
            else:
                done_by_then, last_s = (float(done[-1]), float(self._ends[-1])) if len(done) else (0.0, self._now_s)
                ends_s_by_count[count] = last_s + (wanted - done_by_then) / speed
        return ends_s_by_count

    def reserve(self, reservation: Reservation) -> None:
        """Subtract the devices of a reservation from the free devices."""
        self._free[: len(reservation.devices)] -= reservation.devices

    def release(self, reservation: Reservation) -> None:
        """Add the devices of a reservation to the free devices."""
        self._free[: len(reservation.devices)] += reservation.devices
