"""Plans that keep promises: new jobs get devices only beside the jobs whose deadlines are promised."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from paceline.allocate._model import Reservation
from paceline.allocate.on_time._plan import Plan, Planner

_TRIED_JOBS = 16  # maximum number of new jobs for which all jobs are planned anew, the smallest first
_MAX_RESERVATIONS = 3000  # limit for all tried jobs together: with a large plan, fewer jobs are tried
# Deadline extension to try before dropping a promised job, as a fraction of the time from arrival to deadline.
STRETCH = 0.01


def plan_with_promises(planner: Planner, last: Mapping[str, Reservation | None]) -> Plan:
    """Return a plan for all promised jobs, and for as many other jobs as fit beside them.

    All jobs are planned with cautious speeds, so that their deadlines are met with the confidence of the policy. The
    promised jobs are planned anew in deadline order. If they do not all fit then, because the new allocations fill the
    pool less completely, each keeps its last reservation. If that does not suffice either, because jobs take longer
    than estimated, the promised jobs are planned again in these two ways: first with their expected speeds, without a
    margin; then with deadlines that are extended by a hundredth of the time from arrival to deadline. If even that is
    not enough, some promised jobs are late.

    Parameters
    ----------
    planner:
        The planner, with all jobs that have deadlines.
    last:
        Last reservation of each promised job, by name; ``None`` if another arbiter has promised the deadline. If these
        promises do not all fit in deadline order, they are planned in the order in which they were made.
    """
    feasible = planner.feasible()
    promised, begin = sorted(_promised(planner, last)), Plan()
    if set(promised).issubset(feasible):
        begin = planner.reserve_first(feasible)
        if len(begin) == len(feasible):
            return planner.add_margins(begin)
    # First those whose promise was broken, or was made at admission although the last plan had no room.
    new = sorted(
        set(feasible).difference(promised), key=lambda index: (not planner.due[index].job.promised, planner.size(index))
    )
    plan = planner.reserve_in_order(promised, begin)
    if len(plan) == len(promised):
        return planner.add_margins(_add_one_by_one(planner, plan, new))
    kept = _kept(planner, promised, new, last)
    if kept is None and any(planner.due[index].has_margin for index in promised):
        for index in promised:
            planner.due[index].expect()
        new = []  # new promises would take the devices that were the margins of earlier ones
        plan = planner.reserve_in_order(promised)
        if len(plan) == len(promised):
            return planner.add_margins(plan)
        kept = _kept(planner, promised, new, last)
    if kept is not None:
        return kept
    if None in last.values():
        plan = max(_plan_in_order_of_promises(planner, set(planner.feasible()).intersection(promised)), plan, key=len)
        if len(plan) == len(promised):
            return planner.add_margins(_add_one_by_one(planner, plan, new))
    return _stretched(planner, promised, new, plan, last)


def _kept(
    planner: Planner, promised: Sequence[int], new: Sequence[int], last: Mapping[str, Reservation | None]
) -> Plan | None:
    """Return a plan in which the promised jobs keep their last reservations, and the jobs ``new`` fill the gaps."""
    exact = planner.with_ends(_changes_s(last))
    kept = exact.keep(promised, last)
    return None if kept is None else exact.add_margins(exact.fill_gaps(kept, new))


def _plan_in_order_of_promises(planner: Planner, promised: Collection[int]) -> Plan:
    """Return a plan for the jobs that is close to the last plan of the arbiter that made the promises.

    Each job was planned in deadline order with all earlier ones, or in the gaps that they left. Jobs keep at least the
    devices that they have, because others were planned for the time after these jobs end.
    """
    fewest = {planner.due[index].job.name: planner.due[index].held for index in promised}
    order = sorted(promised, key=lambda index: (planner.due[index].job.promise or 0, planner.size(index)))
    counts = range(1, len(order) + 1)

    def by_deadline(count: int) -> Plan:
        return planner.reserve_in_order(sorted(order[:count]), min_devices=fewest)

    fitting = bisect_left(counts, True, key=lambda count: len(by_deadline(count)) < count)
    return _add_one_by_one(planner, by_deadline(fitting), order[fitting:], fewest)


def _add_one_by_one(planner: Planner, plan: Plan, new: Sequence[int], fewest: Mapping[str, int] | None = None) -> Plan:
    """Return a plan with the jobs of ``plan`` and those of the jobs ``new`` that fit beside all jobs before them."""
    tried = min(_TRIED_JOBS, _MAX_RESERVATIONS // (len(plan) + 1) + 1)
    return planner.fill_gaps(planner.add_in_order(plan, new[:tried], fewest), new[tried:])


def _promised(planner: Planner, last: Mapping[str, Reservation | None]) -> set[int]:
    return {index for index, case in enumerate(planner.due) if case.job.name in last}


def _changes_s(last: Mapping[str, Reservation | None]) -> list[float]:
    """Return the times at which the reservations change, except their ends."""
    return [end_s for reservation in last.values() if reservation is not None for end_s, _ in reservation.runs[:-1]]


def _stretched(
    planner: Planner,
    promised: Sequence[int],
    new: Sequence[int],
    possible: Plan,
    last: Mapping[str, Reservation | None],
) -> Plan:
    """Return a plan with extended deadlines for all promised jobs, if that suffices, or else ``possible``."""
    for index in promised:
        planner.due[index].stretch_deadline(STRETCH)
    later = planner.with_ends()
    plan = later.reserve_in_order(promised)
    if len(plan) < len(promised):
        later = planner.with_ends(_changes_s(last))  # the last plan may have filled gaps with jobs promised since
        plan = later.keep(promised, last) or {}
    if len(plan) == len(promised):
        return later.add_margins(later.fill_gaps(plan, new))
    for index in promised:
        planner.due[index].stretch_deadline(0.0)
    return planner.add_margins(planner.fill_gaps(possible, new))
