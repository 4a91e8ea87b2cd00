"""Curves that a policy derives from the speeds of jobs, kept from one decision to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from paceline.allocate._model import ClusterJob, Speeds
from paceline.errors import InvalidInputError

_Curve = TypeVar("_Curve")


class CurveCache(Generic[_Curve]):
    """The curves of the jobs of the last decision. Jobs share a curve if they share their ``Speeds`` object.

    Parameters
    ----------
    make:
        Function that returns the curve of a ``Speeds`` object.
    """

    def __init__(self, make: Callable[[Speeds], _Curve]) -> None:
        self._make = make
        self._known: dict[int, tuple[Speeds, _Curve]] = {}  # by the identity of the ``Speeds`` object

    def curves(self, jobs: Sequence[ClusterJob], kind: str) -> list[_Curve]:
        """Return each job's curve on devices of a kind. Raise InvalidInputError if a job has no speeds for it."""
        before, self._known = self._known, {}
        found = []
        for job in jobs:
            speeds = job.speeds.get(kind)
            if speeds is None:
                accepted = f"the pool's device kind, {kind}"
                raise InvalidInputError(f"{job.name}.speeds", sorted(job.speeds), accepted)
            known = self._known.get(id(speeds)) or before.get(id(speeds))
            if known is None or known[0] is not speeds:
                known = (speeds, self._make(speeds))
            self._known[id(speeds)] = known
            found.append(known[1])
        return found
