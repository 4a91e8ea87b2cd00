"""Curves that policies and admission checks derive from the speeds of jobs, each computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from paceline.allocate._model import ClusterJob, Speeds
from paceline.errors import InvalidInputError

_Curve = TypeVar("_Curve")


def derive(make: Callable[..., _Curve], speeds: Speeds, *arguments: float) -> _Curve:
    """Return ``make(speeds, *arguments)``, which is kept as long as the ``Speeds`` object."""
    known, key = speeds.derived, (make, *arguments)
    curve: _Curve | None = known.get(key)
    if curve is None:
        curve = known[key] = make(speeds, *arguments)
    return curve


def speeds_on(job: ClusterJob, kind: str) -> Speeds:
    """Return the speeds of a job on devices of a kind. Raise InvalidInputError if it has none."""
    speeds = job.speeds.get(kind)
    if speeds is None:
        raise InvalidInputError(f"{job.name}.speeds", sorted(job.speeds), f"the pool's device kind, {kind}")
    return speeds
