"""Simulates forty jobs that share a cluster of the paper, from measured curves (section V-B of Nearchus)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from statistics import fmean
from typing import Any

from benchmarks.elastic.curves import Curve
from benchmarks.elastic.shared_jobs import JobMix, JobRequest, Outcome, draw_arrivals, most_queued, summarize
from benchmarks.elastic.simulated import (
    FIRST_CORES,
    OPTIMUS_PERIOD_S,
    SAMPLE_S,
    STABLE_SAMPLES,
    Cluster,
    add_noise,
    best_fixed,
    make_optimus,
    simulate_decider,
)
from paceline.allocate import ClusterJob, Growing, Node, Placement, Speeds, fifo
from paceline.elastic import Scaling, TeamSample
from paceline.simulate.cluster import Arrival, Friction, JobOutcome, Simulation
from paceline.simulate.parameter_servers import Workload

_GROWTH_PERIOD_S = STABLE_SAMPLES * SAMPLE_S  # time between two steps of growth
_SAMPLES_PER_PROFILE = 2


def simulate_sharing(
    curves: Mapping[str, Curve], cluster: Cluster, mix: JobMix, seeds: int, restart_s: float
) -> list[dict[str, Any]]:
    """Simulate the three policies on ``seeds`` traces; return a row for each policy."""
    policies: dict[str, Callable[[Sequence[JobRequest]], Outcome]] = {
        "growing": lambda jobs: simulate_growing(jobs, curves, cluster),
        "optimus": lambda jobs: simulate_known_speeds(
            OptimusPolicy(), jobs, speeds_of_optimus, curves, cluster, restart_s
        ),
        "fixed": lambda jobs: simulate_known_speeds(
            fifo(_place_whole_request), jobs, speed_of_best_fixed, curves, cluster, 0.0
        ),
    }
    traces = [list(draw_arrivals(curves, seed, mix)) for seed in range(seeds)]
    outcomes = {name: [simulate(jobs) for jobs in traces] for name, simulate in policies.items()}
    return [{"cluster": cluster.name, **asdict(mix), **row} for row in summarize(outcomes)]


# --- Paceline: the policy sets the budget of each job, and the job divides it among its nodes -------------------------


@dataclass
class _RunningJob:
    request: JobRequest
    workload: Workload
    left: float
    granted: int = 0
    scaling: Scaling | None = None
    started_s: float = field(default=float("inf"))
    first_cores: float = 0.0
    settled_budget: float = 0.0

    def decide(self, scaling: Scaling, sample: TeamSample, rng: random.Random) -> None:
        """Pass a sample with noise to ``scaling``, unless its search has ended within the current budget."""
        if not scaling.settled or scaling.budget != self.settled_budget:
            scaling.decide(add_noise(sample, rng))
            self.settled_budget = scaling.budget if scaling.settled else 0.0


def simulate_growing(jobs: Sequence[JobRequest], curves: Mapping[str, Curve], cluster: Cluster) -> Outcome:
    """Simulate the policy ``growing``; in each sample period, every job trains, measures its speed and decides."""
    rng = random.Random(0)
    policy = GrowingFromFifteen()
    pending = list(jobs)
    running: list[_RunningJob] = []
    done: list[tuple[_RunningJob, float]] = []  # ended jobs with their end times
    now_s, next_decision_s, used_core_s = 0.0, 0.0, 0.0
    while pending or running:
        changed = False
        while pending and pending[0].arrives_s <= now_s:
            request = pending.pop(0)
            running.append(_RunningJob(request, curves[request.model].workload(cluster.process_cores), request.work))
            changed = True
        if changed or now_s >= next_decision_s:
            _update_grants(policy, running, cluster, now_s, rescale=now_s >= next_decision_s)
            next_decision_s = now_s + _GROWTH_PERIOD_S if now_s >= next_decision_s else next_decision_s
        for one in [one for one in running if one.scaling is not None]:
            assert one.scaling is not None
            sample = cluster.sample(one.workload, one.scaling.configuration)
            one.left -= sample.speed * SAMPLE_S
            used_core_s += one.scaling.configuration.cores * SAMPLE_S
            one.decide(one.scaling, sample, rng)
            if one.left <= 0:
                running.remove(one)
                done.append((one, now_s + SAMPLE_S))
        now_s += SAMPLE_S
    return Outcome(
        done_s=fmean(ended_s - one.request.arrives_s for one, ended_s in done),
        queued_s=fmean(one.started_s - one.request.arrives_s for one, _ in done),
        most_queued=most_queued([(one.request.arrives_s, one.started_s) for one, _ in done]),
        first_cores=fmean(one.first_cores for one, _ in done),
        restarts=0.0,
        in_use=used_core_s / (cluster.cores * now_s),
    )


def _update_grants(
    policy: Growing, running: Sequence[_RunningJob], cluster: Cluster, now_s: float, *, rescale: bool
) -> None:
    jobs = [
        ClusterJob(
            one.request.name,
            one.request.arrives_s,
            one.left,
            {"device": _unknown_speeds(one.request.cores)},
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
                one.scaling, one.started_s = Scaling(float(one.granted), cluster.options(one.granted)), now_s
                one.first_cores = one.scaling.configuration.cores
            else:
                one.scaling.set_budget(float(one.granted))


def _unknown_speeds(cores: int) -> Speeds:
    """Return a placeholder, because the policy does not know the job's speed; a job starts on fifteen cores or more."""
    counts = tuple(range(int(FIRST_CORES), cores + 1))
    return Speeds(counts, tuple(map(float, counts)))


