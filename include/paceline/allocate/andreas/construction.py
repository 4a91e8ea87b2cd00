"""One schedule, built greedily: jobs in a given order, each on the best configuration that is still free.

The inner step of :mod:`~paceline.allocate.andreas.randomized_greedy`: lines 5 to 17 of algorithm 1 of ANDREAS.
Nodes that are equal are bits of one integer, so that one is found among a thousand as fast as among ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.allocate.andreas.objective import configurations, due_in_s, tardiness_cost
from paceline.allocate.model import ClusterJob, Node


class Choice(NamedTuple):
    """A job on so many devices of a node of a group, or of the node on which it already is."""

    group: int
    devices: int
    seconds: float  # until it ends; what a move loses is done again
    cost: float  # of the node in that time
    late: bool
    tardiness: float  # omega · tau
    stays: bool


class PendingJob(NamedTuple):
    """A job as the construction sees it."""

    number: int
    job: ClusterJob
    choices: tuple[Choice, ...]  # in time, the cheapest first; then late, the fastest first
    in_time: int  # how many of them are
    due_in_s: float
    fastest_s: float
    postponed: float  # rho · omega · tau_hat
    node: int  # on which it is now; -1 if it waits
    held: int  # devices that it has there

    @property
    def pressure_s(self) -> float:
        """Delta of equation (2): how late it is, alone on the fastest configuration."""
        return self.fastest_s - self.due_in_s


class Placed(NamedTuple):
    """What a job got: a choice, and the node for it."""

    choice: Choice
    node: int


class Schedule(NamedTuple):
    """Who runs on which node, in the order in which they chose, and f_OBJ."""

    value: float
    placed: dict[int, Placed]


class Construction:
    """What one decision is about, made ready for many constructions.

    Parameters
    ----------
    jobs, nodes, now_s, rho, period_s:
        As in :func:`paceline.allocate.andreas.objective.objective`.
    move_s:
        Seconds of training that a job loses if it leaves its node.
    considerate:
        Whether devices that a running job has are offered to others last, as long as its turn has not come, and not at
        all to jobs that would still be in time if they waited for ``period_s``.
    """

    def __init__(
        self,
        jobs: Sequence[ClusterJob],
        nodes: Sequence[Node],
        now_s: float,
        rho: float,
        period_s: float,
        *,
        move_s: float,
        considerate: bool,
    ) -> None:
        self.nodes = nodes
        groups: dict[tuple[object, ...], list[int]] = {}
        for number, node in enumerate(nodes):
            groups.setdefault((node.kind, node.devices, node.cost_per_s), []).append(number)
        self.groups = list(groups.values())
        self.group_of = {number: group for group, members in enumerate(self.groups) for number in members}
        self._numbers = {node.name: number for number, node in enumerate(nodes)}
        self.tasks: list[PendingJob] = []
        self._never = 0.0  # what those cost for whom there is no node
        for job in jobs:
            task = self._task(len(self.tasks), job, now_s, rho, period_s, move_s)
            if task.choices:
                self.tasks.append(task)
            else:
                self._never += task.postponed
        self._considerate = considerate
        self._period_s = period_s
        self._held = [0] * len(nodes)
        for task in self.tasks if considerate else ():
            if task.held:
                self._held[task.node] += task.held

    def _task(
        self, number: int, job: ClusterJob, now_s: float, rho: float, period_s: float, move_s: float
    ) -> PendingJob:
        """All configurations of a job: one for each group of equal nodes, and those of the node on which it is."""
        due_s = due_in_s(job, now_s)
        held, node, lost = 0, -1, 0.0
        if job.held is not None:
            held, node = job.held.devices, self._numbers[job.held.node]
            lost = move_s * job.speeds[self.nodes[node].kind].at(held)  # work that is done again after a move
        drafts: list[tuple[int, int, float, float, bool]] = []
        slowest_s = 0.0
        for group, members in enumerate(self.groups):
            one = self.nodes[members[0]]
            for devices, seconds, cost in configurations(job, one, now_s):
                slowest_s = max(slowest_s, seconds)
                if held and self.group_of[node] == group:
                    drafts.append((group, devices, seconds, cost, True))
                if lost:
                    seconds += lost / job.speeds[one.kind].at(devices)
                    cost = seconds * one.cost(devices)
                drafts.append((group, devices, seconds, cost, False))
        postponed = rho * tardiness_cost(job, period_s + slowest_s, now_s)
        choices = [
            Choice(group, devices, s, cost, s >= due_s, tardiness_cost(job, s, now_s), stays)
            for group, devices, s, cost, stays in drafts
        ]
        choices.sort(key=_rank)
        in_time = sum(not one.late for one in choices)
        fastest_s = min((one.seconds for one in choices), default=0.0)
        return PendingJob(number, job, tuple(choices), in_time, due_s, fastest_s, postponed, node, held)

    def build(self, order: Sequence[PendingJob], wishes: Mapping[int, Placed] | None = None) -> Schedule:
        """Build a schedule.

        Parameters
        ----------
        order:
            Who chooses first.
        wishes:
            What some of the tasks try first, by their numbers; node -1 is any node of the group.
        """
        value = self._never
        free = [node.devices for node in self.nodes]
        held = self._held.copy()  # by jobs that have not yet chosen
        left = sum(free)
        whole = self._masks(free)
        spare = self._masks([max(0, devices - kept) for devices, kept in zip(free, held, strict=True)])
        first: dict[int, tuple[float, float]] = {}
        placed: dict[int, Placed] = {}
        queue = list(order)
        for place, task in enumerate(queue):
            if not left:
                break
            again = place >= len(order)
            if not again and task.held and self._considerate:
                node = task.node
                before = max(0, free[node] - held[node])
                held[node] -= task.held
                spare[self.group_of[node]].shift(node, before, max(0, free[node] - held[node]))
            found = None
            if wishes:
                wish = wishes.get(task.number)
                if wish is not None and (wish.node < 0 or free[wish.node] >= wish.choice.devices):
                    found = wish if wish.node >= 0 else self._fit((wish.choice,), spare, whole, task.node)
            if found is None and self._considerate and not again and task.pressure_s < -self._period_s:
                found = _fitting(task.choices[: task.in_time], spare, task.node)
                if found is None:
                    queue.append(task)
                    continue
            if found is None:
                found = self._fit(task.choices[: task.in_time], spare, whole, task.node)
            if found is None:
                found = self._fit(task.choices[task.in_time :], spare, whole, task.node)
            if found is None:
                continue
            (group, devices, seconds, cost, _, tardiness, _), node = found
            now_free = free[node] - devices
            whole[group].shift(node, free[node], now_free)
            spare[group].shift(node, max(0, free[node] - held[node]), max(0, now_free - held[node]))
            free[node] = now_free
            left -= devices
            value += tardiness
            earlier = first.get(node)
            if earlier is None:
                first[node] = (seconds, cost)
                value += cost
            elif (seconds, cost) < earlier:
                first[node] = (seconds, cost)
                value += cost - earlier[1]
            placed[task.number] = found
        value += sum(task.postponed for task in self.tasks if task.number not in placed)
        return Schedule(value, placed)

    def _fit(
        self, choices: Sequence[Choice], spare: Sequence[_Free], whole: Sequence[_Free], now_on: int
    ) -> Placed | None:
        """The first of the choices that fits: where it disturbs nobody, if there is such a place."""
        if self._considerate:
            found = _fitting(choices, spare, now_on)
            if found is not None:
                return found
        return _fitting(choices, whole, now_on)

    def _masks(self, free: Sequence[int]) -> list[_Free]:
        """For each group: which of its nodes have how many devices left."""
        return [
            _Free(self.nodes[members[0]].devices, {node: free[node] for node in members}) for members in self.groups
        ]


class _Free:
    """Equal nodes by how many devices they have left: a set of nodes for each number, as bits, and a set of numbers."""

    __slots__ = ("nodes", "numbers")

    def __init__(self, most: int, free: Mapping[int, int]) -> None:
        self.nodes = [0] * (most + 1)
        self.numbers = 0
        for node, count in free.items():
            self.nodes[count] |= 1 << node
            self.numbers |= 1 << count

    def shift(self, node: int, before: int, after: int) -> None:
        nodes = self.nodes
        nodes[before] ^= 1 << node
        if not nodes[before]:
            self.numbers ^= 1 << before
        nodes[after] |= 1 << node
        self.numbers |= 1 << after


def _rank(choice: Choice) -> tuple[bool, float, float, bool]:
    if choice.late:
        return True, choice.seconds, choice.cost, not choice.stays
    return False, choice.cost, choice.seconds, not choice.stays


def _fitting(choices: Sequence[Choice], free: Sequence[_Free], now_on: int) -> Placed | None:
    """The first of the choices for which a node has enough, and of such nodes the fullest."""
    for choice in choices:
        of_group = free[choice.group]
        numbers = of_group.numbers >> choice.devices
        while numbers:
            count = choice.devices + (numbers & -numbers).bit_length() - 1
            nodes = of_group.nodes[count]
            if not choice.stays:
                return Placed(choice, (nodes & -nodes).bit_length() - 1)
            if nodes >> now_on & 1:
                return Placed(choice, now_on)
            numbers &= numbers - 1
    return None
