"""Greedy construction of one schedule: jobs in a given order, each on the best configuration that is still free.

The inner step of :mod:`~paceline.allocate.andreas.randomized_greedy`: lines 5 to 17 of algorithm 1 of ANDREAS. Equal
nodes are bits of one integer, so the search among a thousand of them is as fast as among ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.allocate.andreas.objective import configurations, due_in_s, tardiness_cost
from paceline.allocate.model import ClusterJob, Node


class Choice(NamedTuple):
    """A configuration of a job: a number of devices on any node of a group, or on the present node of the job."""

    group: int
    devices: int
    seconds: float  # until the job ends, including the work that a move loses
    cost: float  # of the node in that time
    late: bool
    tardiness: float  # omega · tau
    stays: bool  # on its present node


class PendingJob(NamedTuple):
    """A job and its configurations."""

    number: int
    job: ClusterJob
    choices: tuple[Choice, ...]  # in time, the cheapest first; then late, the fastest first
    in_time: int  # number of choices in time
    due_in_s: float
    fastest_s: float
    postponed: float  # rho · omega · tau_hat
    node: int  # present node; -1 while the job waits
    held: int  # present devices there

    @property
    def pressure_s(self) -> float:
        """Delta of equation (2): lateness in seconds on the fastest configuration."""
        return self.fastest_s - self.due_in_s


class Placed(NamedTuple):
    """The choice for a job, and its node."""

    choice: Choice
    node: int


class Schedule(NamedTuple):
    """Placements by job number, in the order of choice, and f_OBJ."""

    value: float
    placed: dict[int, Placed]


class Construction:
    """The jobs and nodes of one decision, prepared for many constructions.

    Parameters
    ----------
    jobs, nodes, now_s, rho, period_s:
        As in :func:`paceline.allocate.andreas.objective.objective`.
    move_s:
        Seconds of training that a job loses if it leaves its node.
    protect_running:
        Whether other jobs get the devices of a running job, before its turn, only as a last resort, and not at all if
        they would still be in time after waiting for ``period_s``.
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
        protect_running: bool,
    ) -> None:
        self.nodes = nodes
        groups: dict[tuple[object, ...], list[int]] = {}
        for number, node in enumerate(nodes):
            groups.setdefault((node.kind, node.devices, node.cost_per_s), []).append(number)
        self.groups = list(groups.values())
        self.group_of = {number: group for group, members in enumerate(self.groups) for number in members}
        self._numbers = {node.name: number for number, node in enumerate(nodes)}
        self.jobs: list[PendingJob] = []
        self._unplaceable_cost = 0.0  # of jobs that no node can run
        for job in jobs:
            pending = self._pending_job(len(self.jobs), job, now_s, rho, period_s, move_s)
            if pending.choices:
                self.jobs.append(pending)
            else:
                self._unplaceable_cost += pending.postponed
        self._protect_running = protect_running
        self._period_s = period_s
        self._held = [0] * len(nodes)
        for pending in self.jobs if protect_running else ():
            if pending.held:
                self._held[pending.node] += pending.held

    def _pending_job(
        self, number: int, job: ClusterJob, now_s: float, rho: float, period_s: float, move_s: float
    ) -> PendingJob:
        """Return the job with its configurations for each group of equal nodes and for its present node."""
        due_s = due_in_s(job, now_s)
        held, node, lost = 0, -1, 0.0
        if job.held is not None:
            held, node = job.held.devices, self._numbers[job.held.node]
            lost = move_s * job.speeds[self.nodes[node].kind].at(held)  # work that a move loses
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

    def build(self, order: Sequence[PendingJob], preferences: Mapping[int, Placed] | None = None) -> Schedule:
        """Build a schedule.

        Parameters
        ----------
        order:
            Jobs in the order in which they choose.
        preferences:
            Placements that jobs try first, by job number; node -1 stands for any node of the group.
        """
        value = self._unplaceable_cost
        free = [node.devices for node in self.nodes]
        held = self._held.copy()  # by jobs that have not yet chosen
        left = sum(free)
        all_free = self._masks(free)
        unheld = self._masks([max(0, devices - kept) for devices, kept in zip(free, held, strict=True)])
        first: dict[int, tuple[float, float]] = {}
        placed: dict[int, Placed] = {}
        queue = list(order)
        for index, pending in enumerate(queue):
            if not left:
                break
            deferred = index >= len(order)
            if not deferred and pending.held and self._protect_running:
                node = pending.node
                before = max(0, free[node] - held[node])
                held[node] -= pending.held
                unheld[self.group_of[node]].shift(node, before, max(0, free[node] - held[node]))
            found = None
            if preferences:
                hint = preferences.get(pending.number)
                if hint is not None and (hint.node < 0 or free[hint.node] >= hint.choice.devices):
                    found = hint if hint.node >= 0 else self._fit((hint.choice,), unheld, all_free, pending.node)
            if found is None and self._protect_running and not deferred and pending.pressure_s < -self._period_s:
                found = _fitting(pending.choices[: pending.in_time], unheld, pending.node)
                if found is None:
                    queue.append(pending)
                    continue
            if found is None:
                found = self._fit(pending.choices[: pending.in_time], unheld, all_free, pending.node)
            if found is None:
                found = self._fit(pending.choices[pending.in_time :], unheld, all_free, pending.node)
            if found is None:
                continue
            (group, devices, seconds, cost, _, tardiness, _), node = found
            now_free = free[node] - devices
            all_free[group].shift(node, free[node], now_free)
            unheld[group].shift(node, max(0, free[node] - held[node]), max(0, now_free - held[node]))
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
            placed[pending.number] = found
        value += sum(pending.postponed for pending in self.jobs if pending.number not in placed)
        return Schedule(value, placed)

    def _fit(
        self, choices: Sequence[Choice], unheld: Sequence[_Free], all_free: Sequence[_Free], current: int
    ) -> Placed | None:
        """Return the first choice that fits, if possible on devices that no running job has."""
        if self._protect_running:
            found = _fitting(choices, unheld, current)
            if found is not None:
                return found
        return _fitting(choices, all_free, current)

    def _masks(self, free: Sequence[int]) -> list[_Free]:
        """Return the free devices of the nodes of each group."""
        return [
            _Free(self.nodes[members[0]].devices, {node: free[node] for node in members}) for members in self.groups
        ]


class _Free:
    """Equal nodes by number of free devices: a bit set of nodes for each number, and a bit set of the numbers."""

    __slots__ = ("nodes", "numbers")

    def __init__(self, size: int, free: Mapping[int, int]) -> None:
        self.nodes = [0] * (size + 1)
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


def _fitting(choices: Sequence[Choice], free: Sequence[_Free], current: int) -> Placed | None:
    """Return the first choice that fits on a node, and of such nodes the one with the fewest free devices."""
    for choice in choices:
        of_group = free[choice.group]
        numbers = of_group.numbers >> choice.devices
        while numbers:
            count = choice.devices + (numbers & -numbers).bit_length() - 1
            nodes = of_group.nodes[count]
            if not choice.stays:
                return Placed(choice, (nodes & -nodes).bit_length() - 1)
            if nodes >> current & 1:
                return Placed(choice, current)
            numbers &= numbers - 1
    return None
