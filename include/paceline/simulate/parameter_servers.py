"""How fast a distributed training would be: parameter servers, workers, and the links between them, without waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from paceline.elastic import TeamConfiguration, TeamSample
from paceline.elastic.reassign import PERIOD_S
from paceline.elastic.window import either

_ROUNDS, _CLOSE = 200, 1e-9  # of the fixed point


@dataclass(frozen=True)
class Workload:
    """What one step of a training (a batch of one worker) costs.

    Parameters
    ----------
    compute_core_s:
        Core-seconds that a worker computes for.
    serial_s:
        Of these, so many that only one core can work on.
    worker_cores:
        The most cores that a worker's process can use: the maximum utilization of Nearchus, section III-B.
    update_core_s:
        Core-seconds that all parameter servers together take to add up one change and hand out the state.
    server_cores:
        The most cores that a parameter server's process can use.
    state_bytes:
        Size of the state, which goes to the worker and back in every step.
    """

    compute_core_s: float
    serial_s: float = 0.0
    worker_cores: float = float("inf")
    update_core_s: float = 0.0
    server_cores: float = 1.0
    state_bytes: float = 0.0

    def step_s(self, cores: float) -> float:
        """Seconds for which a worker computes in one step, unless it has used up its cores."""
        if cores < 1:
            return _takes_s(self.compute_core_s, cores)
        return (self.compute_core_s - self.serial_s) / min(cores, self.worker_cores) + self.serial_s

    def least_s(self, cores: float) -> float:
        """Seconds in which a worker's cores do one step."""
        return self.compute_core_s / min(cores, self.worker_cores)

    def update_s(self, cores: float, servers: int) -> float:
        """Seconds for which one of so many servers works on one step."""
        return _takes_s(self.update_core_s / servers, min(cores, self.server_cores))


def _takes_s(core_s: float, cores: float) -> float:
    """Seconds for so much work. A part of a core is all of it for a part of each period: what fits into that is done as
    quickly as on a whole one."""
    if cores >= 1:
        return core_s / cores
    return max(core_s, core_s / cores - (1 - cores) * PERIOD_S)


def steady_state(workload: Workload, configuration: TeamConfiguration, link_bytes_s: float) -> TeamSample:
    """Speed, cores used and load of the links, on average.

    Each worker computes, then sends its change to all servers at the same time and has the state back from them. What
    workers ask of a server at the same time, it does one after the other; its link carries each direction alike. The
    mean waiting times come from mean value analysis of this closed queueing network (Schweitzer's approximation, with
    one customer for each worker).

    Parameters
    ----------
    workload:
        What a step costs.
    configuration:
        Servers and workers.
    link_bytes_s:
        Capacity of every node's link in each direction, in bytes a second.

    Examples
    --------
    >>> work = Workload(compute_core_s=1.0, update_core_s=0.01, state_bytes=1e6)
    >>> both = steady_state(work, TeamConfiguration((1.0,), (1.0, 1.0)), link_bytes_s=1e8)
    >>> round(both.speed, 2), round(both.used["worker-0"], 2)
    (1.94, 0.97)
    """
    found: TeamSample = _steady_state(workload, configuration, link_bytes_s)
    return found


@lru_cache(maxsize=4096)
def _steady_state(workload: Workload, configuration: TeamConfiguration, link_bytes_s: float) -> TeamSample:
    servers = len(configuration.servers)
    update_s = workload.update_core_s / servers
    carried_s = workload.state_bytes / servers / link_bytes_s
    # The slowest of the servers counts, as all are asked at the same time.
    demands_s = [max(workload.update_s(cores, servers) for cores in configuration.servers), carried_s, carried_s]
    own_link_s = 2 * (servers - 1) * carried_s  # for the parts of the other servers
    workers = [_Worker(workload.step_s(cores) + own_link_s, workload.least_s(cores)) for cores in configuration.workers]
    most = min(configuration.servers) / max(update_s, _CLOSE)
    speeds = _speeds(workers, demands_s, most)
    speed = sum(speeds)
    used = {f"ps-{number}": speed * update_s for number in range(servers)}
    used |= {f"worker-{number}": one * workload.compute_core_s for number, one in enumerate(speeds)}
    return TeamSample(
        speed, used, {f"ps-{number}": either(speed * carried_s, speed * carried_s) for number in range(servers)}
    )


class _Worker(NamedTuple):
    """Seconds of its step without what it waits for, and the fewest that its cores allow."""

    alone_s: float
    least_s: float


def _speeds(workers: Sequence[_Worker], demands_s: Sequence[float], most: float) -> list[float]:
    """Steps a second of each worker, of all no more than ``most``. Those that are alike do alike: each kind once."""
    kinds = Counter(workers)
    speeds = {one: 1 / max(one.alone_s + sum(demands_s), one.least_s) for one in kinds}
    queues = {one: [speed * demand for demand in demands_s] for one, speed in speeds.items()}
    for _ in range(_ROUNDS):
        waiting = [sum(count * queues[one][place] for one, count in kinds.items()) for place in range(len(demands_s))]
        change = 0.0
        for one, queue in queues.items():
            spent_s = [demand * (1 + waiting[place] - queue[place]) for place, demand in enumerate(demands_s)]
            speeds[one] = 1 / max(one.alone_s + sum(spent_s), one.least_s)
            queues[one] = [speeds[one] * seconds for seconds in spent_s]
            # Of the queues: the speed of one that its cores hold back stays while they still grow.
            change = max(change, *(abs(now - before) for now, before in zip(queues[one], queue, strict=True)))
        if change < _CLOSE:
            break
    # A station cannot be busier than always, which the approximation may exceed by a little.
    speed = sum(count * speeds[one] for one, count in kinds.items())
    busiest = max(speed * demand for demand in (*demands_s, 1 / most))
    return [speeds[one] / max(busiest, 1.0) for one in workers]
