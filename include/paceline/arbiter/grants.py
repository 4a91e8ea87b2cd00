"""From what a policy wants to what is said to each training, so that never more is given out than there is.

Ceilings are lowered at once. Devices are given to others when the samples of who had them say that they are free.
What is known stands with the trainings themselves, so an arbiter that crashed goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.arbiter.claim import Claim
from paceline.contract import Ceiling

_ROUNDING = 1e-6


@dataclass(frozen=True)
class Target:
    """What a policy wants a training to have, and why."""

    devices: float
    reason: str = ""


@dataclass(frozen=True)
class Grant:
    """What is to be said to a training."""

    key: str
    ceiling: Ceiling
    before: float | None


def settle(claims: Sequence[Claim], targets: Mapping[str, Target], pool: float) -> list[Grant]:
    """Say what is to be said now; asked again when trainings have answered, until all have what they are to have.

    Parameters
    ----------
    claims:
        All trainings of the pool; the first ones are given free devices first.
    targets:
        What each is to have in the end. Who is not named keeps what it has.
    pool:
        How many devices there are.

    Examples
    --------
    One of two trainings has everything. It is lowered first; the other has to wait until it has answered.

    >>> has = Ceiling(2.0, grant=4)
    >>> one = Claim("one", "training", 0, 60, 0, 10, 0.1, 2, 0.05, held=2.0, taken=4, ceiling=has, outlook=None)
    >>> two = Claim("two", "waiting", 9, 60, 9, 10, 0.1, 2, 0.05, held=0.0, taken=0, ceiling=None, outlook=None)
    >>> wanted = {"one": Target(1.5), "two": Target(0.5)}
    >>> [(grant.key, grant.ceiling.devices, grant.ceiling.at_most) for grant in settle([one, two], wanted, pool=2)]
    [('one', 1.5, 2.0)]
    """
    free = pool - sum(claim.committed for claim in claims)
    grants = list(_lower(claims, targets))
    for claim in claims:
        target = targets.get(claim.key)
        if target is None or claim.ended or target.devices <= claim.granted + _ROUNDING:
            continue
        room = max(free, 0.0) + claim.committed
        devices = _whole(min(target.devices, room), claim.quantum)
        if devices < claim.least - _ROUNDING or devices <= claim.granted + _ROUNDING:
            continue
        free -= max(devices - claim.committed, 0.0)
        grants.append(_grant(claim, devices, target.reason))
    return grants


def _lower(claims: Iterable[Claim], targets: Mapping[str, Target]) -> Iterable[Grant]:
    for claim in claims:
        target = targets.get(claim.key)
        if target is not None and not claim.ended and target.devices < claim.granted - _ROUNDING:
            yield _grant(claim, target.devices, target.reason)


def _grant(claim: Claim, devices: float, reason: str) -> Grant:
    before = claim.ceiling
    number = 1 + max(before.grant if before else 0, claim.taken or 0)
    ceiling = Ceiling(devices, number, at_most=max(claim.committed, devices), reason=reason)
    return Grant(claim.key, ceiling, before.devices if before else None)


def _whole(devices: float, quantum: float) -> float:
    return round(math.floor(devices / quantum + _ROUNDING) * quantum, 9)
