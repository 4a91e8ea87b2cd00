"""At the paper's scale, from measured curves: one training alone, and forty that share a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from benchmarks.elastic.curves import Curve
from benchmarks.elastic.optimus import Optimus
from paceline.allocate import Growing, Job, Node, Placement, Policy, Speeds, fifo
from paceline.elastic import Configuration, Decider, Options, Sample, Scaling
from paceline.simulate.cluster import Arrival, Friction, Simulation
from paceline.simulate.parameter_servers import Workload, steady_state

NODE_CORES = 5.0  # of each node of Optimus and of the fixed configurations
FIRST_CORES = 15.0  # of the first configuration
SAMPLE_S = 20.0
OPTIMUS_S = 600.0  # from one of its steps to the next
STABLE_S = 400.0  # the paper's are stable after five to eight minutes
REACHED = 0.95  # of the speed in the end
_NOISE = 0.01
_HOUR_S = 3600.0
_JOBS, _VARIANTS = 40, ((30, 1.0), (30, 2.0), (50, 0.8), (50, 1.6), (80, 0.6), (80, 1.2))  # cores, hours on all of them


@dataclass(frozen=True)
class Cluster:
    """One of the paper's (table I): cores, links, and the most cores that a process has been seen to use there."""

    name: str
    cores: int
    link_mbit_s: float
    process_cores: float
    machines: int = 9

    def sample(self, workload: Workload, configuration: Configuration) -> Sample:
        """What would be measured, without noise. Nodes on the same machine share its link."""
        share = min(self.machines / len(configuration.nodes), 1.0)
        return steady_state(workload, configuration, share * self.link_mbit_s * 1e6 / 8)

    def options(self) -> Options:
        """The defaults, with the paper's beginning, and as many nodes as the cluster has room for."""
        most = int(self.cores / NODE_CORES)
        return Options(
            start_share=FIRST_CORES / self.cores,
            most_servers=most,
            most_workers=2 * most,
            link_mbit_s=self.link_mbit_s,
        )


CLUSTERS = (Cluster("A", 100, 1_000.0, 16.0), Cluster("B", 300, 50_000.0, 37.0))


def follow(
    decider: Decider, workload: Workload, cluster: Cluster, samples: int
) -> Iterator[tuple[int, Configuration, float]]:
    """Let it decide, sample by sample; yields (sample, configuration in force, speed)."""
    rng = random.Random(0)
    for number in range(samples):
        before = decider.configuration
        now = cluster.sample(workload, before)
        yield number, before, now.speed
        decider.look(_noisy(now, rng))


def _noisy(sample: Sample, rng: random.Random) -> Sample:
    def off(values: Mapping[str, float]) -> dict[str, float]:
        return {name: value * (1 + rng.gauss(0, _NOISE)) for name, value in values.items()}

    return Sample(sample.speed * (1 + rng.gauss(0, _NOISE)), off(sample.used), off(sample.network))


def best_fixed(workload: Workload, cluster: Cluster, cores: float) -> tuple[Configuration, float]:
    """FA-BF: the best of all numbers of nodes with five cores each."""
    most = int(cores / NODE_CORES)
    every = [
        Configuration((NODE_CORES,) * servers, (NODE_CORES,) * workers)
        for servers in range(1, most)
        for workers in range(1, most - servers + 1)
    ]
    found = max(every, key=lambda one: cluster.sample(workload, one).speed)
    return found, cluster.sample(workload, found).speed


def best_of_all(workload: Workload, cluster: Cluster, cores: float) -> float:
    """The fastest of some thousand configurations, of any number of nodes of any size."""
    shares = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)
    most = int(cores / NODE_CORES)
    numbers = sorted({round(2 ** (power / 2)) for power in range(20)})
    return max(
        cluster.sample(
            workload,
            Configuration((cores * share / servers,) * servers, (cores * (1 - share) / workers,) * workers),
        ).speed
        for servers in numbers
        if servers <= most
        for workers in numbers
        if workers <= 2 * most
        for share in shares
    )


def alone(name: str, curve: Curve, cluster: Cluster, restart_s: float) -> dict[str, Any]:
    """One training with the whole cluster as its budget."""
    workload = curve.workload(cluster.process_cores)
    fixed, fixed_speed = best_fixed(workload, cluster, cluster.cores)
    hours = 6.0
    work = fixed_speed * hours * _HOUR_S
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
        "jct_h": _completion_s(ours, work, 0.0) / _HOUR_S,
        "jct_h_optimus": _completion_s(theirs[profiles:], work, restart_s) / _HOUR_S,
        "jct_h_fixed": hours,
        "changes": _changes(ours),
        "restarts_optimus": _changes(theirs[profiles:]),
        "configuration": str(ours[-1][1]),
        "configuration_optimus": str(theirs[-1][1]),
        "configuration_fixed": str(fixed),
    }


def _changes(path: Sequence[tuple[int, Configuration, float]]) -> int:
    return sum(one[1] != other[1] for one, other in pairwise(path))


