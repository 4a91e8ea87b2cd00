"""One training alone at the paper's scale, simulated from measured curves; and the paper's clusters."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.elastic.curves import Curve
from benchmarks.elastic.optimus import Optimus
from paceline.elastic import Decider, Options, Scaling, TeamConfiguration, TeamSample
from paceline.simulate.parameter_servers import Workload, steady_state

NODE_CORES = 5.0  # of each node of Optimus and of the fixed configurations
FIRST_CORES = 15.0  # of the first configuration
SAMPLE_S = 20.0
OPTIMUS_S = 600.0  # between two of its steps
REACHED = 0.95  # of the final speed
_NOISE = 0.01
HOUR_S = 3600.0


@dataclass(frozen=True)
class Cluster:
    """A cluster of the paper (table I); ``process_cores`` is the most cores that a process was seen to use there."""

    name: str
    cores: int
    link_mbit_s: float
    process_cores: float
    machines: int = 9

    def sample(self, workload: Workload, configuration: TeamConfiguration) -> TeamSample:
        """Return a sample without noise. Nodes on the same machine share its link."""
        share = min(self.machines / len(configuration.nodes), 1.0)
        return steady_state(workload, configuration, share * self.link_mbit_s * 1e6 / 8)

    def options(self) -> Options:
        """Return the defaults with the paper's first configuration and the cluster's maximum of nodes."""
        most = int(self.cores / NODE_CORES)
        return Options(
            start_share=FIRST_CORES / self.cores,
            max_servers=most,
            max_workers=2 * most,
            link_mbit_s=self.link_mbit_s,
        )


CLUSTERS = (Cluster("A", 100, 1_000.0, 16.0), Cluster("B", 300, 50_000.0, 37.0))


def follow(
    decider: Decider, workload: Workload, cluster: Cluster, samples: int
) -> Iterator[tuple[int, TeamConfiguration, float]]:
    """Run a decider sample by sample; yield (sample number, configuration, speed)."""
    rng = random.Random(0)
    for number in range(samples):
        before = decider.configuration
        now = cluster.sample(workload, before)
        yield number, before, now.speed
        decider.decide(noisy(now, rng))


def noisy(sample: TeamSample, rng: random.Random) -> TeamSample:
    """Return the sample with measurement noise."""

    def noise(values: Mapping[str, float]) -> dict[str, float]:
        return {name: value * (1 + rng.gauss(0, _NOISE)) for name, value in values.items()}

    return TeamSample(sample.speed * (1 + rng.gauss(0, _NOISE)), noise(sample.used), noise(sample.network))


def best_fixed(workload: Workload, cluster: Cluster, cores: float) -> tuple[TeamConfiguration, float]:
    """Return FA-BF: the best of all numbers of nodes with five cores each, and its speed."""
    most = int(cores / NODE_CORES)
    every = [
        TeamConfiguration((NODE_CORES,) * servers, (NODE_CORES,) * workers)
        for servers in range(1, most)
        for workers in range(1, most - servers + 1)
    ]
    found = max(every, key=lambda one: cluster.sample(workload, one).speed)
    return found, cluster.sample(workload, found).speed


def best_of_all(workload: Workload, cluster: Cluster, cores: float) -> float:
    """Return the highest speed of some thousand configurations, with any number and size of nodes."""
    shares = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)
    most = int(cores / NODE_CORES)
    numbers = sorted({round(2 ** (power / 2)) for power in range(20)})
    return max(
        cluster.sample(
            workload,
            TeamConfiguration((cores * share / servers,) * servers, (cores * (1 - share) / workers,) * workers),
        ).speed
        for servers in numbers
        if servers <= most
        for workers in numbers
        if workers <= 2 * most
        for share in shares
    )


def alone(name: str, curve: Curve, cluster: Cluster, restart_s: float) -> dict[str, Any]:
    """Simulate one training with the whole cluster as its budget."""
    workload = curve.workload(cluster.process_cores)
    fixed, fixed_speed = best_fixed(workload, cluster, cluster.cores)
    hours = 6.0
    work = fixed_speed * hours * HOUR_S
    scaling = Scaling(float(cluster.cores), cluster.options())
    ours = list(follow(scaling, workload, cluster, 1000))
    optimus = Optimus(
        float(cluster.cores),
        NODE_CORES,
        profiled=20,
        options=Options(stable_samples=int(OPTIMUS_S / SAMPLE_S)),
    )
    theirs = list(follow(optimus, workload, cluster, 4000))
    profiles = 20 * int(OPTIMUS_S / SAMPLE_S)
    best = best_of_all(workload, cluster, cluster.cores)
    return {
        "cluster": cluster.name,
        "model": name,
        "speed_vs_best": ours[-1][2] / best,
        "speed_vs_fixed": ours[-1][2] / fixed_speed,
        "speed_vs_optimus": ours[-1][2] / theirs[-1][2],
        "settle_s": _reached(ours) * SAMPLE_S,
        "settle_s_optimus": _reached(theirs[profiles:]) * SAMPLE_S,  # as in the paper, without its profiles
        "jct_h": _completion_s(ours, work, 0.0) / HOUR_S,
        "jct_h_optimus": _completion_s(theirs[profiles:], work, restart_s) / HOUR_S,
        "jct_h_fixed": hours,
        "changes": _changes(ours),
        "restarts_optimus": _changes(theirs[profiles:]),
        "configuration": str(ours[-1][1]),
        "configuration_optimus": str(theirs[-1][1]),
        "configuration_fixed": str(fixed),
    }


def _changes(path: Sequence[tuple[int, TeamConfiguration, float]]) -> int:
    return sum(one[1] != other[1] for one, other in pairwise(path))


def _reached(path: Sequence[tuple[int, TeamConfiguration, float]]) -> int:
    """Return the number of samples until the speed stays near its final value."""
    below = [place for place, (_, _, speed) in enumerate(path) if speed < REACHED * path[-1][2]]
    return below[-1] + 1 if below else 0


def _completion_s(path: Sequence[tuple[int, TeamConfiguration, float]], work: float, restart_s: float) -> float:
    """Return the seconds until ``work`` steps are done; the last configuration continues after the path."""
    passed_s, last = 0.0, path[0][1]
    for _, configuration, speed in path:
        if configuration != last:
            passed_s += restart_s
            last = configuration
        if work <= speed * SAMPLE_S:
            return passed_s + work / speed
        work -= speed * SAMPLE_S
        passed_s += SAMPLE_S
    return passed_s + work / path[-1][2]
