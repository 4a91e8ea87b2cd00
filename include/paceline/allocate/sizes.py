"""On how many devices a job begins, and where, for policies that decide this for one job after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TypeAlias

from paceline.allocate.model import ClusterJob, Node, Placement

# ClusterJob, nodes, free devices of each, the time: where it begins, or None if it must wait.
Size: TypeAlias = Callable[[ClusterJob, Sequence[Node], Mapping[str, int], float], "Placement | None"]


def cheapest_in_time(job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float) -> Placement | None:
    """The cheapest free place that meets the deadline; the fastest free one if none does (ANDREAS, section IV-B)."""
    deadline_s = inf if job.deadline_s is None else job.deadline_s
    best: tuple[bool, float, float] | None = None
    found: Placement | None = None
    for node in nodes:
        speeds = job.speeds.get(node.kind)
        if speeds is None:
            continue
        for count in speeds.useful:
            if count > free[node.name]:
                break
            seconds = job.seconds(node, count, now_s)
            late = now_s + seconds >= deadline_s
            rank = (late, seconds if late else seconds * node.cost(count), seconds)
            if best is None or rank < best:
                best, found = rank, Placement(node.name, count)
    return found


def requested(job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float) -> Placement | None:
    """So many devices as its user asked for, or all that it can use: on the first node with room."""
    for node in nodes:
        speeds = job.speeds.get(node.kind)
        if speeds is not None:
            wanted = speeds.most(min(job.requested or speeds.fastest, node.devices))
            if 0 < wanted <= free[node.name]:
                return Placement(node.name, wanted)
    return None


def fastest(job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float) -> Placement | None:
    """As many devices as make it fastest, once there are so many: on the node where it is fastest."""
    usable = [node for node in nodes if node.kind in job.speeds]
    best = {node.name: job.speeds[node.kind].most(min(node.devices, job.speeds[node.kind].fastest)) for node in usable}
    ready = [node for node in usable if 0 < best[node.name] <= free[node.name]]
    if not ready:
        return None
    node = max(ready, key=lambda node: job.speeds[node.kind].at(best[node.name]))
    return Placement(node.name, best[node.name])
