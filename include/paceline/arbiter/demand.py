"""From what trainings say to the jobs that policies know: work, speeds, and when it has to be done."""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.allocate import Job, Placement, Speeds
from paceline.allocate.model import DEVICE
from paceline.arbiter.claim import Claim
from paceline.control import Outlook

POOL = "pool"
_TRY = 1.5  # times what it has shown to be able to use
_START = 3.0  # device-seconds to start again: an interpreter, torch, the data
_UNKNOWN_S = 3600.0  # that a training without a deadline is taken to need on its share, while that is not known
_COUNTS = 48  # numbers of devices that a policy chooses from for one job: enough to be within 3 % of any other


def job(claim: Claim, outlook: Outlook | None, share: float, pool: int, unit: float, now_s: float) -> Job | None:
    """A training as a policy sees it; ``None`` if the pool is too small for it.

    Parameters
    ----------
    claim:
        What the training says.
    outlook:
        What its rest took when it said so, if that is known.
    share:
        So many devices it is taken to need until its deadline while that is not known: soon it shows what it needs.
    pool, unit:
        Devices of the pool in the policy's units, and how many devices a unit is.
    now_s:
        The time.
    """
    counts = _counts(claim, pool, unit)
    if not counts:
        return None
    left_s = max(claim.deadline_s - now_s, 1.0) if claim.has_deadline else _UNKNOWN_S
    known = outlook or Outlook(left_s * min(max(share, claim.least), claim.most), 1.0, 0.0)
    known = replace(known, usable_devices=_usable(known), work_s=known.work_s + _START * (claim.state == "paused"))
    trains = claim.state == "training" and outlook is not None
    return Job(
        name=claim.key,
        arrived_s=claim.arrived_s,
        work=max(known.work_s, 1e-6),
        speeds={DEVICE: Speeds(counts, tuple(_speed(known, count * unit) for count in counts))},
        deadline_s=claim.deadline_s - known.after_s if claim.has_deadline else None,
        weight=claim.weight,
        held=_held(claim, counts, unit),
        since_s=claim.said_s if trains else now_s,
        speed=_speed(known, claim.held) if trains and claim.held > 0 else 0.0,
    )


def _usable(outlook: Outlook) -> float | None:
    """What it can make use of, as far as a policy should believe it: right after a change it has used little so far."""
    return None if outlook.usable_devices is None else max(_TRY * outlook.usable_devices, 1.0)


def _speed(outlook: Outlook, devices: float) -> float:
    in_use = min(devices, outlook.usable_devices) if outlook.usable_devices else devices
    return math.pow(in_use, outlook.exponent)


def _counts(claim: Claim, pool: int, unit: float) -> tuple[int, ...]:
    step = max(round(claim.quantum / unit), 1)
    least = max(math.ceil(claim.least / unit / step - 1e-6), 1) * step
    most = min(math.floor(claim.most / unit / step + 1e-6) * step, pool // step * step)
    if least > most:
        return ()
    steps = (most - least) // step
    if steps < _COUNTS:
        return tuple(range(least, most + 1, step))
    ratio = math.pow(most / least, 1 / (_COUNTS - 1))
    rounded = {least + round((least * ratio**place - least) / step) * step for place in range(_COUNTS)}
    return tuple(sorted({min(count, most) for count in rounded} | {most}))


def _held(claim: Claim, counts: tuple[int, ...], unit: float) -> Placement | None:
    """What it has been granted, as a number that the policy knows."""
    devices = claim.granted if claim.ceiling is not None else claim.held
    if devices <= 0:
        return None
    below = [count for count in counts if count <= devices / unit + 1e-6]
    return Placement(POOL, below[-1] if below else counts[0])
