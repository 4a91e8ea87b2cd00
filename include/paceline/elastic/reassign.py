"""Moves idle cores to nodes that use all their cores; the total number of cores stays the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.elastic._configuration import TeamConfiguration
from paceline.elastic._options import Team
from paceline.runtime.cgroups import PERIOD_US

PERIOD_S = PERIOD_US / 1e6  # period of the CPU quota


@dataclass(frozen=True)
class Floors:
    """Minimum number of cores of a parameter server and of a worker, learned from steps that made training slower."""

    server: float = 0.0
    worker: float = 0.0


def reassign(
    now: TeamConfiguration, used: Mapping[str, float], speed: float, options: Team, floors: Floors
) -> TeamConfiguration:
    """Balance cores among nodes of the same kind, then between the kinds; Nearchus, section IV.

    A node that uses less than ``options.node_efficiency`` of its cores keeps the number of cores at which it reaches
    this efficiency. Its other cores move to the nodes of its kind above the threshold, in proportion to their cores.
    Then, if one kind as a whole is below the threshold and the other kind is not, the other kind gets the idle cores.

    Unlike in the paper, a kind keeps some idle cores: even a mostly idle node delays other nodes, longer with fewer
    cores. For a batch of ``c`` core-seconds on one of ``W`` workers and ``d`` on the servers, the delay
    ``c W / R_w + d / R_s`` seconds is smallest if the cores of servers and workers have the ratio
    ``sqrt(d / (c W))``, which follows from the cores in use: the square-root rule of queueing networks. Each kind keeps
    at least its share by this ratio. A server with less than one core is an exception: a CPU quota grants a whole core
    for a fraction of each period. If the server's work for a batch fits into this fraction, more cores do not speed it
    up.

    Parameters
    ----------
    now:
        The current configuration.
    used:
        Cores in use by node name.
    speed:
        Batches per second of all workers together.
    floors:
        Minimum numbers of cores of the nodes.

    Returns
    -------
    TeamConfiguration
        The same nodes and total cores; ``now`` itself if there is nothing to balance.

    Examples
    --------
    >>> now = TeamConfiguration(servers=(1.0,), workers=(1.0, 1.0))
    >>> str(reassign(now, {"ps-0": 0.4, "worker-0": 1.0, "worker-1": 1.0}, 40.0, Team(), Floors()))
    '1 parameter server on 0.5 cores, 2 workers on 2.5 cores'
    """
    threshold = options.node_efficiency
    if all(used[name] >= threshold * cores for name, cores in now.nodes.items()):
        return now
    split = len(now.servers)
    in_use = [used[name] for name in now.nodes]
    servers = _NodeGroup.balanced(now.servers, in_use[:split], max(floors.server, options.min_cores), threshold)
    workers = _NodeGroup.balanced(now.workers, in_use[split:], max(floors.worker, options.min_cores), threshold)
    root = math.sqrt(servers.used / (workers.used * len(now.workers))) if workers.used > 0 else math.inf
    by_root = now.cores * root / (1 + root)
    if servers.is_below(threshold) and not workers.is_below(threshold):
        fits_period = servers.used / speed / PERIOD_S if speed > 0 else math.inf
        kept = min(by_root, fits_period) if by_root <= split else by_root
        servers, workers = servers.give_idle_cores(workers, max(kept, servers.used / threshold), threshold)
    elif workers.is_below(threshold) and not servers.is_below(threshold):
        workers, servers = workers.give_idle_cores(
            servers, now.cores - max(by_root, servers.used / threshold), threshold
        )
    return TeamConfiguration(tuple(servers.cores), tuple(workers.cores))


@dataclass(frozen=True)
class _NodeGroup:
    """All nodes of one kind: the parameter servers, or the workers."""

    cores: Sequence[float]
    used: float  # cores in use by all nodes
    floor: float  # minimum number of cores of each node

    @classmethod
    def balanced(cls, cores: Sequence[float], used: Sequence[float], floor: float, threshold: float) -> _NodeGroup:
        """Balance nodes within the kind: move idle cores from nodes below the threshold to all other nodes."""
        busy = [in_use >= threshold * have for have, in_use in zip(cores, used, strict=True)]
        kept = [
            have if is_busy else _kept_cores(have, in_use / threshold, floor)
            for have, in_use, is_busy in zip(cores, used, busy, strict=True)
        ]
        busy_cores = sum(have for have, is_busy in zip(cores, busy, strict=True) if is_busy)
        factor = 1 + (sum(cores) - sum(kept)) / busy_cores if busy_cores else 1.0
        after = [keep * factor if is_busy else keep for keep, is_busy in zip(kept, busy, strict=True)]
        return cls(after if busy_cores else list(cores), sum(used), floor)

    def is_below(self, threshold: float) -> bool:
        return self.used < threshold * sum(self.cores)

    def give_idle_cores(self, other: _NodeGroup, keep: float, threshold: float) -> tuple[_NodeGroup, _NodeGroup]:
        """Balance the kinds: move idle cores to the other kind, in proportion to the cores of its nodes."""
        total = sum(self.cores)
        idle = total - _kept_cores(total, max(self.used / threshold, keep), self.floor * len(self.cores))
        return self._scaled(1 - idle / total), other._scaled(1 + idle / sum(other.cores))

    def _scaled(self, factor: float) -> _NodeGroup:
        return _NodeGroup([one * factor for one in self.cores], self.used, self.floor)


def _kept_cores(cores: float, needed: float, floor: float) -> float:
    return min(max(needed, floor), cores)
