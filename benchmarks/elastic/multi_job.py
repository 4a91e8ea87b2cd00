"""Forty trainings that share one of the paper's clusters, from measured curves: section V-B of Nearchus."""

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
_GROW_S = 180.0  # an arbiter's time between two decisions
_PROFILES, _STABLE = 20, 2  # of Optimus: configurations, and samples of each


def shared(curves: Mapping[str, Curve], cluster: Cluster, seeds: int, restart_s: float) -> list[dict[str, Any]]:
    """Each of the three ways to share; means over so many traces."""
    ways = {
        "growing": lambda seed: _growing(_arrivals(curves, seed), curves, cluster),
        "optimus": lambda seed: _simulated(Adding(), _arrivals(curves, seed), _by_optimus, curves, cluster, restart_s),
        "fixed": lambda seed: _simulated(fifo(_all_at_once), _arrivals(curves, seed), _at_best, curves, cluster, 0.0),
    }
    rows = []
    for name, way in ways.items():
        results = [way(seed) for seed in range(seeds)]
        means = {key: fmean(result[key] for result in results) for key in results[0]}
        rows.append({"cluster": cluster.name, "policy": name, **means})
    return rows


@dataclass(frozen=True)
class Asked:
    """A training that comes: its work in steps, on at most so many cores."""

    name: str
    model: str
    arrives_s: float
    work: float
    cores: int


def _arrivals(curves: Mapping[str, Curve], seed: int) -> Iterator[Asked]:
    """One an hour, drawn from thirty jobs; the same ones for each policy and cluster."""
    rng = random.Random(seed)
    slow = CLUSTERS[0]
    now_s = 0.0
    for number in range(_JOBS):
        now_s += rng.expovariate(1 / HOUR_S)
        model = rng.choice(sorted(curves))
        cores, hours = rng.choice(_VARIANTS)
        speed = best_fixed(curves[model].workload(slow.process_cores), slow, cores)[1]
        yield Asked(f"{model}-{number}", model, now_s, speed * hours * HOUR_S, cores)


# --- ours: the policy decides how much, and each training's own scaling how it is spread ------------------------------


@dataclass
class _Training:
    asked: Asked
    workload: Workload
    left: float
    granted: int = 0
    scaling: Scaling | None = None
    started_s: float = field(default=float("inf"))


def _growing(arrivals: Iterator[Asked], curves: Mapping[str, Curve], cluster: Cluster) -> dict[str, float]:
    """Second by second nothing happens but samples: at each of them every training trains, measures and decides."""
    rng = random.Random(0)
    policy = GrowingFromFifteen()
    ahead = list(arrivals)
    here: list[_Training] = []
    done: list[tuple[float, float]] = []  # seconds from its arrival to its start, and to its end
    now_s, grow_s, used_core_s = 0.0, 0.0, 0.0
    while ahead or here:
        changed = False
        while ahead and ahead[0].arrives_s <= now_s:
            asked = ahead.pop(0)
            here.append(_Training(asked, curves[asked.model].workload(cluster.process_cores), asked.work))
            changed = True
        if changed or now_s >= grow_s:
            _grant(policy, here, cluster, now_s, rescale=now_s >= grow_s)
            grow_s = now_s + _GROW_S if now_s >= grow_s else grow_s
        for one in [one for one in here if one.scaling is not None]:
            assert one.scaling is not None
            sample = cluster.sample(one.workload, one.scaling.configuration)
            one.left -= sample.speed * SAMPLE_S
            used_core_s += one.scaling.configuration.cores * SAMPLE_S
            one.scaling.look(noisy(sample, rng))
            if one.left <= 0:
                here.remove(one)
                done.append((one.started_s - one.asked.arrives_s, now_s + SAMPLE_S - one.asked.arrives_s))
        now_s += SAMPLE_S
    queued_s, total_s = (fmean(times) for times in zip(*done, strict=True))
    in_use = used_core_s / (cluster.cores * now_s)
    return {"mean_jct_s": total_s, "mean_queue_s": queued_s, "restarts": 0.0, "in_use": in_use}


def _grant(policy: Growing, here: Sequence[_Training], cluster: Cluster, now_s: float, *, rescale: bool) -> None:
    jobs = [
        ClusterJob(
            one.asked.name,
            one.asked.arrives_s,
            one.left,
            {"device": Speeds.linear(one.asked.cores)},  # nothing is known of how fast it would be
            requested=one.asked.cores,
            held=Placement("cluster", one.granted) if one.granted else None,
        )
        for one in here
    ]
    placements = policy.allocate(jobs, [Node("cluster", cluster.cores)], now_s, rescale=rescale).placements
    for one in here:
        if one.asked.name in placements:
            one.granted = placements[one.asked.name].devices
            if one.scaling is None:
                options = Options(**{**vars(cluster.options()), "start_share": 1.0})
                one.scaling, one.started_s = Scaling(float(one.granted), options), now_s
            else:
                one.scaling.allow(float(one.granted))


class GrowingFromFifteen(Growing):
    """As in the paper's evaluation: R_0 is fifteen cores, whatever the budget; or as many as there are."""

    def _first(self, job: ClusterJob, speeds: Speeds) -> int:
        return speeds.most(int(FIRST_CORES))


# --- theirs: how fast a training is on so many cores is known beforehand ----------------------------------------------


class Adding(Growing):
    """Optimus's steps: from fifteen cores on, one node more at a time, also while somebody waits."""

    name = "optimus"

    def _may_grow(self, first_in_line: str | None) -> bool:
        return True

    def _first(self, job: ClusterJob, speeds: Speeds) -> int:
        return speeds.counts[0]

    def _more(self, job: ClusterJob, speeds: Speeds, held: int, free: int) -> int:
        return next((count for count in speeds.counts if held < count <= held + free), held)


def _simulated(
    policy: Any,
    arrivals: Iterator[Asked],
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
        "restarts": (result.changes - result.done) / result.done,  # a start is none
        "in_use": result.device_s / (cluster.cores * result.ended_s),
    }


def _by_optimus(workload: Workload, cluster: Cluster, budget: int) -> Speeds:
    optimus = Optimus(float(budget), NODE_CORES, profiled=_PROFILES, options=Options(stable_samples=_STABLE))
    path = list(follow(optimus, workload, cluster, 500))
    found = {int(one.cores): speed for _, one, speed in path[_PROFILES * _STABLE :] if one.cores >= FIRST_CORES}
    return Speeds(tuple(sorted(found)), tuple(found[count] for count in sorted(found)))


def _at_best(workload: Workload, cluster: Cluster, budget: int) -> Speeds:
    return Speeds((budget,), (best_fixed(workload, cluster, budget)[1],))


def _all_at_once(job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float) -> Placement | None:
    count = next(iter(job.speeds.values())).counts[-1]
    return Placement(nodes[0].name, count) if free[nodes[0].name] >= count else None
