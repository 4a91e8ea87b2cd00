"""Compares the optimal and the greedy allocator of elastic jobs (section 5 of Hu et al. 2021, ModelArts).

The benchmark simulates two days of jobs under both allocators, on 70 to 190 nodes, with the paper's disturbances. A
second table varies what the paper leaves open. The benchmark also measures the optimal allocator with more jobs and
nodes than in the paper. The paper's workload is not public, so the jobs are drawn from its published statistics
(:func:`paceline.simulate.cluster.generate.modelarts_workload`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.optimize  # noqa: F401 - imported before the timed part

from benchmarks.allocators.parallel import Spread, run_all
from benchmarks.allocators.timed import TimedPolicy
from paceline.allocate import DEVICE, ClusterJob, Greedy, Node, Policy, RollingHorizon, Speeds
from paceline.allocate.modelarts.horizon import HorizonProblem
from paceline.allocate.modelarts.solver import solve
from paceline.simulate.cluster import Friction, JobOutcome, Simulation, SimulationResult
from paceline.simulate.cluster.generate import modelarts_workload

PERIOD_S = 300.0
NODES, PEAK_NODES, OPEN_NODES = tuple(range(70, 191, 20)), (90, 110, 130, 150), (110, 150)
SEEDS = tuple(range(10))
QUICK_NODES, QUICK_SEEDS = (110, 150), (0,)


@dataclass(frozen=True)
class Scenario:
    """A workload, and the cost of changing an allocation."""

    workload: Mapping[str, Any] = field(default_factory=dict)
    friction: Friction = field(default_factory=Friction)


SCENARIOS = {
    "baseline": Scenario(),
    "all jobs": Scenario({"all_jobs": True}),
    "eta error": Scenario({"eta_error": 0.1}),
    "harsh": Scenario({"eta_error": 0.1, "bugs": 0.15, "cancelled": 0.10}),
    "delay": Scenario(friction=Friction(delay_s=15.0)),
    "baseline, burstiness 0.5": Scenario({"burstiness": 0.5}),
    "baseline, burstiness 1.0": Scenario({"burstiness": 1.0}),
    "all jobs, burstiness 1.0": Scenario({"burstiness": 1.0, "all_jobs": True}),
    "baseline, up to 32 nodes": Scenario({"most_nodes": 32}),
}
# The paper's rule 3 halves one allocation for the job at the head of the queue; only rules 1 and 2 are "repeated".
GREEDY = "one halving, time so far"
POLICIES: dict[str, Callable[[], Policy]] = {
    GREEDY: lambda: Greedy(repeat=False),
    "repeated halving": Greedy,
    "one halving, time left": lambda: Greedy(repeat=False, training_time="left"),
    "as published": lambda: RollingHorizon(period_s=PERIOD_S),
    # Paceline's addition: one node stays idle for jobs that arrive between two regular decisions.
    "one node spare": lambda: RollingHorizon(period_s=PERIOD_S, spare_nodes=1),
}


@dataclass(frozen=True)
class Row:
    """A row of a table: a scenario on a number of nodes, under two allocators."""

    scenario: str
    nodes: int
    greedy: str = GREEDY
    milp: str = "as published"


def paper_rows() -> list[Row]:
    """Return the rows of figures 9 to 15: Poisson arrivals and one halving, the nearest to the paper's figures."""
    rows = [Row("baseline", size) for size in NODES]
    rows += [Row(scenario, size) for scenario in ("all jobs", "harsh") for size in PEAK_NODES]
    rows += [Row(scenario, size) for scenario in ("eta error", "delay") for size in OPEN_NODES]
    return rows + [Row("baseline", size, milp="one node spare") for size in OPEN_NODES]


def open_rows() -> list[Row]:
    """Return the rows that vary what the paper leaves open, one choice at a time."""
    rows = [Row(f"baseline, burstiness {burstiness}", size) for burstiness in (0.5, 1.0) for size in OPEN_NODES]
    rows += [Row("all jobs, burstiness 1.0", size) for size in OPEN_NODES]
    rows += [Row("baseline, up to 32 nodes", size) for size in OPEN_NODES[:1]]
    for rule in ("repeated halving", "one halving, time left"):
        rows += [Row(scenario, size, rule) for scenario in ("baseline", "all jobs") for size in OPEN_NODES]
    return rows + [Row("baseline, burstiness 1.0", size, "repeated halving") for size in OPEN_NODES]


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


