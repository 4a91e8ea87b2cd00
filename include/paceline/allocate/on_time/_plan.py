"""Plans: reservations for jobs in a given order, optionally with larger jobs replaced by smaller ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import takewhile
from math import inf

from paceline.allocate._model import Node, Reservation
from paceline.allocate.on_time._bound import moore_hodgson
from paceline.allocate.on_time.capacity import Capacity
from paceline.allocate.on_time.deadline_plan import DeadlinePlan
from paceline.allocate.on_time.job_case import JobCase

_SWAP_TRIES = 2  # how many of the largest planned jobs are candidates for replacement

Plan = dict[int, Reservation]  # by index of the job, in planning order


class Planner:
    """Plans jobs in the capacity of one pool.

    Parameters
    ----------
    due:
        All jobs with deadlines; plans refer to their indices.
    node:
        The pool.
    now_s:
        The time in seconds.
    ends_s:
        Times at which the devices of jobs may change, in addition to the deadlines.
    """

    def __init__(self, due: Sequence[JobCase], node: Node, now_s: float, ends_s: Iterable[float] = ()) -> None:
        self.due = due
        self._node, self._now_s = node, now_s
        deadlines_s, exact_s = [case.deadline_s for case in due], list(ends_s)
        # Reservations of the last plan can be kept only if all of their ends are ends of spans.
        self._pool = Capacity(node, now_s, deadlines_s, [*exact_s, *deadlines_s] if exact_s else ())

    def with_ends(self, ends_s: Iterable[float] = ()) -> Planner:
        """Return a planner for the current deadlines of the jobs, in which devices may also change at ``ends_s``."""
        return Planner(self.due, self._node, self._now_s, ends_s)

    def feasible(self) -> list[int]:
        """Return the jobs that are on time on their fastest numbers of devices, in deadline order."""
        now_s = self._now_s
        return [
            index
            for index, case in enumerate(self.due)
            if case.curve.is_fast_enough(case.work_left, case.deadline_s - now_s)
        ]

    def weight(self, chosen: Iterable[int]) -> float:
        """Return the total weight of jobs."""
        return sum(self.due[index].job.weight for index in chosen)

    def size(self, index: int) -> float:
        """Return the fewest device seconds with which a job meets its deadline, per unit of weight."""
        case = self.due[index]
        return case.per_weight(case.demand(self._now_s, index).device_s)

    def small_jobs(self, feasible: Sequence[int], shares: Iterable[float]) -> Iterator[list[int]]:
        """For each share of the pool, yield the largest set of jobs that fits into it as one divisible machine."""
        needs = [self.due[index].demand(self._now_s, index) for index in feasible]
        for share in shares:
            yield moore_hodgson(needs, share * self._node.all_devices)

    def reserve_in_order(
        self,
        chosen: Iterable[int],
        begin: Plan | None = None,
        *,
        swap: bool = False,
        min_devices: Mapping[str, int] | None = None,
        better_than: float = -1.0,
    ) -> Plan:
        """Reserve devices for the jobs ``chosen``, in this order; skip jobs that do not fit.

        As far as the order begins with the jobs of ``begin``, an earlier plan, these keep their reservations. With
        ``swap``, a job that does not fit replaces a larger planned job. ``min_devices`` are the fewest devices of each
        job, by name. The plan is empty if its weight cannot exceed ``better_than``.
        """
        order = list(dict.fromkeys(chosen))
        same = takewhile(lambda pair: pair[0][0] == pair[1], zip((begin or {}).items(), order, strict=False))
        known = {index: reservation for (index, reservation), _ in same}
        possible = self.weight(order)
        capacity = self._pool.empty()
        fewest = min_devices or {}
        plan: Plan = {}
        largest: list[tuple[float, int]] = []  # heap of planned jobs, the most device seconds per unit of weight first
        swapping = False
        for index in order:
            case = self.due[index]
            reservation = known.get(index) or case.fit(capacity, fewest.get(case.job.name, 0))
            if reservation is None and swap:
                if not swapping:
                    swapping, largest = True, [self._entry(*planned) for planned in plan.items()]
                    heapify(largest)
                reservation = self._replace_larger_job(index, plan, largest, capacity)
            if reservation is not None:
                capacity.reserve(reservation)
                plan[index] = reservation
                if swapping:
                    heappush(largest, self._entry(index, reservation))
            elif not swap:
                possible -= case.job.weight
                if possible <= better_than:
                    return {}
        return plan

    def reserve_first(self, chosen: Iterable[int]) -> Plan:
        """Reserve devices for the jobs ``chosen``, in this order, up to the first job that does not fit."""
        capacity, plan = self._pool.empty(), Plan()
        for index in chosen:
            reservation = self.due[index].fit(capacity)
            if reservation is None:
                break
            capacity.reserve(reservation)
            plan[index] = reservation
        return plan

    def keep(self, chosen: Iterable[int], last: Mapping[str, Reservation | None]) -> Plan | None:
        """Return a plan with what is left of the jobs' last reservations; ``None`` if they do not suffice for all."""
        capacity, plan = self._pool.empty(), Plan()
        for index in chosen:
            reservation = self.due[index].keep(capacity, last.get(self.due[index].job.name))
            if reservation is None:
                return None
            capacity.reserve(reservation)
            plan[index] = reservation
        return None if capacity.is_overbooked else plan

    def add_in_order(self, plan: Plan, new: Iterable[int], fewest: Mapping[str, int] | None = None) -> Plan:
        """Return ``plan`` with those of the jobs ``new`` that fit in deadline order, or else into the free devices."""
        wider = DeadlinePlan(self._pool, ((self.due[index], reservation) for index, reservation in plan.items()))
        for case in (self.due[index] for index in new):
            wider = wider.with_job(case, fewest) or wider
        index_of = {case.job.name: index for index, case in enumerate(self.due)}
        return {index_of[case.job.name]: reservation for case, reservation in wider.planned}

    def fill_gaps(self, plan: Plan, chosen: Iterable[int]) -> Plan:
        """Return ``plan`` with those of the jobs ``chosen`` that fit into its free devices, in this order."""
        capacity, filled = self._pool.empty(), dict(plan)
        for reservation in plan.values():
            capacity.reserve(reservation)
        for index in chosen:
            fitting = self.due[index].fit(capacity)
            if fitting is not None:
                capacity.reserve(fitting)
                filled[index] = fitting
        return filled

    def earliest_end_s(self, plan: Plan, case: JobCase) -> float:
        """Return the earliest end of another job in the devices that ``plan`` leaves free, infinite if it has none."""
        capacity = self._pool.empty()
        for reservation in plan.values():
            capacity.reserve(reservation)
        return min(capacity.ends_s(case.curve, case.work_left, case.change_s).values(), default=inf)

    def add_margins(self, plan: Plan) -> Plan:
        """Return ``plan`` with longer reservations, if possible, for the jobs that may get spare devices.

        Such a job can return to its reservation at any time, although both changes cost time.
        """
        capacity, longer = self._pool.empty(), Plan()
        for reservation in plan.values():
            capacity.reserve(reservation)
        for index, reservation in plan.items():
            case = self.due[index]
            extended = capacity.extend(reservation, 2 * case.change_s, case.deadline_s)
            case.may_grow = extended is not None
            longer[index] = extended or reservation
        return longer

    def _entry(self, index: int, reservation: Reservation) -> tuple[float, int]:
        return -self.due[index].per_weight(reservation.device_s), index

    def _replace_larger_job(
        self, index: int, plan: Plan, largest: list[tuple[float, int]], capacity: Capacity
    ) -> Reservation | None:
        """Drop a larger job from the plan if this makes room for a job; return the reservation of this job."""
        case = self.due[index]
        needed, reservation = self.size(index), None
        tried: list[tuple[float, int]] = []
        while reservation is None and len(tried) < _SWAP_TRIES and largest and -largest[0][0] > needed:
            entry = heappop(largest)
            capacity.release(plan[entry[1]])
            reservation = case.fit(capacity)
            if reservation is not None and case.per_weight(reservation.device_s) < -entry[0]:
                del plan[entry[1]]
            else:
                reservation = None
                capacity.reserve(plan[entry[1]])
                tried.append(entry)
        for entry in tried:
            heappush(largest, entry)
        return reservation
