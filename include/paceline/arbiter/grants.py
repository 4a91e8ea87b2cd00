"""From what a policy wants to what is said to each training, so that never more is given out than there is.

Ceilings are lowered at once. Devices are given to others when the samples of who had them say that they are free.
What is known stands with the trainings themselves, so an arbiter that crashed goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.arbiter.request import DeviceRequest
from paceline.contract import Ceiling

_ROUNDING = 1e-6


@dataclass(frozen=True)
class DesiredCeiling:
    """What a policy wants a training to have, and why."""

    devices: float
    reason: str = ""


@dataclass(frozen=True)
class Grant:
    """What is to be said to a training."""

    key: str
    ceiling: Ceiling
    before: float | None


def settle(requests: Sequence[DeviceRequest], targets: Mapping[str, DesiredCeiling], pool: float) -> list[Grant]:
    """Say what is to be said now; asked again when trainings have answered, until all have what they are to have.

    Parameters
    ----------
    requests:
        All trainings of the pool; the first ones are given free devices first.
    targets:
        What each is to have in the end. Who is not named keeps what it has.
    pool:
        How many devices there are.

    Examples
    --------
    One of two trainings has everything. It is lowered first; the other has to wait until it has answered.

    >>> has = Ceiling(2.0, grant=4)
    >>> one = DeviceRequest("one", "training", 0, 60, 0, 10, 0.1, 2, 0.05, held=2.0, taken=4, ceiling=has)
    >>> two = DeviceRequest("two", "waiting", 9, 60, 9, 10, 0.1, 2, 0.05, held=0.0, taken=0, ceiling=None)
    >>> wanted = {"one": DesiredCeiling(1.5), "two": DesiredCeiling(0.5)}
    >>> [(grant.key, grant.ceiling.devices, grant.ceiling.at_most) for grant in settle([one, two], wanted, pool=2)]
    [('one', 1.5, 2.0)]
    """
    free = pool - sum(request.committed for request in requests)
    grants = list(_lower(requests, targets))
    for request in requests:
        target = targets.get(request.key)
        if target is None or request.ended or target.devices <= request.granted + _ROUNDING:
            continue
        room = max(free, 0.0) + request.committed
        devices = _whole(min(target.devices, room), request.quantum)
        if devices < request.least - _ROUNDING or devices <= request.granted + _ROUNDING:
            continue
        free -= max(devices - request.committed, 0.0)
        grants.append(_grant(request, devices, target.reason))
    return grants


def _lower(requests: Iterable[DeviceRequest], targets: Mapping[str, DesiredCeiling]) -> Iterable[Grant]:
    for request in requests:
        target = targets.get(request.key)
        if target is not None and not request.ended and target.devices < request.granted - _ROUNDING:
            yield _grant(request, target.devices, target.reason)


def _grant(request: DeviceRequest, devices: float, reason: str) -> Grant:
    before = request.ceiling
    number = 1 + max(before.grant if before else 0, request.taken or 0)
    ceiling = Ceiling(devices, number, at_most=max(request.committed, devices), reason=reason)
    return Grant(request.key, ceiling, before.devices if before else None)


def _whole(devices: float, quantum: float) -> float:
    return round(math.floor(devices / quantum + _ROUNDING) * quantum, 9)