def _simulate_task(task: tuple[str, str, int, int]) -> SimulatedWorkload:
    scenario, policy, nodes, seed = task
    return simulate(SCENARIOS[scenario], POLICIES[policy](), nodes, seed)


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
    """Return the figures of one row: mean and standard deviation over the workloads, for both allocators."""

    def over_seeds(figure: Callable[[SimulatedWorkload, SimulatedWorkload], float]) -> Spread:
        return Spread.of([figure(one, other) for one, other in zip(greedy, milp, strict=True)])

    took_s = np.concatenate([one.decision_s for one in milp])
    return {
        "workloads": len(milp),
        "greedy_queue_s": over_seeds(lambda g, m: g.result.mean_queue_s),
        "milp_queue_s": over_seeds(lambda g, m: m.result.mean_queue_s),
        "queue_reduction_pct": over_seeds(lambda g, m: 100 * (1 - m.result.mean_queue_s / g.result.mean_queue_s)),
        "total_reduction_pct": over_seeds(lambda g, m: 100 * (1 - m.result.mean_total_s / g.result.mean_total_s)),
        # From the mean total times: jobs that the optimal allocator completes while the greedy one completes 100.
        "extra_jobs_per_100_by_total": over_seeds(
            lambda g, m: 100 * (g.result.mean_total_s / m.result.mean_total_s - 1)
        ),
        "extra_jobs_per_100": over_seeds(lambda g, m: extra_jobs_per_100(g.done_s, m.done_s)),
        "greedy_changes": over_seeds(lambda g, m: g.result.changes),
        "milp_changes": over_seeds(lambda g, m: m.result.changes),
        "decisions": len(took_s),
        "decision_s_mean": float(took_s.mean()),
        "decision_s_p95": float(np.percentile(took_s, 95)),
        "decision_s_max": float(took_s.max()),
    }


def run(quick: bool = False, progress: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Simulate all rows of both tables, ten workloads each, and return their figures.

    Parameters
    ----------
    quick:
        Simulate only the baseline, two pools and one workload.
    progress:
        Called after each finished simulation.
    """
    seeds = QUICK_SEEDS if quick else SEEDS
    rows = [Row("baseline", size) for size in QUICK_NODES] if quick else paper_rows() + open_rows()
    tasks = [
        (row.scenario, policy, row.nodes, seed) for row in rows for policy in (row.greedy, row.milp) for seed in seeds
    ]
    simulated = run_all(_simulate_task, list(dict.fromkeys(tasks)), progress)

    def of(row: Row, policy: str) -> list[SimulatedWorkload]:
        return [simulated[row.scenario, policy, row.nodes, seed] for seed in seeds]

    return [vars(row) | compare(of(row, row.greedy), of(row, row.milp)) for row in rows]


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
        "Mean ± standard deviation over the workloads",
        f"{'scenario':25} {'nodes':>5}  {'greedy':24} {'milp':15} {'queue: greedy, milp (s)':>23} {'shorter, %':>12} "
        f"{'total, %':>12} {'more per 100':>12} {'counted':>10} {'ms':>5}",
    ]
    for row in rows:
        queue = f"{row['greedy_queue_s'].mean:.0f}, {row['milp_queue_s'].mean:.0f}"
        lines.append(
            f"{row['scenario']:25} {row['nodes']:5}  {row['greedy']:24} {row['milp']:15} {queue:>23} "
            f"{row['queue_reduction_pct']!s:>12} {row['total_reduction_pct']!s:>12} "
            f"{row['extra_jobs_per_100_by_total']!s:>12} {row['extra_jobs_per_100']!s:>10} "
            f"{1000 * row['decision_s_mean']:5.1f}"
        )
    return "\n".join(lines)
