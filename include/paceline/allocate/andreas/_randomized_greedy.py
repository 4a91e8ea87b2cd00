"""Randomized Greedy, the allocator of ANDREAS: the best of many schedules, each built greedily with some randomness.

The search weighs the tardiness cost of jobs against the energy cost of nodes of several kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import exp, inf
from random import Random

from paceline.allocate._model import Allocation, ClusterJob, Node, Placement
from paceline.allocate.andreas._construction import Construction, PendingJob, Placed, Schedule
from paceline.allocate.andreas._neighbourhood import ConstructionInput, neighbour
from paceline.allocate.andreas.objective import PERIOD_S, RHO
from paceline.errors import InvalidInputError

_MAX_PLACEMENTS = 3000  # placed jobs in all schedules of one decision, about ten milliseconds of work
_PATIENCE = 40  # failed neighbours in a row after which the search builds a schedule from scratch
_LOOKAHEAD = 0.3  # time scale of the urgency, as a multiple of the mean job duration


class RandomizedGreedy:
    """Policy that builds many schedules at each decision, and applies the schedule with the lowest f_OBJ.

    In each schedule, jobs choose in order of urgency. A job chooses the cheapest free configuration that meets its due
    date, else the fastest. The first schedule follows these rules exactly; in all other schedules, some jobs swap
    places in the order, and some try another configuration first. A job without a due date chooses last, and runs on
    any devices that remain.

    In the published algorithm, running jobs move freely, and the paper's simulator does not charge for moves. If jobs
    resume from their last snapshot, moves repeat much work. Therefore, by default,

    - other jobs get the devices of a running job before its turn only as a last resort,
    - the duration of a configuration on another node includes the work that a job has to repeat after a move,
    - a job that stays on its node in the first schedule also stays on this node in the selected schedule,
    - jobs choose by their *urgency*, omega / t · exp(-slack / (0.3 · mean t)), the rule of apparent tardiness costs:
      among late jobs, short and important jobs come first.

    Parameters
    ----------
    iterations:
        Number of schedules. All schedules together place at most 3,000 jobs, so that a decision in a large cluster
        takes about as long as a decision in a small cluster.
    period_s:
        The scheduling interval H: the longest time until a postponed job starts, in seconds.
    rho:
        The weight of postponed jobs.
    seed:
        Seed of the search, which makes decisions deterministic.
    improve:
        Whether to make the changes listed above; ``False`` runs the published algorithm.
    local_search:
        Whether to also improve schedules by small changes that take no devices from running jobs. With few jobs, this
        search nearly always finds the smallest f_OBJ. Over many decisions, however, jobs cost more: f_OBJ ignores the
        slack that jobs lose, and prefers long jobs to short jobs that would soon release their devices.
    move_s:
        Seconds of training that a job loses when it moves to another node: half of the snapshot interval.

    References
    ----------
    Filippini et al., ANDREAS: Artificial intelligence training scheduler for accelerated resource clusters, section IV
    and algorithm 1. Vepsalainen and Morton, Priority rules for job shops with weighted tardiness costs, 1987.

    Examples
    --------
    >>> from paceline.allocate import Speeds
    >>> speeds = {"V100": Speeds((1, 2), (1.0, 1.8))}
    >>> jobs = [ClusterJob("soon", 0.0, 90.0, speeds, 60.0), ClusterJob("later", 0.0, 90.0, speeds, 500.0)]
    >>> node = Node("n", 2, "V100", cost_per_s=(0.0, 2.0, 3.0))
    >>> allocation = RandomizedGreedy().allocate(jobs, [node], 0.0, rescale=True)
    >>> allocation.placements
    {'soon': Placement(node='n', devices=2)}
    >>> allocation.reasons["later"]
    'waits: waiting costs less for this job than for the jobs that got the devices'
    """

    name = "rg"

    def __init__(
        self,
        *,
        iterations: int = 1000,
        period_s: float = PERIOD_S,
        rho: float = RHO,
        seed: int = 0,
        improve: bool = True,
        local_search: bool = False,
        move_s: float = 30.0,
    ) -> None:
        if iterations < 1:
            raise InvalidInputError("iterations", iterations, "1 or more")
        for field, value in (("period_s", period_s), ("rho", rho), ("move_s", move_s)):
            if not 0 <= value < inf:
                raise InvalidInputError(field, value, "a finite number, 0 or more")
        self._iterations = iterations
        self._period_s = period_s
        self._rho = rho
        self._seed = seed
        self._improve = improve
        self._local_search = improve and local_search
        self._move_s = move_s if improve else 0.0

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``; ``rescale`` has no effect, because every decision places all jobs again."""
        problem = Construction(
            jobs,
            nodes,
            now_s,
            self._rho,
            self._period_s,
            move_s=self._move_s,
            protect_running=self._improve,
        )
        schedule = self._best_schedule(problem)
        placements = {
            problem.jobs[number].job.name: Placement(nodes[placed.node].name, placed.choice.devices)
            for number, placed in schedule.placed.items()
        }
        reasons = {job.name: "waits: no node has devices that the job can use" for job in jobs}
        late = set()
        for pending in problem.jobs:
            placed = schedule.placed.get(pending.number)
            reasons[pending.job.name] = _reason(pending, placed)
            if placed.choice.late if placed is not None else pending.pressure_s > 0:
                late.add(pending.job.name)
        return Allocation(placements, reasons, frozenset(late))

    def _best_schedule(self, problem: Construction) -> Schedule:
        order = sorted(problem.jobs, key=_urgency(problem.jobs) if self._improve else _pressure)
        best = current = problem.build(order)
        if not order:
            return best
        pinned = _pinned(problem.jobs, best) if self._improve else {}
        rng = Random(self._seed)  # noqa: S311 - a heuristic, no secret
        cumulative_weights = [_cumulative_weights(pending) for pending in problem.jobs]
        failed = 0
        for _ in range(min(self._iterations, _MAX_PLACEMENTS // (len(best.placed) + 1)) - 1):
            local = self._local_search and failed < _PATIENCE
            plan = (
                neighbour(current, problem, order, pinned, rng) if local else _randomize(order, cumulative_weights, rng)
            )
            schedule = problem.build(*plan)
            failed = failed + 1 if local and schedule.value >= current.value else 0
            if not _keeps_pinned_jobs(schedule, pinned, devices=self._local_search):
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


def _pressure(pending: PendingJob) -> float:
    """Return the sort key of line 6 of algorithm 1: jobs closest to their due date first, equation (2)."""
    return -pending.pressure_s


def _urgency(pending_jobs: Sequence[PendingJob]) -> Callable[[PendingJob], tuple[float, float]]:
    """Return a sort key that puts the jobs with the highest apparent tardiness cost per second of duration first."""
    mean_s = sum(pending.fastest_s for pending in pending_jobs) / max(1, len(pending_jobs)) or 1.0

    def urgency_key(pending: PendingJob) -> tuple[float, float]:
        slack_s = max(0.0, -pending.pressure_s)
        return -pending.job.weight / max(pending.fastest_s, 1e-9) * exp(
            -slack_s / (_LOOKAHEAD * mean_s)
        ), -pending.pressure_s

    return urgency_key


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
    """Swap some adjacent jobs and choose some configurations at random; the fraction of both is random.

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


def _reason(pending: PendingJob, placed: Placed | None) -> str:
    if placed is None:
        return ("waits" if not pending.held else "preempted") + (
            ": waiting costs less for this job than for the jobs that got the devices"
        )
    choice = placed.choice
    if choice.late:
        late_s = choice.seconds - pending.due_in_s
        missed = "no node is fast enough" if not pending.in_time else "other jobs use the nodes that are fast enough"
        return f"will be {late_s:.0f} s late: {missed}"
    cheapest = "cheapest placement" if choice == pending.choices[0] else "cheapest free placement"
    if pending.due_in_s == inf:
        return f"{cheapest}; the job has no due date"
    return f"{cheapest} that meets the due date, with {pending.due_in_s - choice.seconds:.0f} s of slack"
