"""Converts the request of a job into the ``ClusterJob`` that policies use: work, speeds and deadline."""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.allocate import DEVICE, ClusterJob, Placement, Speeds
from paceline.arbiter.request import DeviceRequest
from paceline.control import RemainingWork

POOL = "pool"
_USABLE_FACTOR = 1.5  # assumed usable devices, relative to those that the job has shown to use
_START = 3.0  # device seconds to resume: an interpreter, torch, the data
_UNKNOWN_S = 3600.0  # assumed duration, on its share, of a job without a deadline and without known remaining work
_COUNTS = 48  # legal numbers of devices of one job: enough to be within 3 % of any other number


def cluster_job(
    request: DeviceRequest, remaining: RemainingWork | None, share: float, pool: int, unit: float, now_s: float
) -> ClusterJob | None:
    """Return the job as a policy sees it; ``None`` if the pool is too small for it.

    Parameters
    ----------
    request:
        The request of the job.
    remaining:
        Its remaining work at the time of the request; ``None`` if unknown.
    share:
        Devices that the job is assumed to need until its deadline while its remaining work is unknown.
    pool, unit:
        Size of the pool in the policy's units, and devices per unit.
    now_s:
        The time in seconds since the epoch.
    """
    counts = _counts(request, pool, unit)
    if not counts:
        return None
    left_s = max(request.deadline_s - now_s, 1.0) if request.has_deadline else _UNKNOWN_S
    known = remaining or RemainingWork(left_s * min(max(share, request.min_devices), request.max_devices), 1.0, 0.0)
    known = replace(known, usable_devices=_usable(known), work_s=known.work_s + _START * (request.state == "paused"))
    trains = request.state == "training" and remaining is not None
    return ClusterJob(
        name=request.key,
        arrived_s=request.arrived_s,
        work=max(known.work_s, 1e-6),
        speeds={DEVICE: Speeds(counts, tuple(_speed(known, count * unit) for count in counts))},
        deadline_s=request.deadline_s - known.after_s if request.has_deadline else None,
        weight=request.weight,
        held=_held(request, counts, unit),
        since_s=request.updated_s if trains else now_s,
        speed=_speed(known, request.held) if trains and request.held > 0 else 0.0,
    )


def _usable(remaining: RemainingWork) -> float | None:
    """Return the devices that the job is assumed to use: more than it reports, which is low right after a change."""
    return None if remaining.usable_devices is None else max(_USABLE_FACTOR * remaining.usable_devices, 1.0)


def _speed(remaining: RemainingWork, devices: float) -> float:
    in_use = min(devices, remaining.usable_devices) if remaining.usable_devices else devices
    return math.pow(in_use, remaining.exponent)


def _counts(request: DeviceRequest, pool: int, unit: float) -> tuple[int, ...]:
    step = max(round(request.quantum / unit), 1)
    low = max(math.ceil(request.min_devices / unit / step - 1e-6), 1) * step
    high = min(math.floor(request.max_devices / unit / step + 1e-6) * step, pool // step * step)
    if low > high:
        return ()
    steps = (high - low) // step
    if steps < _COUNTS:
        return tuple(range(low, high + 1, step))
    ratio = math.pow(high / low, 1 / (_COUNTS - 1))
    rounded = {low + round((low * ratio**index - low) / step) * step for index in range(_COUNTS)}
    return tuple(sorted({min(count, high) for count in rounded} | {high}))


def _held(request: DeviceRequest, counts: tuple[int, ...], unit: float) -> Placement | None:
    """Return the granted devices of a job, rounded down to a legal number."""
    devices = request.granted if request.ceiling is not None else request.held
    if devices <= 0:
        return None
    legal = [count for count in counts if count <= devices / unit + 1e-6]
    return Placement(POOL, legal[-1] if legal else counts[0])
