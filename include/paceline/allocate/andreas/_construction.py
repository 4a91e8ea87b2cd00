"""Greedy construction of one schedule: each job in turn gets the best configuration that is still free.

This is the inner step of :mod:`~paceline.allocate.andreas._search`: lines 5 to 17 of algorithm 1 of ANDREAS.
Each bit of an integer represents one of several identical nodes, so a search of a thousand nodes is as fast as one of
ten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.allocate._model import ClusterJob, Node
from paceline.allocate.andreas.objective import configurations, due_in_s, tardiness_cost


class Choice(NamedTuple):
    """A configuration of a job: a number of devices on any node of a group, or on the current node of the job."""

    group: int
    devices: int
    seconds: float  # until the job ends, including time to repeat the work lost in a move
    cost: float  # cost of the node until the job ends
    late: bool
    tardiness: float  # omega · tau
    stays: bool  # whether the job stays on its current node


class PendingJob(NamedTuple):
    """A job and its possible configurations."""

    number: int
    job: ClusterJob
    choices: tuple[Choice, ...]  # choices that meet the due date, by cost; then late choices, by duration
    in_time: int  # number of choices that meet the due date
    due_in_s: float
    fastest_s: float
    postponed: float  # rho · omega · tau_hat
    node: int  # number of the current node; -1 while the job waits
    held: int  # current number of devices

    @property
    def pressure_s(self) -> float:
        """Lateness in seconds on the fastest configuration: Delta of equation (2)."""
        return self.fastest_s - self.due_in_s


class Placed(NamedTuple):
    """The configuration selected for a job, and the number of its node."""

    choice: Choice
    node: int


class Schedule(NamedTuple):
    """Placements by job number, in the order in which the jobs were placed, and the resulting f_OBJ."""

    value: float
    placed: dict[int, Placed]


class Construction:
    """The jobs and nodes of one decision, in a form from which many schedules can be built quickly.

    Parameters
    ----------
    jobs, nodes, now_s, rho, period_s:
        As in :func:`paceline.allocate.andreas.objective.objective`.
    move_s:
        Seconds of training that a job loses when it moves to another node.
    protect_running:
        Whether to protect the devices of a running job until this job chooses. Another job then gets these devices only
        as a last resort, and never if it can wait for ``period_s`` and still meet its due date.
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
        self._unplaceable_cost = 0.0  # postponement cost of the jobs that no node can run
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
        """Return the job with its configurations for each group of identical nodes and for its current node."""
        due_s = due_in_s(job, now_s)
        held, node, lost = 0, -1, 0.0
        if job.held is not None:
            held, node = job.held.devices, self._numbers[job.held.node]
            lost = move_s * job.speeds[self.nodes[node].kind].at(held)  # work that the job has to repeat after a move
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
        choices.sort(key=_preference_key)
        in_time = sum(not one.late for one in choices)
        fastest_s = min((one.seconds for one in choices), default=0.0)
        return PendingJob(number, job, tuple(choices), in_time, due_s, fastest_s, postponed, node, held)

    def build(self, order: Sequence[PendingJob], preferences: Mapping[int, Placed] | None = None) -> Schedule:
        """Build a schedule in which the jobs choose their configurations one after the other.

        Parameters
        ----------
        order:
            The jobs in the order in which they choose a configuration.
        preferences:
            Placements that jobs try first, by job number; node -1 means any node of the group.
        """
        value = self._unplaceable_cost
        free = [node.devices for node in self.nodes]
        held = self._held.copy()  # by node: devices of running jobs that have not yet chosen
        left = sum(free)
        all_free = self._free_nodes(free)
        unprotected = self._free_nodes([max(0, devices - kept) for devices, kept in zip(free, held, strict=True)])
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
                unprotected[self.group_of[node]].change_count(node, before, max(0, free[node] - held[node]))
            placement = None
            if preferences:
                hint = preferences.get(pending.number)
                if hint is not None and (hint.node < 0 or free[hint.node] >= hint.choice.devices):
                    placement = (
                        hint if hint.node >= 0 else self._place((hint.choice,), unprotected, all_free, pending.node)
                    )
            if placement is None and self._protect_running and not deferred and pending.pressure_s < -self._period_s:
                placement = _first_fit(pending.choices[: pending.in_time], unprotected, pending.node)
                if placement is None:
                    queue.append(pending)
                    continue
            if placement is None:
                placement = self._place(pending.choices[: pending.in_time], unprotected, all_free, pending.node)
            if placement is None:
                placement = self._place(pending.choices[pending.in_time :], unprotected, all_free, pending.node)
            if placement is None:
                continue
            (group, devices, seconds, cost, _, tardiness, _), node = placement
            now_free = free[node] - devices
            all_free[group].change_count(node, free[node], now_free)
            unprotected[group].change_count(node, max(0, free[node] - held[node]), max(0, now_free - held[node]))
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
            placed[pending.number] = placement
        value += sum(pending.postponed for pending in self.jobs if pending.number not in placed)
        return Schedule(value, placed)

    def _place(
        self, choices: Sequence[Choice], unprotected: Sequence[_FreeNodes], all_free: Sequence[_FreeNodes], current: int
    ) -> Placed | None:
        """Return a placement with the first choice that fits, if possible on devices that no running job uses."""
        if self._protect_running:
            placement = _first_fit(choices, unprotected, current)
            if placement is not None:
                return placement
        return _first_fit(choices, all_free, current)

    def _free_nodes(self, free: Sequence[int]) -> list[_FreeNodes]:
        """Return the nodes of each group, indexed by their free devices."""
        return [
            _FreeNodes(self.nodes[members[0]].devices, {node: free[node] for node in members})
            for members in self.groups
        ]


class _FreeNodes:
    """Identical nodes by number of free devices: a bit set of nodes for each number, and a bit set of these numbers."""

    __slots__ = ("nodes", "numbers")

    def __init__(self, size: int, free: Mapping[int, int]) -> None:
        self.nodes = [0] * (size + 1)
        self.numbers = 0
        for node, count in free.items():
            self.nodes[count] |= 1 << node
            self.numbers |= 1 << count

    def change_count(self, node: int, before: int, after: int) -> None:
        nodes = self.nodes
        nodes[before] ^= 1 << node
        if not nodes[before]:
            self.numbers ^= 1 << before
        nodes[after] |= 1 << node
        self.numbers |= 1 << after


def _preference_key(choice: Choice) -> tuple[bool, float, float, bool]:
    if choice.late:
        return True, choice.seconds, choice.cost, not choice.stays
    return False, choice.cost, choice.seconds, not choice.stays


def _first_fit(choices: Sequence[Choice], free: Sequence[_FreeNodes], current: int) -> Placed | None:
    """Return a placement with the first choice that fits, on the node where it leaves the fewest devices free."""
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
