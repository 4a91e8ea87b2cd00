"""Plans that meet deadlines, to which jobs are added without planning all other jobs again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from paceline.allocate._model import Reservation
from paceline.allocate.on_time.capacity import Capacity
from paceline.allocate.on_time.job_case import JobCase

Planned = tuple[JobCase, Reservation]


class DeadlinePlan:
    """Jobs, each with a reservation that meets its deadline, and the capacity that they leave free.

    Parameters
    ----------
    pool:
        The capacity of the pool, without reservations.
    planned:
        The jobs and their reservations, which fit into the pool together.

    Attributes
    ----------
    planned:
        The jobs and their reservations, in deadline order.

    Examples
    --------
    The job ``a`` is due last, so it gives way to ``b``.

    >>> from paceline.allocate import ClusterJob, Node, Speeds
    >>> from paceline.allocate.on_time.curve import SpeedUpCurve
    >>> curve, node = SpeedUpCurve(Speeds.linear(4)), Node("pool", 4)
    >>> a, b, c = (
    ...     JobCase(ClusterJob(name, 0.0, work, {}, deadline_s=deadline_s), curve, 0.0, change_s=0.0)
    ...     for name, work, deadline_s in (("a", 40.0, 20.0), ("b", 30.0, 10.0), ("c", 11.0, 20.0))
    ... )
    >>> alone = DeadlinePlan.of([a], Capacity(node, 0.0, [10.0, 20.0]))
    >>> both = alone.with_job(b)
    >>> [(case.job.name, [devices for _, devices in reservation.runs]) for case, reservation in both.planned]
    [('b', [3]), ('a', [1, 3])]
    >>> both.with_job(c) is None
    True
    """

    def __init__(self, pool: Capacity, planned: Iterable[Planned]) -> None:
        self._pool = pool
        self.planned = sorted(planned, key=_deadline_s)

    @classmethod
    def of(cls, cases: Iterable[JobCase], pool: Capacity, *, all_or_none: bool = False) -> DeadlinePlan:
        """Plan the jobs in deadline order, each on the fewest devices; the plan lacks the jobs that do not fit.

        With ``all_or_none``, planning ends at the first of them.
        """
        capacity, planned = pool.empty(), []
        for case in sorted(cases, key=lambda case: case.deadline_s):
            reservation = case.fit(capacity)
            if reservation is not None:
                capacity.reserve(reservation)
                planned.append((case, reservation))
            elif all_or_none:
                break
        return cls(pool, planned)

    @cached_property
    def left(self) -> Capacity:
        """What the jobs leave free."""
        return _beside(self._pool, self.planned)

    def with_job(self, case: JobCase, fewest: Mapping[str, int] | None = None) -> DeadlinePlan | None:
        """Return a plan with one more job; ``None`` if it does not fit.

        Jobs with later deadlines give way, if they still meet them; otherwise the job gets what all others leave free.
        If the plan is in deadline order, the result is the same as if all jobs were planned again, but only the first
        job that gives way, and those after it, are.

        Parameters
        ----------
        case:
            The job.
        fewest:
            Fewest devices of the jobs, by name.
        """
        numbers = fewest or {}
        position = bisect_right(self.planned, case.deadline_s, key=_deadline_s)
        pool = self._pool.with_end(case.deadline_s)
        capacity = _beside(pool, self.planned[:position])
        new = case.fit(capacity, numbers.get(case.job.name, 0))
        if new is None:
            return None
        planned, later = [*self.planned[:position], (case, new)], self.planned[position:]
        if self.left.has(new):
            return DeadlinePlan(pool, [*planned, *later])
        capacity.reserve(new)
        gave_way = False  # a job that gave way may have freed devices that a later job would use
        for other, before in later:
            reservation: Reservation | None = before
            if gave_way or not capacity.has(before):
                reservation, gave_way = other.fit(capacity, numbers.get(other.job.name, 0)), True
            if reservation is None:
                return self.beside(case)
            capacity.reserve(reservation)
            planned.append((other, reservation))
        return DeadlinePlan(pool, planned)

    def beside(self, case: JobCase) -> DeadlinePlan | None:
        """Return a plan with one more job in what the others leave free; ``None`` if it does not fit."""
        reservation = case.fit(self.left)
        return None if reservation is None else DeadlinePlan(self._pool, [*self.planned, (case, reservation)])


def _deadline_s(planned: Planned) -> float:
    return planned[0].deadline_s


def _beside(pool: Capacity, planned: Sequence[Planned]) -> Capacity:
    capacity = pool.empty()
    for _, reservation in planned:
        capacity.reserve(reservation)
    return capacity