class GrowingFromFifteen(Growing):
    """The policy ``growing`` with the paper's R_0: a job of any budget waits for fifteen cores and starts on them."""

    def _start_count(self, job: ClusterJob, speeds: Speeds) -> int:
        return speeds.counts[0]


# --- baselines: the speed of a job on each number of cores is known in advance ----------------------------------------


class OptimusPolicy(GrowingFromFifteen):
    """The policy of Optimus: a job grows from fifteen cores by one node at a time, even while other jobs wait."""

    name = "optimus"

    def _may_grow(self, queue_head: str | None) -> bool:
        return True

    def _grown_count(self, job: ClusterJob, speeds: Speeds, held: int, free: int) -> int:
        return next((count for count in speeds.counts if held < count <= held + free), held)


def simulate_known_speeds(
    policy: Any,
    requests: Sequence[JobRequest],
    speeds_of: Callable[[Workload, Cluster, int], Speeds],
    curves: Mapping[str, Curve],
    cluster: Cluster,
    pause_s: float,
) -> Outcome:
    """Simulate a policy that knows the speed of each job on each number of cores."""
    jobs = []
    for one in requests:
        speeds = speeds_of(curves[one.model].workload(cluster.process_cores), cluster, one.cores)
        jobs.append(Arrival(one.name, one.arrives_s, one.work, {"device": speeds}, requested=one.cores))
    ended: list[JobOutcome] = []
    result = Simulation(
        jobs,
        [Node("cluster", cluster.cores)],
        policy,
        friction=Friction(pause_s=pause_s),
        period_s=OPTIMUS_PERIOD_S,
        on_outcome=ended.append,
    ).run()
    assert result.done == len(jobs)
    return Outcome(
        done_s=result.mean_total_s,
        queued_s=result.mean_queue_s,
        most_queued=most_queued([(one.arrived_s, one.started_s) for one in ended if one.started_s is not None]),
        first_cores=fmean(next(iter(one.speeds.values())).counts[0] for one in jobs),
        restarts=(result.changes - result.done) / result.done,  # the first start of a job is not a restart
        in_use=result.device_s / (cluster.cores * result.ended_s),
    )


@cache
def speeds_of_optimus(workload: Workload, cluster: Cluster, budget: int) -> Speeds:
    """Return the speed of a job on each number of cores on which Optimus trains it within its budget."""
    optimus = make_optimus(budget, _SAMPLES_PER_PROFILE)
    speeds = {
        int(one.cores): speed for one, speed in simulate_decider(optimus, workload, cluster) if not optimus.is_profiling
    }
    return Speeds(tuple(sorted(speeds)), tuple(speeds[count] for count in sorted(speeds)))


@cache
def speed_of_best_fixed(workload: Workload, cluster: Cluster, budget: int) -> Speeds:
    """Return the speed of a job's fastest configuration of five-core nodes, which needs its whole budget."""
    return Speeds((budget,), (best_fixed(workload, cluster, budget)[1],))


def _place_whole_request(
    job: ClusterJob, nodes: Sequence[Node], free: Mapping[str, int], now_s: float
) -> Placement | None:
    count = next(iter(job.speeds.values())).counts[-1]
    return Placement(nodes[0].name, count) if free[nodes[0].name] >= count else None
