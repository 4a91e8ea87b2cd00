"""The best of many random greedy schedules: the search of ``RandomizedGreedy`` and of ``LeastCost``.

The search weighs the tardiness cost of jobs against the energy cost of nodes of several kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import inf
from random import Random
from typing import TypeAlias

from paceline.allocate._model import Allocation, ClusterJob, Node, Placement, Policy
from paceline.allocate.andreas._construction import Construction, PendingJob, Placed, Schedule
from paceline.allocate.andreas._neighbourhood import ConstructionInput, neighbour
from paceline.contract import Reason, ReasonKind
from paceline.errors import InvalidInputError

_PATIENCE = 40  # failed neighbours in a row after which the search builds a schedule from scratch
SortKey: TypeAlias = Callable[[PendingJob], tuple[float, ...]]


class ScheduleSearch(Policy):
    """Policy that builds many schedules at each decision, and applies the schedule with the lowest f_OBJ.

    In each schedule, jobs choose in order. A job chooses the cheapest free configuration that meets its due date, else
    the fastest. The first schedule follows these rules exactly; in all other schedules, some jobs swap places in the
    order, and some try another configuration first. A job without a due date chooses last, and runs on any devices that
    remain.

    The two policies differ in the order of the jobs (``sort_key``), the number of schedules (``schedules``) and the
    cost of moves (``move_s``). ``protects_running``: other jobs get the devices of a running job only as a last resort,
    and a job that stays on its node in the first schedule stays there. ``local_search``: schedules are also improved by
    small changes.
    """

    shares_pool = False  # without prices and energy, all schedules cost the same
    move_s = 0.0
    protects_running = False
    local_search = False

    def __init__(self, *, iterations: int, period_s: float, rho: float, seed: int) -> None:
        if iterations < 1:
            raise InvalidInputError("iterations", iterations, "1 or more")
        for field, value in (("period_s", period_s), ("rho", rho)):
            if not 0 <= value < inf:
                raise InvalidInputError(field, value, "a finite number, 0 or more")
        self.iterations, self.period_s, self.rho, self.seed = iterations, period_s, rho, seed

    def sort_key(self, pending_jobs: Sequence[PendingJob]) -> SortKey:
        """Return the key that sorts the jobs in the order in which they choose."""
        raise NotImplementedError

    def schedules(self, placed: int) -> int:
        """Return the number of schedules to build if the first schedule places ``placed`` jobs."""
        return self.iterations

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``; ``rescale`` has no effect, because every decision places all jobs again."""
        problem = Construction(
            jobs,
            nodes,
            now_s,
            self.rho,
            self.period_s,
            move_s=self.move_s,
            protect_running=self.protects_running,
        )
        schedule = self._best_schedule(problem)
        placements = {
            problem.jobs[number].job.name: Placement(nodes[placed.node].name, placed.choice.devices)
            for number, placed in schedule.placed.items()
        }
        reasons = {job.name: Reason.of(ReasonKind.CANNOT_RUN) for job in jobs}
        late = set()
        for pending in problem.jobs:
            placed = schedule.placed.get(pending.number)
            reasons[pending.job.name] = _reason(pending, placed)
            if placed.choice.late if placed is not None else pending.pressure_s > 0:
                late.add(pending.job.name)
        return Allocation(placements, reasons, frozenset(late))

    def _best_schedule(self, problem: Construction) -> Schedule:
        order = sorted(problem.jobs, key=self.sort_key(problem.jobs))
        best = current = problem.build(order)
        if not order:
            return best
        pinned = _pinned(problem.jobs, best) if self.protects_running else {}
        rng = Random(self.seed)  # noqa: S311 - a heuristic, no secret
        cumulative_weights = [_cumulative_weights(pending) for pending in problem.jobs]
        failed = 0
        for _ in range(self.schedules(len(best.placed)) - 1):
            local = self.local_search and failed < _PATIENCE
            plan = (
                neighbour(current, problem, order, pinned, rng) if local else _randomize(order, cumulative_weights, rng)
            )
            schedule = problem.build(*plan)
            failed = failed + 1 if local and schedule.value >= current.value else 0
            if not _keeps_pinned_jobs(schedule, pinned, devices=self.local_search):
                continue
            if not local or schedule.value <= current.value:
                current = schedule
            if schedule.value < best.value:
                best = schedule
        return best


def _pinned(pending_jobs: Sequence[PendingJob], first: Schedule) -> dict[int, Placed]:
    """Return the placements of the running jobs that keep their nodes in the first schedule."""
    running = ((pending, first.placed.get(pending.number)) for pending in pending_jobs if pending.held)
    return {pending.number: placed for pending, placed in running if placed is not None and placed.node == pending.node}


def _keeps_pinned_jobs(schedule: Schedule, pinned: Mapping[int, Placed], *, devices: bool) -> bool:
    """Return whether the pinned jobs keep their nodes and, if ``devices`` is set, lose no devices."""
    for number, before in pinned.items():
        now = schedule.placed.get(number)
        if now is None or now.node != before.node or (devices and now.choice.devices < before.choice.devices):
            return False
    return True


def _cumulative_weights(pending: PendingJob) -> list[float]:
    """Return cumulative weights for a random choice among the configurations of a job that meet its due date.

    The weights are the inverse of the costs. If no configuration meets the due date, the choice is among all
    configurations, with the inverse of their durations as weights.
    """
    considered = pending.choices[: pending.in_time] or pending.choices
    return list(accumulate(1.0 / max(one.cost if pending.in_time else one.seconds, 1e-12) for one in considered))


def _randomize(
    order: Sequence[PendingJob], cumulative_weights: Sequence[Sequence[float]], rng: Random
) -> ConstructionInput:
    """Swap some adjacent jobs and choose some configurations at random; one random fraction controls both.

    The paper does not specify the fraction. In a large cluster, schedules with many changes are never the best; in a
    small cluster, the search soon exhausts the schedules with few changes.
    """
    share = max(1, len(order)) ** -rng.random()
    lightest = min((pending.job.weight for pending in order if pending.job.weight > 0), default=1.0)
    swapped = list(order)
    for place in range(len(swapped) - 1):
        # The probability of a swap is inversely proportional to the weight of the job.
        if rng.random() * max(lightest, swapped[place].job.weight) < share * lightest:
            swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
    preferences = {}
    for pending in order:
        if rng.random() < share:
            sums = cumulative_weights[pending.number]
            point = rng.random() * sums[-1]
            preferences[pending.number] = Placed(
                pending.choices[next(n for n, each in enumerate(sums) if each >= point)], -1
            )
    return ConstructionInput(swapped, preferences)


def _reason(pending: PendingJob, placed: Placed | None) -> Reason:
    if placed is None:
        return Reason.of(ReasonKind.COSTS_LESS_TO_WAIT, state="preempted" if pending.held else "waits")
    slack_s = pending.due_in_s - placed.choice.seconds
    if placed.choice.late:
        return Reason.of(ReasonKind.FAST_NODES_TAKEN if pending.in_time else ReasonKind.TOO_SLOW, late_s=-slack_s)
    if pending.due_in_s == inf:
        return Reason.of(ReasonKind.CHEAPEST)
    return Reason.of(ReasonKind.CHEAPEST_IN_TIME, slack_s=slack_s)
