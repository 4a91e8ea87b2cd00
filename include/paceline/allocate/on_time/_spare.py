"""The devices to allocate now: the reservations of the planned jobs, and the spare devices, which speed up jobs."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from paceline.allocate.on_time._job import JobCase

_MIN_BENEFIT = 2.0  # minimum time saved by a change, relative to its cost


def distribute(planned: Sequence[JobCase], late: Sequence[JobCase], devices: int, now_s: float) -> dict[str, int]:
    """Return the current devices of each job: its reservation, and a share of the spare devices."""
    devices_of = {case.job.name: case.planned.devices_now for case in planned if case.planned is not None}
    spare = devices - sum(devices_of.values())
    for case in planned:  # shrinking a job that will grow again soon costs two changes
        more = case.held - devices_of[case.job.name]
        if 0 < more <= spare and case.held in case.curve.counts:
            devices_of[case.job.name] += more
            spare -= more
    by_ratio = sorted(late, key=lambda case: case.response_ratio(now_s), reverse=True)
    for case in by_ratio:
        if (smallest := case.curve.counts[0]) <= spare:
            devices_of[case.job.name] = smallest
            spare -= smallest
    for case in by_ratio:
        more = case.held - devices_of.get(case.job.name, case.held)
        if 0 < more <= spare and case.held in case.curve.counts:
            devices_of[case.job.name] += more
            spare -= more
    return _distribute_spare(devices_of, [*(case for case in planned if case.may_grow), *late], spare)


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
