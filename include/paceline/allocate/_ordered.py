"""Ordered policies: FIFO, earliest deadline first, and priority. A running job keeps its allocation until it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from paceline.allocate._model import Allocation, ClusterJob, Node, Policy, free_devices
from paceline.allocate.sizes import PlacementRule, cheapest_in_time
from paceline.contract import Reason, ReasonKind


class Ordered(Policy):
    """Policy that starts waiting jobs in a fixed order while devices are free: a baseline method of ANDREAS.

    Parameters
    ----------
    name:
        Name of the policy.
    order:
        Sort key of a job; the job with the smallest key starts first.
    size:
        Placement rule; the default selects the cheapest placement that meets the deadline, or else the fastest.
    uses_priority:
        See ``Policy``.
    """

    def __init__(
        self,
        name: str,
        order: Callable[[ClusterJob], tuple[float, ...]],
        size: PlacementRule = cheapest_in_time,
        *,
        uses_priority: bool = False,
    ) -> None:
        self.name, self.uses_priority = name, uses_priority
        self._order = order
        self._size = size

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """See ``Policy``."""
        placements = {job.name: job.held for job in jobs if job.held is not None}
        free = free_devices(jobs, nodes)
        order = self._order
        for job in sorted((job for job in jobs if job.held is None), key=lambda job: (*order(job), job.arrived_s)):
            placement = self._size(job, nodes, free, now_s) if any(free.values()) else None
            if placement is None:
                break  # later jobs do not overtake this job
            free[placement.node] -= placement.devices
            placements[job.name] = placement
        waiting = [job.name for job in jobs if job.name not in placements]
        return Allocation(placements, dict.fromkeys(waiting, Reason.of(ReasonKind.QUEUED)))


def fifo(size: PlacementRule = cheapest_in_time) -> Ordered:
    """Return the FIFO policy."""
    return Ordered("fifo", lambda job: (job.arrived_s,), size)


def edf(size: PlacementRule = cheapest_in_time) -> Ordered:
    """Return the earliest-deadline-first policy; jobs without a deadline come last."""
    return Ordered("edf", lambda job: (inf if job.deadline_s is None else job.deadline_s,), size)


def priority(size: PlacementRule = cheapest_in_time) -> Ordered:
    """Return the priority policy: the job with the largest ``ClusterJob.weight`` starts first."""
    return Ordered("priority", lambda job: (-job.weight,), size, uses_priority=True)
