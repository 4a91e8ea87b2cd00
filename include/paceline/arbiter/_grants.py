"""Converts the desired ceilings of a policy into grants that never exceed the pool.

The arbiter lowers ceilings immediately. Other jobs get the released devices after a sample confirms the release.
All state is stored with the jobs, so a restarted arbiter continues from this state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.arbiter._request import DeviceRequest
from paceline.contract import Ceiling, Reason

_ROUNDING = 1e-6


@dataclass(frozen=True)
class DesiredCeiling:
    """The ceiling that a policy wants for a job, and the reason."""

    devices: float
    reason: Reason | None = None


@dataclass(frozen=True)
class Grant:
    """A ceiling to send to a job, and the devices of its previous ceiling."""

    key: str
    ceiling: Ceiling
    before: float | None


def next_grants(requests: Sequence[DeviceRequest], targets: Mapping[str, DesiredCeiling], pool: float) -> list[Grant]:
    """Return the grants to send now; repeated calls with new requests converge to the targets.

    Parameters
    ----------
    requests:
        Requests of all jobs in the pool, in the order in which they get free devices.
    targets:
        Desired ceilings by job key; a job without a target keeps its ceiling.
    pool:
        Number of devices in the pool.

    Examples
    --------
    One of two jobs has all devices. The arbiter lowers its ceiling; the other job waits until a sample confirms this.

    >>> has = Ceiling(2.0, grant=4)
    >>> one = DeviceRequest("one", "training", 0, 60, 0, 10, 0.1, 2, 0.05, held=2.0, applied_grant=4, ceiling=has)
    >>> two = DeviceRequest("two", "waiting", 9, 60, 9, 10, 0.1, 2, 0.05, held=0.0, applied_grant=0, ceiling=None)
    >>> wanted = {"one": DesiredCeiling(1.5), "two": DesiredCeiling(0.5)}
    >>> (grant,) = next_grants([one, two], wanted, pool=2)
    >>> grant.key, grant.ceiling.devices, grant.ceiling.max_devices
    ('one', 1.5, 2.0)
    """
    free = pool - sum(request.committed for request in requests)
    grants = list(_lowering_grants(requests, targets))
    for request in requests:
        target = targets.get(request.key)
        if target is None or request.ended or target.devices <= request.granted + _ROUNDING:
            continue
        room = max(free, 0.0) + request.committed
        devices = _round_down(min(target.devices, room), request.quantum)
        if devices < request.min_devices - _ROUNDING or devices <= request.granted + _ROUNDING:
            continue
        free -= max(devices - request.committed, 0.0)
        grants.append(_grant(request, devices, target.reason))
    return grants


def _lowering_grants(requests: Iterable[DeviceRequest], targets: Mapping[str, DesiredCeiling]) -> Iterable[Grant]:
    for request in requests:
        target = targets.get(request.key)
        if target is not None and not request.ended and target.devices < request.granted - _ROUNDING:
            yield _grant(request, target.devices, target.reason)


def _grant(request: DeviceRequest, devices: float, reason: Reason | None) -> Grant:
    before = request.ceiling
    number = 1 + max(before.grant if before else 0, request.applied_grant)
    grant = Ceiling(devices, number, max_devices=max(request.committed, devices), reason=reason)
    if before is None:
        return Grant(request.key, grant, None)
    # Keep the result of the admission check, from which the next arbiter reads that the deadline was promised.
    admission = {name: getattr(before, name) for name in ("deadline_s", "fits", "earliest_s", "promise")}
    return Grant(request.key, replace(grant, **admission), before.devices)


def _round_down(devices: float, quantum: float) -> float:
    return round(math.floor(devices / quantum + _ROUNDING) * quantum, 9)
