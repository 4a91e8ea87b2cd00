"""Randomized Greedy, the allocator of ANDREAS: the best of many schedules, each built greedily with a little chance.

It weighs what it costs that jobs are late against what nodes of several kinds cost while they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import exp, inf
from random import Random

from paceline.allocate.andreas.construction import Construction, PendingJob, Placed, Schedule
from paceline.allocate.andreas.neighbourhood import SearchStart, neighbour
from paceline.allocate.andreas.objective import PERIOD_S, RHO
from paceline.allocate.model import Allocation, ClusterJob, Node, Placement
from paceline.errors import InvalidInputError

_PLACEMENTS = 3000  # of jobs, in all schedules of one decision: some ten milliseconds
_PATIENCE = 40  # neighbours without success, until another schedule is built from scratch
_LOOKAHEAD = 0.3  # of urgency, in mean times of jobs


class RandomizedGreedy:
    """Decides anew, each time it is asked, who runs where: the best of many schedules by f_OBJ.

    In each schedule, jobs choose one after the other, the most urgent first: the cheapest configuration that meets the
    due date, the fastest if none does, or the next best of those that are still free. The first schedule is built by
    these rules alone; in the others, some jobs change places in the queue and some try another configuration first.
    A job without a due date comes last, but runs wherever there are devices that nobody else can use.

    As published, running jobs move about freely, and the paper's simulator lets them do so at no cost. Where they begin
    again at their last snapshot, much work is done twice. So by default

    - devices that a running job has are offered to others last, as long as its turn has not come,
    - configurations on other nodes take longer by what a move loses,
    - no schedule is taken in which a job leaves its node that stays there in the first one,
    - jobs choose by their *urgency*, omega / t · exp(-slack / (0.3 · mean t)), as in the rule of apparent tardiness
      costs: among jobs that will be late, short and important ones go first.

    Parameters
    ----------
    iterations:
        Schedules to choose from. Fewer where many jobs run, as many as place 3,000 jobs in all, so that a decision
        takes about as long in a large cluster as in a small one.
    period_s:
        The scheduling interval H: so much later, at worst, a job begins that is postponed.
    rho:
        The weight of postponed jobs.
    seed:
        Of the chance. The same question gets the same answer.
    improve:
        ``False``: as published, without the changes above.
    local_search:
        Improve schedules by small changes, too, that take nothing from running jobs. It finds the smallest f_OBJ for a
        few jobs nearly always, but costs more over time: f_OBJ has no price for using up the slack of jobs that are
        still in time, and prefers jobs that take long to those that would soon make room.
    move_s:
        Seconds of training that a job loses if it leaves its node: half of the time between two snapshots.

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
    >>> found = RandomizedGreedy().allocate(jobs, [node], 0.0, rescale=True)
    >>> found.placements
    {'soon': Placement(node='n', devices=2)}
    >>> found.reasons["later"]
    'waits: the devices that it can use went to jobs for which it is more expensive to wait'
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
                raise InvalidInputError(field, value, "a number from 0")
        self._iterations = iterations
        self._period_s = period_s
        self._rho = rho
        self._seed = seed
        self._improve = improve
        self._local_search = improve and local_search
        self._move_s = move_s if improve else 0.0

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``; all jobs are decided anew at every moment, a regular one or not."""
        work = Construction(
            jobs,
            nodes,
            now_s,
            self._rho,
            self._period_s,
            move_s=self._move_s,
            considerate=self._improve,
        )
        found = self._search(work)
        placements = {
            work.tasks[number].job.name: Placement(nodes[given.node].name, given.choice.devices)
            for number, given in found.placed.items()
        }
        reasons = {job.name: "waits: no node has devices that it can use" for job in jobs}
        late = set()
        for task in work.tasks:
            given = found.placed.get(task.number)
            reasons[task.job.name] = _reason(task, given)
            if given.choice.late if given is not None else task.pressure_s > 0:
                late.add(task.job.name)
        return Allocation(placements, reasons, frozenset(late))

    def _search(self, work: Construction) -> Schedule:
        order = sorted(work.tasks, key=_urgency(work.tasks) if self._improve else _pressure)
        best = current = work.build(order)
        if not order:
            return best
        bound = _bound(work.tasks, best) if self._improve else {}
        draw = Random(self._seed)  # noqa: S311 - a heuristic, no secret
        shares = [_shares(task) for task in work.tasks]
        failed = 0
        for _ in range(min(self._iterations, _PLACEMENTS // (len(best.placed) + 1)) - 1):
            local = self._local_search and failed < _PATIENCE
            plan = neighbour(current, work, order, bound, draw) if local else _randomized(order, shares, draw)
            schedule = work.build(*plan)
            failed = failed + 1 if local and schedule.value >= current.value else 0
            if not _respects(schedule, bound, devices=self._local_search):
                continue
            if not local or schedule.value <= current.value:
                current = schedule
            if schedule.value < best.value:
                best = schedule
        return best


def _bound(tasks: Sequence[PendingJob], first: Schedule) -> dict[int, Placed]:
    """The running jobs that keep their nodes in the first schedule, and what they have there."""
    given = ((task, first.placed.get(task.number)) for task in tasks if task.held)
    return {task.number: placed for task, placed in given if placed is not None and placed.node == task.node}


def _respects(schedule: Schedule, bound: Mapping[int, Placed], *, devices: bool) -> bool:
    """Whether they keep their nodes in this one too, and as many devices if that is asked for."""
    for number, before in bound.items():
        now = schedule.placed.get(number)
        if now is None or now.node != before.node or (devices and now.choice.devices < before.choice.devices):
            return False
    return True


def _pressure(task: PendingJob) -> float:
    """Line 6 of algorithm 1: those first that are closest to their due date, equation (2)."""
    return -task.pressure_s


def _urgency(tasks: Sequence[PendingJob]) -> Callable[[PendingJob], tuple[float, float]]:
    """Those first for which each second of waiting costs most, by the time that they need."""
    mean_s = sum(task.fastest_s for task in tasks) / max(1, len(tasks)) or 1.0

    def key(task: PendingJob) -> tuple[float, float]:
        slack_s = max(0.0, -task.pressure_s)
        return -task.job.weight / max(task.fastest_s, 1e-9) * exp(-slack_s / (_LOOKAHEAD * mean_s)), -task.pressure_s

    return key


def _shares(task: PendingJob) -> list[float]:
    """Running sums of what is proportional to the chance of a configuration: the inverse of its cost.

    Only those that meet the due date are drawn; if none does, all of them, by their times.
    """
    shown = task.choices[: task.in_time] or task.choices
    return list(accumulate(1.0 / max(one.cost if task.in_time else one.seconds, 1e-12) for one in shown))


def _randomized(order: Sequence[PendingJob], shares: Sequence[Sequence[float]], draw: Random) -> SearchStart:
    """Jobs change places with the next, and try another configuration first; how many of them is drawn, too.

    The paper does not say how many. In a large cluster, a schedule in which many of them do is never the best; in a
    small one, those in which few do are soon all known.
    """
    share = max(1, len(order)) ** -draw.random()
    lightest = min((task.job.weight for task in order if task.job.weight > 0), default=1.0)
    swapped = list(order)
    for place in range(len(swapped) - 1):
        # with a probability inversely proportional to the weight
        if draw.random() * max(lightest, swapped[place].job.weight) < share * lightest:
            swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
    wishes = {}
    for task in order:
        if draw.random() < share:
            sums = shares[task.number]
            point = draw.random() * sums[-1]
            wishes[task.number] = Placed(task.choices[next(n for n, each in enumerate(sums) if each >= point)], -1)
    return SearchStart(swapped, wishes)


def _reason(task: PendingJob, given: Placed | None) -> str:
    if given is None:
        return ("waits" if not task.held else "is stopped") + (
            ": the devices that it can use went to jobs for which it is more expensive to wait"
        )
    choice = given.choice
    if choice.late:
        late_s = choice.seconds - task.due_in_s
        missed = "no node is fast enough" if not task.in_time else "what would be in time is given to others"
        return f"will be {late_s:.0f} s late: {missed}"
    cheapest = "the cheapest place" if choice == task.choices[0] else "the cheapest place that others leave"
    if task.due_in_s == inf:
        return f"{cheapest}; it has no due date"
    return f"{cheapest} that meets the due date, {task.due_in_s - choice.seconds:.0f} s before it"
