"""How fast a distributed training would be: parameter servers, workers, and the links between them, without waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from paceline.elastic import Configuration, Sample
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
        """Seconds for which a worker computes in one step."""
        return (self.compute_core_s - self.serial_s) / min(cores, self.worker_cores) + self.serial_s / min(cores, 1.0)


def steady_state(workload: Workload, configuration: Configuration, link_bytes_s: float) -> Sample:
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
    >>> both = steady_state(work, Configuration((1.0,), (1.0, 1.0)), link_bytes_s=1e8)
    >>> round(both.speed, 2), round(both.used["worker-0"], 2)
    (1.94, 0.97)
    """
    found: Sample = _steady_state(workload, configuration, link_bytes_s)
    return found


@lru_cache(maxsize=4096)
def _steady_state(workload: Workload, configuration: Configuration, link_bytes_s: float) -> Sample:
    servers = len(configuration.servers)
    update_s = workload.update_core_s / servers
    carried_s = workload.state_bytes / servers / link_bytes_s
    # The slowest of the servers counts, as all are asked at the same time.
    demands_s = [
        max(update_s / min(cores, workload.server_cores) for cores in configuration.servers),
        carried_s,
        carried_s,
    ]
    own_link_s = 2 * (servers - 1) * carried_s  # for the parts of the other servers
    alone_s = [workload.step_s(cores) + own_link_s for cores in configuration.workers]
    speeds = _speeds(alone_s, demands_s)
    speed = sum(speeds)
    used = {f"ps-{number}": speed * update_s for number in range(servers)}
    used |= {f"worker-{number}": one * workload.compute_core_s for number, one in enumerate(speeds)}
    return Sample(
        speed, used, {f"ps-{number}": either(speed * carried_s, speed * carried_s) for number in range(servers)}
    )


def _speeds(alone_s: Sequence[float], demands_s: Sequence[float]) -> list[float]:
    """Steps a second of each worker. Those that are alike do alike, so each kind of them is looked at once."""
    kinds = Counter(alone_s)
    speeds = {one: 1 / (one + sum(demands_s)) for one in kinds}
    queues = {one: [speed * demand for demand in demands_s] for one, speed in speeds.items()}
    for _ in range(_ROUNDS):
        waiting = [sum(count * queues[one][place] for one, count in kinds.items()) for place in range(len(demands_s))]
        after = {}
        for one, queue in queues.items():
            spent_s = [demand * (1 + waiting[place] - queue[place]) for place, demand in enumerate(demands_s)]
            after[one] = 1 / (one + sum(spent_s))
            queues[one] = [after[one] * seconds for seconds in spent_s]
        change = max(abs(after[one] - speeds[one]) / after[one] for one in kinds)
        speeds = after
        if change < _CLOSE:
            break
    # A station cannot be busier than always, which the approximation may exceed by a little.
    speed = sum(count * speeds[one] for one, count in kinds.items())
    busiest = max(speed * demand for demand in demands_s)
    return [speeds[one] / max(busiest, 1.0) for one in alone_s]
