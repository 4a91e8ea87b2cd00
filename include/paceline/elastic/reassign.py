"""Gives cores that nodes leave idle to those that use theirs; as many as before in all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.elastic.configuration import TeamConfiguration
from paceline.elastic.options import Options
from paceline.runtime.cgroups import PERIOD_US

PERIOD_S = PERIOD_US / 1e6  # in which a node may use its share of the processor


@dataclass(frozen=True)
class Floors:
    """Cores below which a node of a kind has made the training slower."""

    server: float = 0.0
    worker: float = 0.0


def reassign(
    now: TeamConfiguration, used: Mapping[str, float], speed: float, options: Options, floors: Floors
) -> TeamConfiguration:
    """Adjust first among nodes of the same kind, then between the kinds; Nearchus, section IV.

    A node that uses less than ``options.node_efficiency`` of its cores keeps as many as bring it there; the rest goes
    to nodes of its kind that use more of theirs, in proportion to what they have. After that, if one kind as a whole is
    below and the other is not, the other one gets what is idle.

    Beyond the paper, not all of that: who waits for a node does so the longer the fewer cores it has, however idle it
    is mostly. The sum of both waits, ``c W / R_w + d / R_s`` seconds for a step of ``c`` and ``d`` core-seconds on
    ``W`` workers, is least where the cores of servers and workers are as ``sqrt(d / (c W))``, which is known from what
    both use: the square-root rule of queueing networks. A kind keeps its part of that. A part of one core, though, is
    all of it for a part of the time: a server that can do its part of a step in that is no quicker for more, up to a
    whole core.

    Parameters
    ----------
    now:
        What the nodes have.
    used:
        Node to cores used.
    speed:
        Steps a second, of all workers together.
    floors:
        What nodes keep.

    Returns
    -------
    TeamConfiguration
        As many nodes and cores; ``now`` itself where there is nothing to adjust.

    Examples
    --------
    >>> now = TeamConfiguration(servers=(1.0,), workers=(1.0, 1.0))
    >>> str(reassign(now, {"ps-0": 0.4, "worker-0": 1.0, "worker-1": 1.0}, 40.0, Options(), Floors()))
    '1 parameter server on 0.5 cores, 2 workers on 2.5 cores'
    """
    efficient = options.node_efficiency
    if all(used[name] >= efficient * cores for name, cores in now.nodes.items()):
        return now
    split = len(now.servers)
    uses = [used[name] for name in now.nodes]
    servers = _Kind.balanced(now.servers, uses[:split], max(floors.server, options.least_cores), efficient)
    workers = _Kind.balanced(now.workers, uses[split:], max(floors.worker, options.least_cores), efficient)
    root = math.sqrt(servers.used / (workers.used * len(now.workers))) if workers.used > 0 else math.inf
    by_root = now.cores * root / (1 + root)
    if servers.wasteful(efficient) and not workers.wasteful(efficient):
        at_once = servers.used / speed / PERIOD_S if speed > 0 else math.inf
        kept = min(by_root, at_once) if by_root <= split else by_root
        servers, workers = servers.give(workers, max(kept, servers.used / efficient), efficient)
    elif workers.wasteful(efficient) and not servers.wasteful(efficient):
        workers, servers = workers.give(servers, now.cores - max(by_root, servers.used / efficient), efficient)
    return TeamConfiguration(tuple(servers.cores), tuple(workers.cores))


@dataclass(frozen=True)
class _Kind:
    """The nodes of one kind."""

    cores: Sequence[float]
    used: float  # by all of them
    floor: float  # of each of them

    @classmethod
    def balanced(cls, cores: Sequence[float], used: Sequence[float], floor: float, efficient: float) -> _Kind:
        """Node level: from those that do not use what they have to those that do."""
        takes = [uses >= efficient * have for have, uses in zip(cores, used, strict=True)]
        kept = [
            have if taker else _kept(have, uses / efficient, floor)
            for have, uses, taker in zip(cores, used, takes, strict=True)
        ]
        takers = sum(have for have, taker in zip(cores, takes, strict=True) if taker)
        more = 1 + (sum(cores) - sum(kept)) / takers if takers else 1.0
        after = [keeps * more if taker else keeps for keeps, taker in zip(kept, takes, strict=True)]
        return cls(after if takers else list(cores), sum(used), floor)

    def wasteful(self, efficient: float) -> bool:
        return self.used < efficient * sum(self.cores)

    def give(self, other: _Kind, part: float, efficient: float) -> tuple[_Kind, _Kind]:
        """Component level: what all of these leave idle goes to the other kind, in proportion on both sides."""
        all_of_it = sum(self.cores)
        spare = all_of_it - _kept(all_of_it, max(self.used / efficient, part), self.floor * len(self.cores))
        return self._times(1 - spare / all_of_it), other._times(1 + spare / sum(other.cores))

    def _times(self, factor: float) -> _Kind:
        return _Kind([one * factor for one in self.cores], self.used, self.floor)


def _kept(cores: float, enough: float, floor: float) -> float:
    return min(max(enough, floor), cores)
