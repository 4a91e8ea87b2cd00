"""Compares the optimal and the greedy allocator of elastic jobs (section 5 of Hu et al. 2021, ModelArts).

The benchmark simulates two days of jobs under both allocators, on 70 to 190 nodes, with the paper's disturbances. It
also measures the optimal allocator with more jobs and nodes than in the paper. The paper's workload is not public, so
the jobs are drawn from its published statistics (:func:`paceline.simulate.cluster.generate.modelarts`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.optimize  # noqa: F401 - imported before the timed part

from benchmarks.allocators.timed import TimedPolicy
from paceline.allocate import DEVICE, ClusterJob, Greedy, Node, Policy, RollingHorizon, Speeds
from paceline.allocate.modelarts.horizon import HorizonProblem
from paceline.allocate.modelarts.solver import solve
from paceline.simulate.cluster import Friction, JobOutcome, Simulation, SimulationResult
from paceline.simulate.cluster.generate import modelarts_workload

PERIOD_S = 300.0
NODES = tuple(range(70, 191, 20))
SEEDS = (0, 1, 2)
QUICK_NODES, QUICK_SEEDS = (70, 110, 150), (0,)


@dataclass(frozen=True)
class Scenario:
    """A workload, and the cost of changing an allocation."""

    workload: Mapping[str, Any] = field(default_factory=dict)
    friction: Friction = field(default_factory=Friction)


SCENARIOS = {
    "baseline": Scenario(),
    "heterogeneous": Scenario({"all_jobs": True}),
    "eta_error": Scenario({"eta_error": 0.1}),
    "harsh": Scenario({"eta_error": 0.1, "bugs": 0.15, "cancelled": 0.10}),
    "scaling_delay": Scenario(friction=Friction(delay_s=15.0)),
}
# The paper does not specify which times the greedy allocator compares, or whether it halves one allocation or several.
GREEDY_VARIANTS: dict[str, Callable[[], Greedy]] = {
    "time so far, repeated": Greedy,
    "time so far, once": lambda: Greedy(repeat=False),
    "time left, repeated": lambda: Greedy(training_time="left"),
}
# The paper's planner, and a planner that leaves one node idle for jobs that arrive between two regular decisions.
PLANNERS: dict[str, Callable[[], RollingHorizon]] = {
    "as published": lambda: RollingHorizon(period_s=PERIOD_S),
    "one node spare": lambda: RollingHorizon(period_s=PERIOD_S, spare_nodes=1),
}


@dataclass(frozen=True)
class SimulatedWorkload:
    """Result of a simulated workload, the end time of each completed job, and the duration of each decision."""

    result: SimulationResult
    done_s: Sequence[float]
    decision_s: Sequence[float]


def simulate(scenario: Scenario, policy: Policy, nodes: int, seed: int) -> SimulatedWorkload:
    """Simulate one workload of a scenario on ``nodes`` nodes."""
    done_s: list[float] = []

    def record_completion(outcome: JobOutcome) -> None:
        if outcome.status == "done":
            done_s.append(outcome.departed_s)

    timed = TimedPolicy(policy, regular_only=True)
    jobs = modelarts_workload(seed, **scenario.workload)
    simulation = Simulation(
        jobs, [Node("pool", nodes)], timed, friction=scenario.friction, period_s=PERIOD_S, on_outcome=record_completion
    )
    return SimulatedWorkload(simulation.run(), done_s, timed.decision_s)


def extra_jobs_per_100(greedy_done_s: Sequence[float], milp_done_s: Sequence[float]) -> float:
    """Return how many more jobs the optimal allocator completes per 100 jobs that the greedy allocator completes.

    This number is the mean surplus in percent at the greedy allocator's 100th, 200th, 300th, ... completion. Arrivals
    limit completions, so the number is small if the greedy allocator keeps up with the arrivals, even if its jobs take
    longer.
    """
    milp = np.sort(milp_done_s)
    moments = np.sort(greedy_done_s)[99::100]
    if not len(moments):
        return float("nan")
    hundreds = 100.0 * np.arange(1, len(moments) + 1)
    return float(np.mean(100.0 * (np.searchsorted(milp, moments, side="right") / hundreds - 1.0)))


def compare(greedy: Sequence[SimulatedWorkload], milp: Sequence[SimulatedWorkload]) -> dict[str, Any]:
    """Return the figures of one row: means over the workloads of a scenario, for both allocators."""

    def mean(runs: Sequence[SimulatedWorkload], figure: str) -> float:
        return float(np.mean([getattr(one.result, figure) for one in runs]))

    took_s = np.concatenate([one.decision_s for one in milp])
    queue_s = {"greedy": mean(greedy, "mean_queue_s"), "milp": mean(milp, "mean_queue_s")}
    total_s = {"greedy": mean(greedy, "mean_total_s"), "milp": mean(milp, "mean_total_s")}
    return {
        "workloads": len(milp),
        "greedy_queue_s": queue_s["greedy"],
        "milp_queue_s": queue_s["milp"],
        "queue_reduction_pct": 100.0 * (1.0 - queue_s["milp"] / queue_s["greedy"]),
        "greedy_total_s": total_s["greedy"],
        "milp_total_s": total_s["milp"],
        "total_reduction_pct": 100.0 * (1.0 - total_s["milp"] / total_s["greedy"]),
        # Alternative count, from the mean total times: jobs completed while the greedy allocator completes 100.
        "extra_jobs_per_100_by_total": 100.0 * (total_s["greedy"] / total_s["milp"] - 1.0),
        "extra_jobs_per_100": float(
            np.mean([extra_jobs_per_100(a.done_s, b.done_s) for a, b in zip(greedy, milp, strict=True)])
        ),
        "greedy_done": mean(greedy, "done"),
        "milp_done": mean(milp, "done"),
        "greedy_changes": mean(greedy, "changes"),
        "milp_changes": mean(milp, "changes"),
        "decisions": len(took_s),
        "decision_s_mean": float(took_s.mean()),
        "decision_s_p95": float(np.percentile(took_s, 95)),
        "decision_s_max": float(took_s.max()),
    }


def run(
    quick: bool = False,
    progress: Callable[[str], None] | None = None,
    *,
    scenarios: Sequence[str] | None = None,
    nodes: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Simulate all scenarios on all pools; return a row per planner and, in the baseline, per greedy variant.

    Parameters
    ----------
    quick:
        Simulate only the baseline, three pools and one workload.
    progress:
        Called with the name of each finished simulation.
    scenarios, nodes, seeds:
        Override the values that ``quick`` selects.
    """
    rows = []
    for name in scenarios or (("baseline",) if quick else tuple(SCENARIOS)):
        scenario = SCENARIOS[name]
        variants = GREEDY_VARIANTS if name == "baseline" else dict(list(GREEDY_VARIANTS.items())[:1])
        for size in nodes or (QUICK_NODES if quick else NODES):
            greedy: dict[str, list[SimulatedWorkload]] = {variant: [] for variant in variants}
            milp: dict[str, list[SimulatedWorkload]] = {planner: [] for planner in PLANNERS}
            for seed in seeds or (QUICK_SEEDS if quick else SEEDS):
                for variant, make_greedy in variants.items():
                    greedy[variant].append(simulate(scenario, make_greedy(), size, seed))
                for planner, make_planner in PLANNERS.items():
                    milp[planner].append(simulate(scenario, make_planner(), size, seed))
                if progress is not None:
                    progress(f"{name}, {size} nodes, workload {seed}")
            rows += [
                {"scenario": name, "nodes": size, "greedy": variant, "milp": planner} | compare(greedy_runs, milp_runs)
                for variant, greedy_runs in greedy.items()
                for planner, milp_runs in milp.items()
            ]
    return rows


