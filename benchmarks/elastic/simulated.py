"""Simulates one job alone in a cluster of the paper, from measured curves; defines these clusters."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from benchmarks.elastic.curves import Curve
from benchmarks.elastic.optimus import Optimus
from paceline.elastic import Decider, Scaling, Team, TeamConfiguration, TeamSample
from paceline.simulate.parameter_servers import Workload, steady_state

NODE_CORES = 5.0  # cores of each node under Optimus and in the fixed configurations
FIRST_CORES = 15.0  # cores of the first configuration
SAMPLE_S = 10.0
STABLE_SAMPLES = 30  # five minutes, the shortest time in which a training is stable in the paper
OPTIMUS_PERIOD_S = 600.0  # time between two steps of Optimus
NEAR_FINAL = 0.95  # share of the final speed that counts as reached
HOUR_S = 3600.0
_NOISE = 0.01  # relative standard deviation of each measurement
_OPTIMUS_PROFILES = 20  # number of profiled configurations
_ALONE_H = 6.0  # duration of a job alone in its fastest configuration of five-core nodes


@dataclass(frozen=True)
class Cluster:
    """A cluster of the paper (table I); ``process_cores`` is the largest number of cores of a process in the paper."""

    name: str
    cores: int
    link_mbit_s: float
    process_cores: float
    machines: int = 9

    def sample(self, workload: Workload, configuration: TeamConfiguration) -> TeamSample:
        """Return a noise-free sample of a configuration. Nodes on the same machine share the machine's link."""
        share = min(self.machines / len(configuration.nodes), 1.0)
        return steady_state(workload, configuration, share * self.link_mbit_s * 1e6 / 8)

    def options(self, budget: float) -> Team:
        """Return options with the paper's first cores and stability window for a job with ``budget`` cores."""
        max_nodes = int(self.cores / NODE_CORES)
        return Team(
            start_share=min(FIRST_CORES / budget, 1.0),
            stable_samples=STABLE_SAMPLES,
            max_servers=max_nodes,
            max_workers=2 * max_nodes,
            link_mbit_s=self.link_mbit_s,
        )


CLUSTERS = (Cluster("A", 100, 1_000.0, 16.0), Cluster("B", 300, 50_000.0, 37.0))


def simulate_decider(
    decider: Decider, workload: Workload, cluster: Cluster, seed: int = 0
) -> Iterator[tuple[TeamConfiguration, float]]:
    """Pass samples with noise to a decider until it has settled; yield the configuration and speed of each sample."""
    rng = random.Random(seed)
    while not decider.settled:
        before = decider.configuration
        now = cluster.sample(workload, before)
        yield before, now.speed
        decider.decide(add_noise(now, rng))


def add_noise(sample: TeamSample, rng: random.Random) -> TeamSample:
    """Return the sample with added measurement noise."""

    def perturb(values: Mapping[str, float]) -> dict[str, float]:
        return {name: value * (1 + rng.gauss(0, _NOISE)) for name, value in values.items()}

    return TeamSample(sample.speed * (1 + rng.gauss(0, _NOISE)), perturb(sample.used), perturb(sample.network))


@cache
def best_fixed(workload: Workload, cluster: Cluster, cores: float) -> tuple[TeamConfiguration, float]:
    """Return FA-BF, the fastest configuration of nodes with five cores each, and its speed."""
    max_nodes = int(cores / NODE_CORES)
    configurations = [
        TeamConfiguration((NODE_CORES,) * servers, (NODE_CORES,) * workers)
        for servers in range(1, max_nodes)
        for workers in range(1, max_nodes - servers + 1)
    ]
    fastest = max(configurations, key=lambda one: cluster.sample(workload, one).speed)
    return fastest, cluster.sample(workload, fastest).speed


@cache
def best_of_all(workload: Workload, cluster: Cluster, cores: float) -> float:
    """Return the highest speed of about a thousand configurations with different numbers and sizes of nodes."""
    shares = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)
    max_nodes = int(cores / NODE_CORES)
    numbers = sorted({round(2 ** (power / 2)) for power in range(20)})
    return max(
        cluster.sample(
            workload,
            TeamConfiguration((cores * share / servers,) * servers, (cores * (1 - share) / workers,) * workers),
        ).speed
        for servers in numbers
        if servers <= max_nodes
        for workers in numbers
        if workers <= 2 * max_nodes
        for share in shares
    )


def simulate_alone(name: str, curve: Curve, cluster: Cluster, restart_s: float, seed: int) -> dict[str, Any]:
    """Simulate one job with the whole cluster as its budget; return its row. The ``seed`` is that of the noise."""
    workload = curve.workload(cluster.process_cores)
    fixed, fixed_speed = best_fixed(workload, cluster, cluster.cores)
    work = fixed_speed * _ALONE_H * HOUR_S
    scaling = Scaling(float(cluster.cores), cluster.options(cluster.cores))
    ours = list(simulate_decider(scaling, workload, cluster, seed))
    optimus = make_optimus(cluster.cores, int(OPTIMUS_PERIOD_S / SAMPLE_S))
    # Without the profiles, as in the paper.
    theirs = [one for one in simulate_decider(optimus, workload, cluster, seed) if not optimus.is_profiling]
    best = best_of_all(workload, cluster, cluster.cores)
    return {
        "cluster": cluster.name,
        "model": name,
        "seed": seed,
        "speed_vs_best": ours[-1][1] / best,
        "speed_vs_fixed": ours[-1][1] / fixed_speed,
        "speed_vs_optimus": ours[-1][1] / theirs[-1][1],
        "settle_s": _samples_to_settle(ours) * SAMPLE_S,
        "settle_s_optimus": _samples_to_settle(theirs) * SAMPLE_S,
        "jct_h": _completion_s(ours, work, 0.0) / HOUR_S,
        "jct_h_restarted": _completion_s(ours, work, restart_s) / HOUR_S,
        "jct_h_optimus": _completion_s(theirs, work, restart_s) / HOUR_S,
        "changes": _count_changes(ours),
        "restarts_optimus": _count_changes(theirs),
        "started": str(ours[0][0]),
        "started_optimus": str(theirs[0][0]),
        "configuration": str(ours[-1][0]),
        "configuration_optimus": str(theirs[-1][0]),
        "configuration_fixed": str(fixed),
    }


def make_optimus(budget: float, stable_samples: int) -> Optimus:
    """Return Optimus with the nodes and profiles of the paper's evaluation."""
    return Optimus(budget, NODE_CORES, profiled=_OPTIMUS_PROFILES, options=Team(stable_samples=stable_samples))


def _count_changes(path: Sequence[tuple[TeamConfiguration, float]]) -> int:
    return sum(one[0] != other[0] for one, other in pairwise(path))


def _samples_to_settle(path: Sequence[tuple[TeamConfiguration, float]]) -> int:
    """Return the number of samples until the speed stays near its final value."""
    below = [place for place, (_, speed) in enumerate(path) if speed < NEAR_FINAL * path[-1][1]]
    return below[-1] + 1 if below else 0


def _completion_s(path: Sequence[tuple[TeamConfiguration, float]], work: float, restart_s: float) -> float:
    """Return the seconds until ``work`` steps are done; after ``path``, the job continues on its last configuration."""
    passed_s, last = 0.0, path[0][0]
    for configuration, speed in path:
        if configuration != last:
            passed_s += restart_s
            last = configuration
        if work <= speed * SAMPLE_S:
            return passed_s + work / speed
        work -= speed * SAMPLE_S
        passed_s += SAMPLE_S
    return passed_s + work / path[-1][1]
