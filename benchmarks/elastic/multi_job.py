"""Forty trainings that share one of the paper's clusters, simulated from measured curves: Nearchus, section V-B."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from benchmarks.elastic.curves import Curve
from benchmarks.elastic.optimus import Optimus
from benchmarks.elastic.simulated import (
    CLUSTERS,
    FIRST_CORES,
    HOUR_S,
    NODE_CORES,
    OPTIMUS_S,
    SAMPLE_S,
    Cluster,
    best_fixed,
    follow,
    noisy,
)
from paceline.allocate import ClusterJob, Growing, Node, Placement, Speeds, fifo
from paceline.elastic import Options, Scaling
from paceline.simulate.cluster import Arrival, Friction, Simulation
from paceline.simulate.parameter_servers import Workload

_JOBS, _VARIANTS = 40, ((30, 1.0), (30, 2.0), (50, 0.8), (50, 1.6), (80, 0.6), (80, 1.2))  # cores, hours on all of them
_GROW_S = 180.0  # between two decisions of an arbiter
_PROFILES, _STABLE = 20, 2  # Optimus: configurations, and samples of each


def shared(curves: Mapping[str, Curve], cluster: Cluster, seeds: int, restart_s: float) -> list[dict[str, Any]]:
    """Simulate the three policies; return means over ``seeds`` traces for each."""
    policies = {
        "growing": lambda seed: _growing(_arrivals(curves, seed), curves, cluster),
        "optimus": lambda seed: _simulated(
            Adding(), _arrivals(curves, seed), _optimus_speeds, curves, cluster, restart_s
        ),
        "fixed": lambda seed: _simulated(
            fifo(_all_or_nothing), _arrivals(curves, seed), _best_fixed_speeds, curves, cluster, 0.0
        ),
    }
    rows = []
    for name, simulate in policies.items():
        results = [simulate(seed) for seed in range(seeds)]
        means = {key: fmean(result[key] for result in results) for key in results[0]}
        rows.append({"cluster": cluster.name, "policy": name, **means})
    return rows


@dataclass(frozen=True)
class JobRequest:
    """An arriving training: its work in steps, and its maximum of cores."""

    name: str
    model: str
    arrives_s: float
    work: float
    cores: int


def _arrivals(curves: Mapping[str, Curve], seed: int) -> Iterator[JobRequest]:
    """Yield a request an hour on average, drawn from thirty jobs; the same for each policy and cluster."""
    rng = random.Random(seed)
    slow = CLUSTERS[0]
    now_s = 0.0
    for number in range(_JOBS):
        now_s += rng.expovariate(1 / HOUR_S)
        model = rng.choice(sorted(curves))
        cores, hours = rng.choice(_VARIANTS)
        speed = best_fixed(curves[model].workload(slow.process_cores), slow, cores)[1]
        yield JobRequest(f"{model}-{number}", model, now_s, speed * hours * HOUR_S, cores)


# --- Paceline: the policy sets the budget of each job, and the job divides it among its nodes -------------------------


@dataclass
class _Training:
    request: JobRequest
    workload: Workload
    left: float
    granted: int = 0
    scaling: Scaling | None = None
    started_s: float = field(default=float("inf"))


def _growing(arrivals: Iterator[JobRequest], curves: Mapping[str, Curve], cluster: Cluster) -> dict[str, float]:
    """Simulate the growing policy: at each sample every training trains, measures and decides."""
    rng = random.Random(0)
    policy = GrowingFromFifteen()
    pending = list(arrivals)
    running: list[_Training] = []
    done: list[tuple[float, float]] = []  # seconds from arrival to start, and to end
    now_s, grow_s, used_core_s = 0.0, 0.0, 0.0
    while pending or running:
        changed = False
        while pending and pending[0].arrives_s <= now_s:
            request = pending.pop(0)
            running.append(_Training(request, curves[request.model].workload(cluster.process_cores), request.work))
            changed = True
        if changed or now_s >= grow_s:
            _grant(policy, running, cluster, now_s, rescale=now_s >= grow_s)
            grow_s = now_s + _GROW_S if now_s >= grow_s else grow_s
        for one in [one for one in running if one.scaling is not None]:
            assert one.scaling is not None
            sample = cluster.sample(one.workload, one.scaling.configuration)
            one.left -= sample.speed * SAMPLE_S
            used_core_s += one.scaling.configuration.cores * SAMPLE_S
            one.scaling.decide(noisy(sample, rng))
            if one.left <= 0:
                running.remove(one)
                done.append((one.started_s - one.request.arrives_s, now_s + SAMPLE_S - one.request.arrives_s))
        now_s += SAMPLE_S
    queued_s, total_s = (fmean(times) for times in zip(*done, strict=True))
    in_use = used_core_s / (cluster.cores * now_s)
    return {"mean_jct_s": total_s, "mean_queue_s": queued_s, "restarts": 0.0, "in_use": in_use}


def _grant(policy: Growing, running: Sequence[_Training], cluster: Cluster, now_s: float, *, rescale: bool) -> None:
    jobs = [
        ClusterJob(
            one.request.name,
            one.request.arrives_s,
            one.left,
            {"device": Speeds.linear(one.request.cores)},  # its speed is unknown
            requested=one.request.cores,
            held=Placement("cluster", one.granted) if one.granted else None,
        )
        for one in running
    ]
    placements = policy.allocate(jobs, [Node("cluster", cluster.cores)], now_s, rescale=rescale).placements
    for one in running:
        if one.request.name in placements:
            one.granted = placements[one.request.name].devices
            if one.scaling is None:
                options = Options(**{**vars(cluster.options()), "start_share": 1.0})
                one.scaling, one.started_s = Scaling(float(one.granted), options), now_s
            else:
                one.scaling.set_budget(float(one.granted))


class GrowingFromFifteen(Growing):
    """As in the paper's evaluation, R_0 is fifteen cores for any budget, or the job's maximum."""

    def _start_count(self, job: ClusterJob, speeds: Speeds) -> int:
        return speeds.largest_count(int(FIRST_CORES))


# --- baselines: the speed of a training on each number of cores is known in advance -----------------------------------


class Adding(Growing):
    """Optimus's policy: grow from fifteen cores by one node at a time, even while other jobs wait."""

    name = "optimus"

    def _may_grow(self, queue_head: str | None) -> bool:
        return True

    def _start_count(self, job: ClusterJob, speeds: Speeds) -> int:
        return speeds.counts[0]

    def _grown_count(self, job: ClusterJob, speeds: Speeds, held: int, free: int) -> int:
        return next((count for count in speeds.counts if held < count <= held + free), held)