def _reached(path: Sequence[tuple[int, Configuration, float]]) -> int:
    """Samples until it stays as fast as in the end, nearly."""
    below = [place for place, (_, _, speed) in enumerate(path) if speed < REACHED * path[-1][2]]
    return below[-1] + 1 if below else 0


def _completion_s(path: Sequence[tuple[int, Configuration, float]], work: float, restart_s: float) -> float:
    """When so many steps are done; after the end of the path it goes on as it is."""
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


# --- many -------------------------------------------------------------------------------------------------------------


class Adding(Growing):
    """Optimus's steps: from fifteen cores on, one node more at a time."""

    name = "optimus"

    def _first(self, job: Job, speeds: Speeds) -> int:
        return speeds.counts[0]

    def _more(self, job: Job, speeds: Speeds, held: int, free: int) -> int:
        return next((count for count in speeds.counts if held < count <= held + free), held)


def shared(curves: Mapping[str, Curve], cluster: Cluster, seeds: int, restart_s: float) -> list[dict[str, Any]]:
    """Forty trainings, by each of the three; means over traces."""
    rows = []
    for policy, period_s, pause_s in _policies(cluster, restart_s):
        speeds = {
            (name, cores): _speeds(policy.name, curve.workload(cluster.process_cores), cluster, cores)
            for name, curve in curves.items()
            for cores in sorted({cores for cores, _ in _VARIANTS})
        }
        results = []
        for seed in range(seeds):
            arrivals = list(_arrivals(curves, speeds, seed))
            simulation = Simulation(
                arrivals,
                [Node("cluster", cluster.cores)],
                policy,
                friction=Friction(pause_s=pause_s),
                period_s=period_s,
            )
            results.append(simulation.run())
        assert all(result.done == _JOBS for result in results)
        rows.append(
            {
                "cluster": cluster.name,
                "policy": policy.name,
                "mean_jct_s": fmean(result.mean_total_s for result in results),
                "mean_queue_s": fmean(result.mean_queue_s for result in results),
                "restarts": 0.0 if policy.name == "growing" else fmean(_restarts(result) for result in results),
                "changes": fmean(_restarts(result) for result in results),
                "in_use": fmean(result.device_s / (cluster.cores * result.ended_s) for result in results),
            }
        )
    return rows


def _restarts(result: Any) -> float:
    """Changes of a size, per job: each job's start is none."""
    return (result.changes - result.done) / result.done


def _policies(cluster: Cluster, restart_s: float) -> list[tuple[Policy, float, float]]:
    """Who decides, seconds between two steps of a training, and seconds that each change costs it."""
    return [
        (Growing(start_share=cluster.options().start_share), STABLE_S, 0.0),
        (Adding(), OPTIMUS_S, restart_s),
        (fifo(_all_at_once), OPTIMUS_S, 0.0),
    ]


def _all_at_once(job: Job, nodes: Sequence[Node], free: Mapping[str, int], now_s: float) -> Placement | None:
    count = next(iter(job.speeds.values())).counts[-1]
    return Placement(nodes[0].name, count) if free[nodes[0].name] >= count else None


def _speeds(policy: str, workload: Workload, cluster: Cluster, budget: int) -> Speeds:
    """How fast a training is on so many cores, as the method makes use of them."""
    if policy == "fifo":
        return Speeds((budget,), (best_fixed(workload, cluster, budget)[1],))
    if policy == "optimus":
        optimus = Optimus(float(budget), NODE_CORES, profiled=20, options=Options(stable_samples=2))
        path = list(follow(optimus, workload, cluster, 500))
        found = {int(one.cores): speed for _, one, speed in path[40:] if one.cores >= FIRST_CORES}
        return Speeds(tuple(sorted(found)), tuple(found[count] for count in sorted(found)))
    reach = partial(_settled, workload, cluster)
    counts = sorted({round(FIRST_CORES * (budget / FIRST_CORES) ** (place / 12)) for place in range(13)})
    return Speeds(tuple(counts), tuple(reach(float(count)) for count in counts))


def _settled(workload: Workload, cluster: Cluster, cores: float) -> float:
    scaling = Scaling(cores, cluster.options())
    return list(follow(scaling, workload, cluster, 400))[-1][2]


def _arrivals(curves: Mapping[str, Curve], speeds: Mapping[tuple[str, int], Speeds], seed: int) -> Iterator[Arrival]:
    """One an hour, drawn from thirty jobs; the same ones for each policy and cluster."""
    rng = random.Random(seed)
    slow = CLUSTERS[0]
    now_s = 0.0
    for number in range(_JOBS):
        now_s += rng.expovariate(1 / _HOUR_S)
        name = rng.choice(sorted(curves))
        cores, hours = rng.choice(_VARIANTS)
        work = best_fixed(curves[name].workload(slow.process_cores), slow, cores)[1] * hours * _HOUR_S
        yield Arrival(f"{name}-{number}", now_s, work, {"device": speeds[name, cores]}, requested=cores)
