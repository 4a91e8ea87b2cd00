"""The free devices of a pool from now to the last deadline, and reservations of devices for jobs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

import numpy as np

from paceline.allocate._model import Node, Reservation
from paceline.allocate.on_time._spans import Spans
from paceline.allocate.on_time.curve import ROUNDING, Ints, SpeedUpCurve

_LEAST_WORK = 1e-300  # so that a job without work ends in a span in which it has devices

_Run = tuple[float, float, int]  # begin, end, and number of devices between them
_devices_of = itemgetter(2)


class Capacity:
    """Free devices in each span between now and the deadlines of all jobs.

    Parameters
    ----------
    node:
        The pool.
    now_s:
        The time in seconds.
    deadlines_s:
        Deadlines of all jobs; past deadlines are ignored.
    exact_s:
        Further times at which the number of free devices may change.

    Examples
    --------
    >>> from paceline.allocate import Node, Speeds
    >>> capacity = Capacity(Node("pool", 4), 0.0, [10.0, 20.0])
    >>> curve = SpeedUpCurve(Speeds.linear(4))
    >>> first = capacity.fit(curve, work=30.0, deadline_s=10.0)
    >>> first.devices_now, round(first.device_s, 3)
    (3, 30.0)
    >>> capacity.reserve(first)
    >>> [(round(end_s, 2), devices) for end_s, devices in capacity.fit(curve, work=45.0, deadline_s=20.0).runs]
    [(10.0, 1), (18.75, 4)]
    >>> capacity.fit(curve, work=51.0, deadline_s=20.0) is None
    True
    """

    def __init__(self, node: Node, now_s: float, deadlines_s: Iterable[float], exact_s: Iterable[float] = ()) -> None:
        later = [(time_s, number) for time_s, number in node.later if time_s > now_s]
        self._devices = node.devices + sum(number for _, number in later)
        self._spans = Spans(now_s, deadlines_s, [*exact_s, *(time_s for time_s, _ in later)])
        until_s = [(self._spans.last_end_s(time_s), number) for time_s, number in later]
        self._in_use = [Reservation((one,), 0.0, one[1]) for one in until_s]  # devices that can be allocated later
        # As long as each job keeps a constant number of devices, the sum of these numbers shows what fits. The free
        # devices of each span are computed only when a job does not fit beside this sum.
        self._unreserved = 0  # at most the number of free devices in each span
        self._reserved: list[Reservation] = []  # those that _free does not contain yet; each has one run
        self._free: Ints | None = None
        self._clear()

    def empty(self) -> Capacity:
        """Return the capacity of the pool in the same spans, without the reservations of jobs."""
        other = object.__new__(Capacity)
        other._devices, other._spans, other._in_use = self._devices, self._spans, self._in_use
        other._clear()
        return other

    def with_end(self, end_s: float) -> Capacity:
        """Return the capacity of the pool, without reservations, in spans of which one ends at ``end_s``."""
        other = self.empty()
        other._spans = self._spans.with_end(end_s)
        return other

    def _clear(self) -> None:
        self._unreserved = self._devices - sum(one.max_devices for one in self._in_use)
        self._reserved, self._free = list(self._in_use), None

    def fit(
        self,
        curve: SpeedUpCurve,
        work: float,
        deadline_s: float,
        held: int = 0,
        change_s: float = 0.0,
        min_devices: int = 0,
        wait_s: float = 0.0,
    ) -> Reservation | None:
        """Return the smallest reservation that meets the deadline; ``None`` if there is none.

        In each span the job uses ``Reservation.max_devices``, or else the largest useful number that is free. The
        reservation covers the last span entirely. Each change of the number, except a stop, costs ``change_s`` seconds
        without progress. As long as the number stays ``held``, the job makes no progress for ``wait_s`` seconds, the
        rest of the pause after its last change. ``deadline_s`` has to be one of the capacity's deadlines. The search
        skips numbers below ``min_devices``.
        """
        now_s, end_s = self._spans.now_s, self._spans.last_end_s(deadline_s)
        work = work * (1 - ROUNDING) or _LEAST_WORK
        lowest = bisect_left(curve.counts, min_devices) if min_devices else 0
        # Fewest devices that meet the deadline if that many are always free: after a change, or the current devices.
        moving_s = end_s - now_s - change_s
        first = bisect_left(curve.per_s, work / moving_s, lowest) if moving_s > 0 else len(curve.counts)
        if held and curve.speed_of.get(held, 0.0) * (end_s - now_s - wait_s) >= work:
            index = bisect_left(curve.counts, held)
            if lowest <= index < first and curve.counts[index] == held:
                first = index
        if first == len(curve.counts):
            return None
        count = curve.counts[first]
        if count <= self._unreserved:
            pause_s = wait_s if count == held else change_s
            ends_s = now_s + pause_s + work / curve.per_s[first]
            if ends_s > end_s:
                ends_s = end_s
            return Reservation(((ends_s, count),), count * (ends_s - now_s), count)
        runs = self._runs(curve, bisect_right(self._spans.ends_list_s, end_s))
        planned = _follow(runs, curve, count, work, held, change_s, wait_s)
        if planned is None:
            # More devices than are free in any span make no difference.
            counts = curve.counts[first + 1 : bisect_left(curve.counts, max(map(_devices_of, runs))) + 1]
            enough = bisect_left(counts, True, key=lambda count: _most_work(runs, curve, count) >= work)
            for count in counts[enough:]:
                planned = _follow(runs, curve, count, work, held, change_s, wait_s)
                if planned is not None:
                    break
        return planned

    def keep(
        self,
        last: Reservation,
        curve: SpeedUpCurve,
        work: float,
        deadline_s: float,
        held: int = 0,
        change_s: float = 0.0,
        wait_s: float = 0.0,
    ) -> Reservation | None:
        """Return what is left of an earlier reservation; ``None`` if it no longer meets the deadline.

        The ends of its runs, except the last, have to be among the deadlines of this capacity. Its devices may be
        reserved for others.
        """
        begin_s, runs, ends_s = self._spans.now_s, list[_Run](), self._spans.ends_list_s
        for end_s, number in last.runs:
            if end_s > begin_s and number in curve.speed_of:
                runs.append((begin_s, end_s, number))
                begin_s = end_s
        if not runs or begin_s != last.ends_s:
            return None
        until_s = min(ends_s[bisect_left(ends_s, begin_s)], self._spans.last_end_s(deadline_s))
        runs[-1] = (runs[-1][0], until_s, runs[-1][2])  # the last span is reserved entirely
        work = max(work * (1 - ROUNDING), _LEAST_WORK)
        return _follow(runs, curve, last.max_devices, work, held, change_s, wait_s)

    def extend(self, reservation: Reservation, seconds: float, deadline_s: float) -> Reservation | None:
        """Reserve a job's last devices for longer; ``None`` if other jobs have them or the deadline is earlier.

        Call it when all jobs are planned: a later ``fit`` need not see what it reserves.
        """
        last_s, number = reservation.runs[-1]
        longer_s = last_s + seconds
        if longer_s > self._spans.last_end_s(deadline_s):
            return None
        if self._unreserved < 0 or self._free is not None:  # otherwise each job can keep its devices for ever
            ends_s, free = self._spans.ends_list_s, self._free_devices()
            begin, end = bisect_left(ends_s, last_s) + 1, bisect_left(ends_s, longer_s) + 1
            if (free[begin:end] < number).any():
                return None
            free[begin:end] -= number
        return Reservation((*reservation.runs[:-1], (longer_s, number)), reservation.device_s, reservation.max_devices)

    def has(self, reservation: Reservation) -> bool:
        """Return whether the devices of a reservation are free."""
        if reservation.max_devices <= self._unreserved:
            return True
        begin, free = 0, self._free_devices()
        for end_s, number in reservation.runs:
            end = bisect_left(self._spans.ends_list_s, end_s) + 1
            if number and (free[begin:end] < number).any():
                return False
            begin = end
        return True

    @property
    def is_overbooked(self) -> bool:
        """Whether more devices are reserved than the pool has."""
        return bool((self._free_devices() < 0).any())

    def _runs(self, curve: SpeedUpCurve, spans: int) -> list[_Run]:
        """Return runs with the largest useful numbers of free devices in the first ``spans`` spans."""
        devices = curve.largest_up_to.take(self._free_devices()[:spans], mode="clip")
        last = (devices[1:] != devices[:-1]).nonzero()[0].tolist()
        last.append(spans - 1)
        begin_s, ends_s, runs = self._spans.now_s, self._spans.ends_list_s, []
        for index in last:
            end_s = ends_s[index]
            runs.append((begin_s, end_s, devices.item(index)))
            begin_s = end_s
        return runs

    def ends_s(self, curve: SpeedUpCurve, work: float, change_s: float = 0.0) -> dict[int, float]:
        """Return a job's end time for each maximum number of devices with which it ends.

        It always ends if all devices are free after the last deadline.
        """
        ends_s_by_count = {}
        runs = self._runs(curve, len(self._spans.ends_s))
        for count in curve.counts:
            if count > self._devices:
                break
            planned = _follow(runs, curve, count, max(work, _LEAST_WORK), 0, change_s, 0.0)
            if planned is not None:
                ends_s_by_count[count] = planned.ends_s
        return ends_s_by_count

    def reserve(self, reservation: Reservation) -> None:
        """Subtract the devices of a reservation from the free devices."""
        self._unreserved -= reservation.max_devices
        if self._free is None and len(reservation.runs) == 1:
            self._reserved.append(reservation)
        else:
            self._add(reservation, -1)

    def release(self, reservation: Reservation) -> None:
        """Add the devices of a reservation to the free devices."""
        self._free_devices()
        self._unreserved += reservation.max_devices
        self._add(reservation, 1)

    def _add(self, reservation: Reservation, sign: int) -> None:
        begin, free = 0, self._free_devices()
        for end_s, number in reservation.runs:
            end = bisect_left(self._spans.ends_list_s, end_s) + 1
            if number:
                span = free[begin:end]
                span += sign * number
            begin = end

    def _free_devices(self) -> Ints:
        if self._free is None:
            ends_s = self._spans.ends_s
            runs = [one.runs[0] for one in self._reserved]
            last = ends_s.searchsorted([end_s for end_s, _ in runs])
            ending = np.bincount(last, [number for _, number in runs], len(ends_s)).astype(np.int64)
            self._free = self._devices - ending[::-1].cumsum()[::-1]
        return self._free


def _most_work(runs: Iterable[_Run], curve: SpeedUpCurve, count: int) -> float:
    """Return the work done on at most ``count`` devices if changes cost nothing."""
    done, speed_of = 0.0, curve.speed_of
    for begin_s, end_s, free in runs:
        done += speed_of[free if free < count else count] * (end_s - begin_s)
    return done


def _follow(
    runs: Sequence[_Run], curve: SpeedUpCurve, count: int, work: float, held: int, change_s: float, wait_s: float
) -> Reservation | None:
    """Return the reservation of at most ``count`` devices that completes the work; ``None`` if it ends too late."""
    taken: list[tuple[float, int]] = []
    done, device_s, speed_of = 0.0, 0.0, curve.speed_of
    now, moves_s = held, wait_s + runs[0][0]  # the current number of devices, and the end of the pause after its change
    for begin_s, end_s, free in runs:
        number = free if free < count else count
        if number == now and taken:
            taken.pop()
        elif number != now:
            now, moves_s = number, begin_s + change_s
        speed, from_s = speed_of[number], moves_s if moves_s > begin_s else begin_s
        if speed and end_s > from_s:
            added = speed * (end_s - from_s)
            if done + added >= work:
                job_end_s = min(from_s + (work - done) / speed, end_s)
                taken.append((job_end_s, number))
                return Reservation(tuple(taken), device_s + number * (job_end_s - begin_s), count)
            done += added
        taken.append((end_s, number))
        device_s += number * (end_s - begin_s)
    return None
