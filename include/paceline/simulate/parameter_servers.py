"""Speed of distributed training with parameter servers, workers and links, computed by mean value analysis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from paceline.elastic import TeamConfiguration, TeamSample
from paceline.elastic.reassign import PERIOD_S
from paceline.elastic.window import link_busy_share

_MAX_ITERATIONS, _TOLERANCE = 200, 1e-9  # limits of the fixed-point iteration


@dataclass(frozen=True)
class Workload:
    """The cost of one step: one batch on one worker.

    Parameters
    ----------
    compute_core_s:
        Core-seconds of computing on the worker.
    serial_s:
        The serial part of ``compute_core_s``, which only one core can execute.
    worker_cores:
        Maximum number of cores that a worker process can use: the maximum utilization of Nearchus, section III-B.
    update_core_s:
        Core-seconds that all parameter servers together need to apply one update and send the state.
    server_cores:
        Maximum number of cores that a parameter server process can use.
    state_bytes:
        Size of the state, which each step transfers to the worker and back.
    """

    compute_core_s: float
    serial_s: float = 0.0
    worker_cores: float = float("inf")
    update_core_s: float = 0.0
    server_cores: float = 1.0
    state_bytes: float = 0.0

    def step_s(self, cores: float) -> float:
        """Return the seconds that a worker computes in one step, if its quota does not throttle it."""
        if cores < 1:
            return _burst_s(self.compute_core_s, cores)
        return (self.compute_core_s - self.serial_s) / min(cores, self.worker_cores) + self.serial_s

    def min_step_s(self, cores: float) -> float:
        """Return the minimum duration of a step, with all cores of the worker in use throughout."""
        return self.compute_core_s / min(cores, self.worker_cores)

    def update_s(self, cores: float, servers: int) -> float:
        """Return the seconds that each of ``servers`` parameter servers spends on one step."""
        return _burst_s(self.update_core_s / servers, min(cores, self.server_cores))


def _burst_s(core_s: float, cores: float) -> float:
    """Return the duration of a burst of work in seconds.

    A quota below one core grants a full core for a fraction of each period; work within this fraction is not delayed.
    """
    if cores >= 1:
        return core_s / cores
    return max(core_s, core_s / cores - (1 - cores) * PERIOD_S)


def steady_state(workload: Workload, configuration: TeamConfiguration, link_bytes_s: float) -> TeamSample:
    """Return the mean speed, the cores in use and the load of the links.

    Each worker computes, then sends its update to all servers at the same time and receives the state from them. A
    server processes concurrent updates one after the other; its link has the same capacity in each direction. The mean
    waiting times come from mean value analysis of this closed queueing network (Schweitzer's approximation, with one
    customer for each worker).

    Parameters
    ----------
    workload:
        The cost of a step.
    configuration:
        Servers and workers.
    link_bytes_s:
        Capacity of every node's link in each direction, in bytes per second.

    Examples
    --------
    >>> work = Workload(compute_core_s=1.0, update_core_s=0.01, state_bytes=1e6)
    >>> sample = steady_state(work, TeamConfiguration((1.0,), (1.0, 1.0)), link_bytes_s=1e8)
    >>> round(sample.speed, 2), round(sample.used["worker-0"], 2)
    (1.94, 0.97)
    """
    sample: TeamSample = _steady_state(workload, configuration, link_bytes_s)
    return sample


@lru_cache(maxsize=4096)
def _steady_state(workload: Workload, configuration: TeamConfiguration, link_bytes_s: float) -> TeamSample:
    servers = len(configuration.servers)
    update_s = workload.update_core_s / servers
    transfer_s = workload.state_bytes / servers / link_bytes_s
    # A step waits for the slowest server, because the worker sends its update to all servers at the same time.
    demands_s = [max(workload.update_s(cores, servers) for cores in configuration.servers), transfer_s, transfer_s]
    own_link_s = 2 * (servers - 1) * transfer_s  # shards of all other servers on the worker's link
    workers = [
        _Worker(workload.step_s(cores) + own_link_s, workload.min_step_s(cores)) for cores in configuration.workers
    ]
    limit = min(configuration.servers) / max(update_s, _TOLERANCE)
    speeds = _speeds(workers, demands_s, limit)
    speed = sum(speeds)
    used = {f"ps-{number}": speed * update_s for number in range(servers)}
    used |= {f"worker-{number}": one * workload.compute_core_s for number, one in enumerate(speeds)}
    return TeamSample(
        speed,
        used,
        {f"ps-{number}": link_busy_share(speed * transfer_s, speed * transfer_s) for number in range(servers)},
    )


class _Worker(NamedTuple):
    """Duration of a worker's step without waiting, and the minimum that its cores allow."""

    alone_s: float
    min_s: float


def _speeds(workers: Sequence[_Worker], demands_s: Sequence[float], limit: float) -> list[float]:
    """Return the steps per second of each worker, at most ``limit`` in total; compute identical workers only once."""
    kinds = Counter(workers)
    speeds = {one: 1 / max(one.alone_s + sum(demands_s), one.min_s) for one in kinds}
    queues = {one: [speed * demand for demand in demands_s] for one, speed in speeds.items()}
    for _ in range(_MAX_ITERATIONS):
        waiting = [
            sum(count * queues[one][station] for one, count in kinds.items()) for station in range(len(demands_s))
        ]
        change = 0.0
        for one, queue in queues.items():
            spent_s = [demand * (1 + waiting[station] - queue[station]) for station, demand in enumerate(demands_s)]
            speeds[one] = 1 / max(one.alone_s + sum(spent_s), one.min_s)
            queues[one] = [speeds[one] * seconds for seconds in spent_s]
            # Check the queues for convergence, because they may still grow while a worker's cores limit its speed.
            change = max(change, *(abs(now - before) for now, before in zip(queues[one], queue, strict=True)))
        if change < _TOLERANCE:
            break
    # The approximation may slightly exceed full utilisation of a station.
    speed = sum(count * speeds[one] for one, count in kinds.items())
    busiest = max(speed * demand for demand in (*demands_s, 1 / limit))
    return [speeds[one] / max(busiest, 1.0) for one in workers]
