"""Placement rules for policies that start jobs one by one: the node of a job, and its number of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TypeAlias

from paceline.allocate._model import ClusterJob, Node, Placement

# (job, nodes, free devices by node, time in seconds) -> placement of the job, or None if it has to wait.
PlacementRule: TypeAlias = Callable[[ClusterJob, Sequence[Node], Mapping[str, int], float], "Placement | None"]


def cheapest_in_time(job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float) -> Placement | None:
    """Return the cheapest free placement that meets the deadline, else the fastest (ANDREAS, section IV-B).

    Of equally cheap placements, such as those on nodes without a price, return the one with the fewest device seconds.
    """
    deadline_s = inf if job.deadline_s is None else job.deadline_s
    best: tuple[bool, float, float, float] | None = None
    best_placement: Placement | None = None
    for node in nodes:
        speeds = job.speeds.get(node.kind)
        if speeds is None:
            continue
        for count in speeds.useful:
            if count > free[node.name]:
                break
            seconds = job.seconds(node, count, now_s)
            late = now_s + seconds >= deadline_s
            rank = (late, seconds if late else seconds * node.cost(count), seconds * count, seconds)
            if best is None or rank < best:
                best, best_placement = rank, Placement(node.name, count)
    return best_placement


def requested(job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float) -> Placement | None:
    """Return a placement with the requested (by default, the fastest) number of devices on the first node with room."""
    for node in nodes:
        speeds = job.speeds.get(node.kind)
        if speeds is not None:
            wanted = speeds.largest_count(min(job.requested or speeds.fastest, node.devices))
            if 0 < wanted <= free[node.name]:
                return Placement(node.name, wanted)
    return None


def fastest(job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float) -> Placement | None:
    """Return the fastest placement among the nodes on which the job's fastest number of devices is free."""
    usable = [node for node in nodes if node.kind in job.speeds]
    best = {
        node.name: job.speeds[node.kind].largest_count(min(node.devices, job.speeds[node.kind].fastest))
        for node in usable
    }
    ready = [node for node in usable if 0 < best[node.name] <= free[node.name]]
    if not ready:
        return None
    node = max(ready, key=lambda node: job.speeds[node.kind].at(best[node.name]))
    return Placement(node.name, best[node.name])
