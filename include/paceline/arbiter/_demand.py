"""Converts the request of a job into the ``ClusterJob`` that policies use: work, speeds and deadline."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from paceline.allocate import DEVICE, ClusterJob, Node, Placement, Speeds
from paceline.arbiter._request import DeviceRequest
from paceline.control import RemainingWork

POOL = "pool"
_USABLE_FACTOR = 1.5  # assumed usable devices, relative to the number that the job reports
_ASSUMED_STARTUP_S = 10.0  # start the container and the interpreter, import torch, load the data
_RESIZE_S = 2.0  # assumed cost of a change of a CPU share, so that allocations do not change for tiny gains
_ASSUMED_DURATION_S = 3600.0  # assumed training time on the job's share if deadline and work are unknown
_MAX_COUNTS = 48  # maximum number of allowed device counts per job; all other counts are within 3 % of an allowed count


def cluster_job(
    request: DeviceRequest,
    remaining: RemainingWork | None,
    share: float,
    pool: int,
    unit: float,
    now_s: float,
    speeds: JobSpeeds,
) -> ClusterJob | None:
    """Return the job in the form that policies use; ``None`` if the pool is too small for the job.

    Parameters
    ----------
    request:
        The request of the job.
    remaining:
        Remaining work of the job at the time of the request; ``None`` if unknown.
    share:
        Devices that the job is assumed to need until its deadline if its remaining work is unknown.
    pool, unit:
        Size of the pool in the policy's units, and devices per unit.
    now_s:
        The time in seconds since the epoch.
    speeds:
        The speeds of all jobs.
    """
    counts = allowed_counts(request.min_devices, request.max_devices, request.quantum, pool, unit)
    if not counts:
        return None
    left_s = max(request.deadline_s - now_s, 1.0) if request.has_deadline else _ASSUMED_DURATION_S
    known = remaining or RemainingWork(left_s * min(max(share, request.min_devices), request.max_devices), 1.0, 0.0)
    if known.usable_devices is not None:  # the job reports too few right after a change
        known = replace(known, usable_devices=max(_USABLE_FACTOR * known.usable_devices, 1.0))
    trains = request.state == "training" and remaining is not None
    return ClusterJob(
        name=request.key,
        arrived_s=request.arrived_s,
        work=max(known.work_s, 1e-6),
        speeds={DEVICE: speeds.of(request.key, counts, unit, known)},
        deadline_s=request.deadline_s - time_after_s(request, known) if request.has_deadline else None,
        weight=request.weight,
        held=_held_placement(request, counts, unit),
        since_s=request.updated_s if trains else now_s,
        speed=known.speeds_on([request.held])[0] if trains and request.held > 0 else 0.0,
        promise=request.ceiling.promise if request.promised and request.ceiling else None,
        started_s=None if request.state == "waiting" else request.began_s,
        change_s=_change_s(request),
    )


def within_pool(jobs: Sequence[ClusterJob], node: Node) -> list[ClusterJob]:
    """Return the jobs with as much of their placements as fits into the pool, for policies that keep placements.

    The placements exceed the pool if it has shrunk, or if jobs that do not wait for grants fill it. Then every job
    first keeps its smallest number of devices, in order of arrival; jobs for which none are left wait.
    """
    free, kept = node.devices, dict.fromkeys((job.name for job in jobs), 0)
    for smallest in (True, False):
        for job in jobs:
            if job.held is not None:
                speeds, before = job.speeds[node.kind], kept[job.name]
                wanted = speeds.counts[0] if smallest else job.held.devices
                kept[job.name] = max(speeds.largest_count(min(wanted, before + free)), before)
                free -= kept[job.name] - before
    return [replace(job, held=Placement(node.name, kept[job.name]) if kept[job.name] else None) for job in jobs]


def time_after_s(request: DeviceRequest, remaining: RemainingWork) -> float:
    """Return the seconds that a job needs in addition to its work and to changes of its devices."""
    if request.state == "waiting":  # after_s includes the start, which is also the first change
        return max(remaining.after_s - _change_s(request), 0.0)
    if request.state == "preempted":
        return remaining.after_s + max(_startup_s(request) - _change_s(request), 0.0)
    return remaining.after_s


def _change_s(request: DeviceRequest) -> float:
    """Return the seconds without progress after a change: new processes start only for whole devices."""
    return _startup_s(request) if request.quantum >= 1 else _RESIZE_S


def _startup_s(request: DeviceRequest) -> float:
    return _ASSUMED_STARTUP_S if request.startup_s is None else request.startup_s


class JobSpeeds:
    """The speeds of each job on its allowed device counts, computed again only if its request changes them."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, ...], Speeds]] = {}

    def of(self, key: str, counts: tuple[int, ...], unit: float, remaining: RemainingWork) -> Speeds:
        """Return the speeds of a job; the same object as before if they are the same."""
        usable = remaining.usable_devices
        inputs = counts, unit, remaining.exponent, usable, remaining.sd, remaining.sd_devices, remaining.exponent_sd
        known = self._known.get(key)
        if known is None or known[0] != inputs:
            known = self._known[key] = (inputs, _speeds(counts, unit, remaining))
        return known[1]

    def keep(self, keys: Collection[str]) -> None:
        """Forget all jobs except ``keys``."""
        self._known = {key: known for key, known in self._known.items() if key in keys}


def _speeds(counts: tuple[int, ...], unit: float, remaining: RemainingWork) -> Speeds:
    devices = [count * unit for count in counts]
    is_exact = not (remaining.sd or remaining.exponent_sd)
    return Speeds(counts, remaining.speeds_on(devices), () if is_exact else remaining.sds_on(devices))


@lru_cache(maxsize=1024)
def allowed_counts(min_devices: float, max_devices: float, quantum: float, pool: int, unit: float) -> tuple[int, ...]:
    """Return the allocations that a policy may give a job, in units; empty if the pool is too small for the job.

    Parameters
    ----------
    min_devices, max_devices, quantum:
        Limits of the job's allocation and its smallest change, in devices.
    pool, unit:
        Size of the pool in units, and devices per unit.

    Examples
    --------
    >>> allowed_counts(0.1, 0.3, 0.05, pool=40, unit=0.05), allowed_counts(4, 8, 1, pool=2, unit=1)
    ((2, 3, 4, 5, 6), ())
    """
    step = max(round(quantum / unit), 1)
    low = max(math.ceil(min_devices / unit / step - 1e-6), 1) * step
    high = min(math.floor(max_devices / unit / step + 1e-6) * step, pool // step * step)
    return _spread_counts(low, high, step)


def _spread_counts(low: int, high: int, step: int) -> tuple[int, ...]:
    """Return at most ``_MAX_COUNTS`` multiples of ``step`` from ``low`` to ``high``."""
    if low > high:
        return ()
    steps = (high - low) // step
    if steps < _MAX_COUNTS:
        return tuple(range(low, high + 1, step))
    ratio = math.pow(high / low, 1 / (_MAX_COUNTS - 1))
    rounded = {low + round((low * ratio**index - low) / step) * step for index in range(_MAX_COUNTS)}
    return tuple(sorted({min(count, high) for count in rounded} | {high}))


def _held_placement(request: DeviceRequest, counts: tuple[int, ...], unit: float) -> Placement | None:
    """Return the placement of a job on its granted devices, rounded down to an allowed count."""
    devices = request.granted if request.ceiling is not None else request.held
    if devices <= 0:
        return None
    return Placement(POOL, counts[max(bisect_right(counts, devices / unit + 1e-6) - 1, 0)])