def measure_large_plans(jobs: int = 1000, nodes: int = 3000, workloads: int = 3) -> list[dict[str, Any]]:
    """Measure the seconds to plan many jobs, and the plan's gap to the proven bound, for each workload.

    The jobs are drawn from the baseline; a random share of the work of each job remains.
    """
    rows = []
    speeds = {DEVICE: Speeds.doubling_efficiency(16)}
    for seed in range(workloads):
        left = np.random.default_rng(seed).uniform(0.0, 1.0, jobs)
        drawn = modelarts_workload(seed, jobs)
        waiting = [ClusterJob(one.name, 0.0, one.work * share, speeds) for one, share in zip(drawn, left, strict=True)]
        policy = RollingHorizon(period_s=PERIOD_S)
        began_s = time.perf_counter()
        policy.allocate(waiting, [Node("pool", nodes)], 0.0, rescale=True)
        took_s = time.perf_counter() - began_s
        assert policy.last is not None
        problem = HorizonProblem.for_jobs(waiting, DEVICE, nodes, 0.0, 5, PERIOD_S)
        began_s = time.perf_counter()
        highs = solve(problem, "highs", gap=0.01)
        highs_s = time.perf_counter() - began_s
        rows.append(
            {
                "jobs": jobs,
                "nodes": nodes,
                "seed": seed,
                "decision_s": took_s,
                "gap_pct": 100.0 * policy.last.gap,
                "solver": policy.last.solver,
                "value": policy.last.value,
                "bound": policy.last.bound,
                "highs_s": highs_s,
                "highs_gap_pct": 100.0 * highs.gap,
                "highs_value": highs.value,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows as a table."""
    lines = [
        f"{'scenario':14} {'nodes':>5}  {'greedy':21} {'milp':15} {'queue, greedy / milp':>21} {'shorter':>8} "
        f"{'total':>8} {'more per 100':>13} {'by total':>9} {'decision':>9}"
    ]
    for row in rows:
        lines.append(
            f"{row['scenario']:14} {row['nodes']:5}  {row['greedy']:21} {row['milp']:15} "
            f"{row['greedy_queue_s']:9.0f} / {row['milp_queue_s']:5.0f} s {row['queue_reduction_pct']:10.0f} % "
            f"{row['total_reduction_pct']:6.0f} % {row['extra_jobs_per_100']:13.1f} "
            f"{row['extra_jobs_per_100_by_total']:9.1f} {1000 * row['decision_s_mean']:6.1f} ms"
        )
    return "\n".join(lines)