def _simulated(
    policy: Any,
    arrivals: Iterator[JobRequest],
    speeds_of: Any,
    curves: Mapping[str, Curve],
    cluster: Cluster,
    pause_s: float,
) -> dict[str, float]:
    known: dict[tuple[str, int], Speeds] = {}
    jobs = []
    for one in arrivals:
        key = one.model, one.cores
        if key not in known:
            known[key] = speeds_of(curves[one.model].workload(cluster.process_cores), cluster, one.cores)
        jobs.append(Arrival(one.name, one.arrives_s, one.work, {"device": known[key]}, requested=one.cores))
    result = Simulation(
        jobs, [Node("cluster", cluster.cores)], policy, friction=Friction(pause_s=pause_s), period_s=OPTIMUS_S
    ).run()
    assert result.done == _JOBS
    return {
        "mean_jct_s": result.mean_total_s,
        "mean_queue_s": result.mean_queue_s,
        "restarts": (result.changes - result.done) / result.done,  # a start is not a restart
        "in_use": result.device_s / (cluster.cores * result.ended_s),
    }


def _optimus_speeds(workload: Workload, cluster: Cluster, budget: int) -> Speeds:
    optimus = Optimus(float(budget), NODE_CORES, profiled=_PROFILES, options=Options(stable_samples=_STABLE))
    path = list(follow(optimus, workload, cluster, 500))
    found = {int(one.cores): speed for _, one, speed in path[_PROFILES * _STABLE :] if one.cores >= FIRST_CORES}
    return Speeds(tuple(sorted(found)), tuple(found[count] for count in sorted(found)))


def _best_fixed_speeds(workload: Workload, cluster: Cluster, budget: int) -> Speeds:
    return Speeds((budget,), (best_fixed(workload, cluster, budget)[1],))


def _all_or_nothing(job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float) -> Placement | None:
    count = next(iter(job.speeds.values())).counts[-1]
    return Placement(nodes[0].name, count) if free[nodes[0].name] >= count else None
