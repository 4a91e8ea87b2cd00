"""The devices to allocate now: the reservations of the planned jobs, and the spare devices, which speed up jobs."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from paceline.allocate.on_time.job_case import JobCase

_MIN_BENEFIT = 2.0  # minimum time saved by a change, relative to its cost
# A waiting job takes the devices of a running one only if its response ratio is this many times as high, so that errors
# in the estimates of two similar jobs do not let them preempt each other.
_PREEMPTS = 2.0


def distribute(planned: Sequence[JobCase], late: Sequence[JobCase], devices: int, now_s: float) -> dict[str, int]:
    """Return the current devices of each job: its reservation, and a share of the spare devices."""
    devices_of = {case.job.name: case.planned.devices_now for case in planned if case.planned is not None}
    spare = devices - sum(devices_of.values())
    for case in planned:  # shrinking a job that will grow again soon costs two changes
        more = case.held - devices_of[case.job.name]
        if 0 < more <= spare and case.held in case.curve.counts:
            devices_of[case.job.name] += more
            spare -= more
    by_rank = sorted(late, key=lambda case: _rank(case, now_s), reverse=True)
    reserved = _MostReserved(planned, now_s)
    taken = 0
    for case in by_rank:
        keeps = case.keeps_until_s > now_s and case.held in case.curve.counts
        count = case.held if keeps else case.curve.counts[0]
        if count <= spare and (case.held or count + taken <= devices - reserved.within(case.min_run_s)):
            devices_of[case.job.name] = count
            spare, taken = spare - count, taken + count
    for case in by_rank:
        more = case.held - devices_of.get(case.job.name, case.held)
        if 0 < more <= spare and case.held in case.curve.counts:
            devices_of[case.job.name] += more
            spare -= more
    return _distribute_spare(devices_of, [*(case for case in planned if case.may_grow), *late], spare)


def _rank(case: JobCase, now_s: float) -> float:
    if case.keeps_until_s > now_s:
        return inf
    return case.response_ratio(now_s) * (_PREEMPTS if case.held else 1.0)


class _MostReserved:
    """The most devices that planned jobs need within a time from now."""

    def __init__(self, planned: Sequence[JobCase], now_s: float) -> None:
        self._reservations = [case.planned for case in planned if case.planned is not None]
        self._now_s = now_s
        self._known: dict[float, int] = {}

    def within(self, seconds: float) -> int:
        if seconds not in self._known:
            until_s = self._now_s + seconds
            self._known[seconds] = sum(one.most_devices(until_s) for one in self._reservations)
        return self._known[seconds]


def _distribute_spare(devices_of: dict[str, int], cases: Sequence[JobCase], spare: int) -> dict[str, int]:
    """Add spare devices to the jobs that gain the most speed per device."""
    if spare <= 0:
        return devices_of
    counts = [devices_of.get(case.job.name, 0) for case in cases]
    gains = [
        gain
        for index, case in enumerate(cases)
        if (case.planned is not None or counts[index]) and (gain := _gain(case, index, counts[index]))
    ]
    heapify(gains)
    while gains and spare > 0:
        _, index, count = heappop(gains)
        more = count - counts[index]
        if more <= spare:
            counts[index] = devices_of[cases[index].job.name] = count
            spare -= more
            gain = _gain(cases[index], index, count)
            if gain is not None:
                heappush(gains, gain)
    return devices_of


def _gain(case: JobCase, index: int, count: int) -> tuple[float, int, int] | None:
    """Return a heap entry: minus the relative gain per added device, the index, and the next count.

    Return ``None`` if the job should not grow.
    """
    curve = case.curve
    larger = curve.next_count(count)
    if larger is None:
        return None
    speed, faster = curve.speed_of[count], curve.speed_of[larger]
    if larger > case.held and speed and case.work_left / speed - case.work_left / faster < _MIN_BENEFIT * case.change_s:
        return None
    return -(faster - speed) / (larger - count) / (curve.per_s[0] / curve.counts[0]), index, larger
