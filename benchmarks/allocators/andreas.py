"""Compares the policies for nodes of several kinds with FIFO, EDF, priorities and the optimum (section V-B of ANDREAS).

The simulated clusters have two kinds of GPUs, and ten jobs per node. The baselines never change the allocation of a
running job. In the paper's simulator, moves are free; here, a stopped or moved job restarts from its last snapshot,
except in the rows "moves are free". The paper prints neither its load nor the unit of its tardiness weights, so both
are swept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Literal

from benchmarks.allocators.parallel import Spread, run_all
from benchmarks.allocators.timed import TimedPolicy
from paceline.allocate import ClusterJob, LeastCost, Node, Policy, RandomizedGreedy, edf, fifo, priority
from paceline.allocate.andreas.objective import objective
from paceline.allocate.andreas.optimum import optimum
from paceline.simulate.cluster import Friction, Simulation, SimulationResult
from paceline.simulate.cluster.heterogeneous import PUE, heterogeneous_workload

Mix = Literal["small", "large"]
MIXES: tuple[Mix, ...] = ("small", "large")
SEEDS, QUICK_SEEDS = tuple(range(10)), (0,)
SNAPSHOT_S = 60.0  # time between two snapshots of a job, about the length of an epoch
BASELINES: dict[str, Callable[[], Policy]] = {"fifo": fifo, "edf": edf, "ps": priority}
# The paper builds 1,000 schedules. The sweeps build 100; two rows show the difference.
POLICIES: dict[str, Callable[[], Policy]] = BASELINES | {
    "rg": lambda: RandomizedGreedy(iterations=100),
    "rg, 1,000 schedules": RandomizedGreedy,
    "least_cost": lambda: LeastCost(move_s=SNAPSHOT_S / 2),
    "least_cost, local search": lambda: LeastCost(move_s=SNAPSHOT_S / 2, local_search=True),
}
PRICES_EUR_PER_H = (0.03, 0.108, 0.3, 1.0, 3600.0)  # prices of tardiness at the weight 1
LOADS = (0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Scenario:
    """A cluster and its workload; ``free_moves`` as in the paper's simulator."""

    nodes: int = 10
    mix: Mix = "small"
    load: float = 1.0
    price_eur_per_h: float = 0.3
    free_moves: bool = False


@dataclass(frozen=True)
class SimulatedWorkload:
    """Result of a simulated workload, and the duration of each decision."""

    result: SimulationResult
    decision_s: Sequence[float]


def simulate(policy: str, scenario: Scenario, seed: int) -> SimulatedWorkload:
    """Simulate a workload under a policy that decides whenever a job arrives or ends."""
    arrivals, cluster = heterogeneous_workload(
        scenario.nodes,
        mix=scenario.mix,
        seed=seed,
        load=scenario.load,
        tardiness_eur_per_h=scenario.price_eur_per_h,
    )
    timed = TimedPolicy(POLICIES[policy]())
    friction = Friction(snapshot_every_s=None if scenario.free_moves else SNAPSHOT_S)
    return SimulatedWorkload(Simulation(arrivals, cluster, timed, friction=friction, pue=PUE).run(), timed.decision_s)


def _simulate_task(task: tuple[str, Scenario, int]) -> SimulatedWorkload:
    return simulate(*task)


def rows_of_table(quick: bool = False) -> list[tuple[str, Scenario]]:
    """Return the policy and the scenario of each row: sweeps of price and load, larger clusters, and variants."""
    rows: list[tuple[str, Scenario]] = []
    for mix in MIXES:
        base = Scenario(mix=mix)
        scenarios = [replace(base, price_eur_per_h=price) for price in ((0.3, 3600.0) if quick else PRICES_EUR_PER_H)]
        if not quick:
            scenarios += [replace(base, load=load) for load in LOADS if load != base.load]
        for scenario in scenarios:
            rows += [("rg", replace(scenario, free_moves=True)), ("least_cost", scenario)]
        rows.append(("rg", base))
    if not quick:
        free, large_cluster = Scenario(free_moves=True), Scenario(nodes=20)
        rows += [("rg", replace(large_cluster, free_moves=True)), ("least_cost", large_cluster)]
        rows += [("rg, 1,000 schedules", free), ("least_cost, local search", Scenario())]
    return rows


