"""Simulates forty jobs that share a cluster of the paper, from measured curves (section V-B of Nearchus)."""

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
    OPTIMUS_PERIOD_S,
    SAMPLE_S,
    Cluster,
    add_noise,
    best_fixed,
    simulate_decider,
)
from paceline.allocate import ClusterJob, Growing, Node, Placement, Speeds, fifo
from paceline.elastic import Options, Scaling
from paceline.simulate.cluster import Arrival, Friction, Simulation
from paceline.simulate.parameter_servers import Workload

_JOBS, _VARIANTS = (
    40,
    ((30, 1.0), (30, 2.0), (50, 0.8), (50, 1.6), (80, 0.6), (80, 1.2)),
)  # cores of a job, and hours on all of these cores
_DECISION_PERIOD_S = 180.0  # time between two decisions of an arbiter
_OPTIMUS_PROFILES, _SAMPLES_PER_PROFILE = 20, 2  # number of profiled configurations, and samples of each


def simulate_sharing(
    curves: Mapping[str, Curve], cluster: Cluster, seeds: int, restart_s: float
) -> list[dict[str, Any]]:
    """Simulate the three policies; return a row of means over ``seeds`` traces for each policy."""
    policies = {
        "growing": lambda seed: _simulate_growing(_draw_arrivals(curves, seed), curves, cluster),
        "optimus": lambda seed: _simulate_known_speeds(
            OptimusPolicy(), _draw_arrivals(curves, seed), _speeds_of_optimus, curves, cluster, restart_s
        ),
        "fixed": lambda seed: _simulate_known_speeds(
            fifo(_place_whole_request), _draw_arrivals(curves, seed), _speed_of_best_fixed, curves, cluster, 0.0
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
    """An arriving job, its work in steps, and its maximum number of cores."""

    name: str
    model: str
    arrives_s: float
    work: float
    cores: int


def _draw_arrivals(curves: Mapping[str, Curve], seed: int) -> Iterator[JobRequest]:
    """Yield one request per hour on average, drawn from thirty jobs; all policies and clusters get the same."""
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
class _RunningJob:
    request: JobRequest
    workload: Workload
    left: float
    granted: int = 0
    scaling: Scaling | None = None
    started_s: float = field(default=float("inf"))


def _simulate_growing(
    arrivals: Iterator[JobRequest], curves: Mapping[str, Curve], cluster: Cluster
) -> dict[str, float]:
    """Simulate the policy ``growing``; in each sample period, every job trains, measures its speed and decides."""
    rng = random.Random(0)
    policy = GrowingFromFifteen()
    pending = list(arrivals)
    running: list[_RunningJob] = []
    done: list[tuple[float, float]] = []  # seconds from arrival to start, and to end
    now_s, next_decision_s, used_core_s = 0.0, 0.0, 0.0
    while pending or running:
        changed = False
        while pending and pending[0].arrives_s <= now_s:
            request = pending.pop(0)
            running.append(_RunningJob(request, curves[request.model].workload(cluster.process_cores), request.work))
            changed = True
        if changed or now_s >= next_decision_s:
            _update_grants(policy, running, cluster, now_s, rescale=now_s >= next_decision_s)
            next_decision_s = now_s + _DECISION_PERIOD_S if now_s >= next_decision_s else next_decision_s
        for one in [one for one in running if one.scaling is not None]:
            assert one.scaling is not None
            sample = cluster.sample(one.workload, one.scaling.configuration)
            one.left -= sample.speed * SAMPLE_S
            used_core_s += one.scaling.configuration.cores * SAMPLE_S
            one.scaling.decide(add_noise(sample, rng))
            if one.left <= 0:
                running.remove(one)
                done.append((one.started_s - one.request.arrives_s, now_s + SAMPLE_S - one.request.arrives_s))
        now_s += SAMPLE_S
    queued_s, total_s = (fmean(times) for times in zip(*done, strict=True))
    in_use = used_core_s / (cluster.cores * now_s)
    return {"mean_jct_s": total_s, "mean_queue_s": queued_s, "restarts": 0.0, "in_use": in_use}


def _update_grants(
    policy: Growing, running: Sequence[_RunningJob], cluster: Cluster, now_s: float, *, rescale: bool
) -> None:
    jobs = [
        ClusterJob(
            one.request.name,
            one.request.arrives_s,
            one.left,
            {"device": Speeds.linear(one.request.cores)},  # a placeholder: the policy does not know the job's speed
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
    """The policy ``growing`` with the paper's R_0: fifteen cores for any budget, or the job's maximum if it is less."""

    def _start_count(self, job: ClusterJob, speeds: Speeds) -> int:
        return speeds.largest_count(int(FIRST_CORES))


# --- baselines: the speed of a job on each number of cores is known in advance ----------------------------------------


class OptimusPolicy(Growing):
    """The policy of Optimus: a job grows from fifteen cores by one node at a time, even while other jobs wait."""

    name = "optimus"

    def _may_grow(self, queue_head: str | None) -> bool:
        return True

    def _start_count(self, job: ClusterJob, speeds: Speeds) -> int:
        return speeds.counts[0]

    def _grown_count(self, job: ClusterJob, speeds: Speeds, held: int, free: int) -> int:
        return next((count for count in speeds.counts if held < count <= held + free), held)


def _simulate_known_speeds(
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
        jobs, [Node("cluster", cluster.cores)], policy, friction=Friction(pause_s=pause_s), period_s=OPTIMUS_PERIOD_S
    ).run()
    assert result.done == _JOBS
    return {
        "mean_jct_s": result.mean_total_s,
        "mean_queue_s": result.mean_queue_s,
        "restarts": (result.changes - result.done) / result.done,  # the first start of a job is not a restart
        "in_use": result.device_s / (cluster.cores * result.ended_s),
    }


def _speeds_of_optimus(workload: Workload, cluster: Cluster, budget: int) -> Speeds:
    optimus = Optimus(
        float(budget), NODE_CORES, profiled=_OPTIMUS_PROFILES, options=Options(stable_samples=_SAMPLES_PER_PROFILE)
    )
    path = list(simulate_decider(optimus, workload, cluster, 500))
    speeds = {
        int(one.cores): speed
        for _, one, speed in path[_OPTIMUS_PROFILES * _SAMPLES_PER_PROFILE :]
        if one.cores >= FIRST_CORES
    }
    return Speeds(tuple(sorted(speeds)), tuple(speeds[count] for count in sorted(speeds)))


def _speed_of_best_fixed(workload: Workload, cluster: Cluster, budget: int) -> Speeds:
    return Speeds((budget,), (best_fixed(workload, cluster, budget)[1],))


def _place_whole_request(
    job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float
) -> Placement | None:
    count = next(iter(job.speeds.values())).counts[-1]
    return Placement(nodes[0].name, count) if free[nodes[0].name] >= count else None
