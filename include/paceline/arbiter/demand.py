"""From what trainings say to the jobs that policies know: work, speeds, and when it has to be done."""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.allocate import ClusterJob, Placement, Speeds
from paceline.allocate.model import DEVICE
from paceline.arbiter.request import DeviceRequest
from paceline.control import RemainingWork

POOL = "pool"
_TRY = 1.5  # times what it has shown to be able to use
_START = 3.0  # device-seconds to start again: an interpreter, torch, the data
_UNKNOWN_S = 3600.0  # that a training without a deadline is taken to need on its share, while that is not known
_COUNTS = 48  # numbers of devices that a policy chooses from for one job: enough to be within 3 % of any other


def job(
    request: DeviceRequest, remaining: RemainingWork | None, share: float, pool: int, unit: float, now_s: float
) -> ClusterJob | None:
    """A training as a policy sees it; ``None`` if the pool is too small for it.

    Parameters
    ----------
    request:
        What the training says.
    remaining:
        What its rest took when it said so, if that is known.
    share:
        So many devices it is taken to need until its deadline while that is not known: soon it shows what it needs.
    pool, unit:
        Devices of the pool in the policy's units, and how many devices a unit is.
    now_s:
        The time.
    """
    counts = _counts(request, pool, unit)
    if not counts:
        return None
    left_s = max(request.deadline_s - now_s, 1.0) if request.has_deadline else _UNKNOWN_S
    known = remaining or RemainingWork(left_s * min(max(share, request.least), request.most), 1.0, 0.0)
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
        since_s=request.said_s if trains else now_s,
        speed=_speed(known, request.held) if trains and request.held > 0 else 0.0,
    )


def _usable(remaining: RemainingWork) -> float | None:
    """What it can make use of, as far as a policy should believe it: right after a change it has used little so far."""
    return None if remaining.usable_devices is None else max(_TRY * remaining.usable_devices, 1.0)


def _speed(remaining: RemainingWork, devices: float) -> float:
    in_use = min(devices, remaining.usable_devices) if remaining.usable_devices else devices
    return math.pow(in_use, remaining.exponent)


def _counts(request: DeviceRequest, pool: int, unit: float) -> tuple[int, ...]:
    step = max(round(request.quantum / unit), 1)
    least = max(math.ceil(request.least / unit / step - 1e-6), 1) * step
    most = min(math.floor(request.most / unit / step + 1e-6) * step, pool // step * step)
    if least > most:
        return ()
    steps = (most - least) // step
    if steps < _COUNTS:
        return tuple(range(least, most + 1, step))
    ratio = math.pow(most / least, 1 / (_COUNTS - 1))
    rounded = {least + round((least * ratio**place - least) / step) * step for place in range(_COUNTS)}
    return tuple(sorted({min(count, most) for count in rounded} | {most}))


def _held(request: DeviceRequest, counts: tuple[int, ...], unit: float) -> Placement | None:
    """What it has been granted, as a number that the policy knows."""
    devices = request.granted if request.ceiling is not None else request.held
    if devices <= 0:
        return None
    below = [count for count in counts if count <= devices / unit + 1e-6]
    return Placement(POOL, below[-1] if below else counts[0])