def run(quick: bool = False, progress: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Simulate all rows of the table, ten workloads each; return a row with the savings against each baseline.

    Parameters
    ----------
    quick:
        Simulate two prices of tardiness, and one workload.
    progress:
        Called after each finished simulation.
    """
    rows, seeds = rows_of_table(quick), QUICK_SEEDS if quick else SEEDS
    policies = [*rows, *((name, scenario) for name in BASELINES for _, scenario in rows)]
    tasks = [(policy, scenario, seed) for policy, scenario in dict.fromkeys(policies) for seed in seeds]
    simulated = run_all(_simulate_task, tasks, progress)
    return [
        {"policy": policy, **vars(scenario)}
        | compare(
            [simulated[policy, scenario, seed] for seed in seeds],
            {name: [simulated[name, scenario, seed] for seed in seeds] for name in BASELINES},
        )
        for policy, scenario in rows
    ]


def compare(ours: Sequence[SimulatedWorkload], baselines: dict[str, Sequence[SimulatedWorkload]]) -> dict[str, Any]:
    """Return the savings against each baseline in percent, and the costs in euro; mean and deviation over the seeds."""
    figures = {"cost": "total_cost", "energy": "energy_cost", "makespan": "ended_s"}
    saved = {
        f"{name}_reduction_pct": {
            baseline: Spread.of(
                [
                    100.0 * (1.0 - getattr(one.result, figure) / getattr(other.result, figure))
                    for one, other in zip(ours, others, strict=True)
                ]
            )
            for baseline, others in baselines.items()
        }
        for name, figure in figures.items()
    }
    mean_saved_pct = [
        mean(100.0 * (1.0 - one.result.total_cost / others[seed].result.total_cost) for others in baselines.values())
        for seed, one in enumerate(ours)
    ]
    took_s = [each for one in ours for each in one.decision_s]
    costs = {
        f"{figure}_eur": {
            name: Spread.of([getattr(one.result, f"{figure}_cost") for one in runs])
            for name, runs in ({"ours": ours} | baselines).items()
        }
        for figure in ("energy", "tardiness")
    }
    return {
        "mean_cost_reduction_pct": Spread.of(mean_saved_pct),
        **saved,
        **costs,
        "deadlines_met_pct": Spread.of([one.result.deadlines_met_pct for one in ours]),
        "changes": mean(one.result.changes for one in ours),
        "decision_s_mean": mean(took_s),
        "decision_s_max": max(took_s),
    }


def optimality_gaps(instances: int = 100, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Return the gap between each policy's f_OBJ and the optimum, in percent, for 3 to 6 jobs on 2 or 3 nodes.

    ``waiting`` has the figures before any job runs, ``running`` those when half of the jobs already run; the
    optimum may move these jobs at no cost. ``every_node_mean_pct`` is the gap of local search to the optimum under
    constraint (4n) as printed in the paper.
    """
    makers = {name: make for name, make in POLICIES.items() if name not in BASELINES}
    gaps: dict[str, list[float]] = {name: [] for name in makers}
    running: dict[str, list[float]] = {name: [] for name in makers}
    every_node: list[float] = []
    took_s: list[float] = []
    for seed in range(instances):
        jobs, nodes, now_s = _draw_instance(seed)
        began_s = time.perf_counter()
        best = optimum(jobs, nodes, now_s).value
        took_s.append(time.perf_counter() - began_s)
        for name, make in makers.items():
            gaps[name].append(_gap_pct(make(), jobs, nodes, now_s, best))
        best_4n = optimum(jobs, nodes, now_s, every_node=True).value
        every_node.append(_gap_pct(makers["least_cost, local search"](), jobs, nodes, now_s, best_4n))
        half_placed = (
            RandomizedGreedy(iterations=1).allocate(jobs[: len(jobs) // 2], nodes, now_s, rescale=True).placements
        )
        for job in jobs:
            job.held = half_placed.get(job.name)
        for name, make in makers.items():
            running[name].append(_gap_pct(make(), jobs, nodes, now_s, best))
        if progress is not None:
            progress(f"optimum {seed + 1} of {instances}")
    return {
        "instances": instances,
        "waiting": {name: _summarise_gaps(gaps_pct) for name, gaps_pct in gaps.items()},
        "running": {name: _summarise_gaps(gaps_pct) for name, gaps_pct in running.items()},
        "every_node_mean_pct": mean(every_node),
        "optimum_s_mean": mean(took_s),
    }


def _draw_instance(seed: int) -> tuple[list[ClusterJob], list[Node], float]:
    """Return jobs that have arrived but not started, their nodes, and the time."""
    arrivals, nodes = heterogeneous_workload(2 + seed % 2, 3 + seed % 4, MIXES[seed // 4 % 2], seed)
    jobs = [ClusterJob(one.name, one.arrives_s, one.work, one.speeds, one.deadline_s, one.weight) for one in arrivals]
    return jobs, nodes, arrivals[-1].arrives_s


def _gap_pct(policy: Policy, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, best: float) -> float:
    value = objective(policy.allocate(jobs, nodes, now_s, rescale=True).placements, jobs, nodes, now_s)
    return 100.0 * (value / best - 1.0)


def _summarise_gaps(gaps_pct: Sequence[float]) -> dict[str, float]:
    exact = sum(gap_pct < 1e-6 for gap_pct in gaps_pct)
    return {
        "mean_pct": mean(gaps_pct),
        "worst_pct": max(gaps_pct),
        "within_3_pct": 100.0 * sum(gap_pct <= 3.0 for gap_pct in gaps_pct) / len(gaps_pct),
        "exact_pct": 100.0 * exact / len(gaps_pct),
    }


def measure_decision(nodes: int = 100, waiting: int = 800, mix: Mix = "small") -> dict[str, float]:
    """Measure the duration of a decision in seconds while some jobs run and more jobs wait than can run."""
    arrivals, cluster = heterogeneous_workload(nodes, waiting, mix)
    jobs = [ClusterJob(one.name, one.arrives_s, one.work, one.speeds, one.deadline_s, one.weight) for one in arrivals]
    timed = TimedPolicy(POLICIES["least_cost"]())
    for now_s in (arrivals[len(arrivals) // 2].arrives_s, arrivals[-1].arrives_s):
        for _ in range(5):
            placements = timed.allocate(jobs, cluster, now_s, rescale=True).placements
        for job in jobs:
            job.held = placements.get(job.name)
    return {
        "nodes": nodes,
        "jobs": len(jobs),
        "decision_s_mean": mean(timed.decision_s),
        "decision_s_max": max(timed.decision_s),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format the rows as a table: savings in percent, then energy and tardiness apart, in euro."""
    lines = [
        "Percent lower than under FIFO / EDF / priorities, mean ± standard deviation over the workloads; costs in euro",
        f"{'policy':25} {'mix':5} {'nodes':>5} {'load':>4} {'EUR/h':>6} {'moves':>9}  {'cost, mean':>13}  "
        f"{'cost':>37}  {'energy':>34}  {'makespan':>34}  {'energy: FIFO, EDF, ps, ours':>28}  "
        f"{'tardiness: FIFO, EDF, ps, ours':>36}  {'ms':>6}",
    ]
    for row in rows:
        saved = (" / ".join(map(str, row[f"{one}_reduction_pct"].values())) for one in ("cost", "energy", "makespan"))
        cost, energy, makespan = saved
        energy_eur, tardiness_eur = (
            ", ".join(f"{row[figure][name].mean:.4g}" for name in (*BASELINES, "ours"))
            for figure in ("energy_eur", "tardiness_eur")
        )
        lines.append(
            f"{row['policy']:25} {row['mix']:5} {row['nodes']:5} {row['load']:4} {row['price_eur_per_h']:6g} "
            f"{'free' if row['free_moves'] else 'snapshots':>9}  {row['mean_cost_reduction_pct']!s:>13}  "
            f"{cost:>37}  {energy:>34}  {makespan:>34}  {energy_eur:>28}  {tardiness_eur:>36}  "
            f"{1000 * row['decision_s_mean']:6.1f}"
        )
    return "\n".join(lines)
