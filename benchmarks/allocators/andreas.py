"""Compares Randomized Greedy with FIFO, EDF, priorities and the optimum (section V-B of ANDREAS).

The simulated clusters have 10 to 100 nodes with two kinds of GPUs, and ten jobs per node. The baselines never
change the allocation of a running job. Unlike in the paper's simulator, a stopped or moved job restarts from its last
snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

from benchmarks.allocators.timed import TimedPolicy
from paceline.allocate import ClusterJob, Node, Policy, RandomizedGreedy, edf, fifo, priority
from paceline.allocate.andreas.objective import objective
from paceline.allocate.andreas.optimum import optimum
from paceline.simulate.cluster import Friction, Simulation, SimulationResult
from paceline.simulate.cluster.heterogeneous import PUE, heterogeneous_workload

Mix = Literal["small", "large"]
MIXES: tuple[Mix, ...] = ("small", "large")
NODES, QUICK_NODES = tuple(range(10, 101, 10)), (10, 20)
SEED = 7
SNAPSHOT_S = 60.0  # time between two snapshots of a job, about the length of an epoch
BASELINES: dict[str, Callable[[], Policy]] = {"fifo": fifo, "edf": edf, "ps": priority}
SETTINGS: dict[str, Callable[[], RandomizedGreedy]] = {
    "default": lambda: RandomizedGreedy(move_s=SNAPSHOT_S / 2),
    "local_search": lambda: RandomizedGreedy(move_s=SNAPSHOT_S / 2, local_search=True),
    "published": lambda: RandomizedGreedy(improve=False),
}
PUBLISHED_MAX_NODES = 30  # enough nodes to show the cost of moves, which are free in the paper


@dataclass(frozen=True)
class SimulatedWorkload:
    """Result of a simulated workload, and the duration of each decision."""

    result: SimulationResult
    decision_s: Sequence[float]


def simulate(policy: Policy, nodes: int, mix: Mix, seed: int = SEED, *, free_moves: bool = False) -> SimulatedWorkload:
    """Simulate a workload under a policy that decides whenever a job arrives or ends."""
    arrivals, cluster = heterogeneous_workload(nodes, mix=mix, seed=seed)
    timed = TimedPolicy(policy)
    friction = Friction(snapshot_every_s=None if free_moves else SNAPSHOT_S)
    return SimulatedWorkload(Simulation(arrivals, cluster, timed, friction=friction, pue=PUE).run(), timed.decision_s)


def run(quick: bool = False, progress: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Simulate all clusters under all policies; return a row per cluster with Randomized Greedy's savings in percent.

    Parameters
    ----------
    quick:
        Simulate only 10 and 20 nodes.
    progress:
        Called with the name of each finished simulation.
    """
    rows = []
    for mix in MIXES:
        for nodes in QUICK_NODES if quick else NODES:
            baselines = {name: simulate(make(), nodes, mix) for name, make in BASELINES.items()}
            settings = {
                name: simulate(make(), nodes, mix)
                for name, make in SETTINGS.items()
                if name != "published" or nodes <= PUBLISHED_MAX_NODES
            }
            if nodes <= PUBLISHED_MAX_NODES:
                settings["published, moves are free"] = simulate(SETTINGS["published"](), nodes, mix, free_moves=True)
            rows.append(
                {"nodes": nodes, "mix": mix}
                | compare(settings["default"], baselines)
                | {"settings": {name: compare(one, baselines) for name, one in settings.items() if name != "default"}}
                | {"baselines": {name: _result_figures(one) for name, one in baselines.items()}}
            )
            if progress is not None:
                progress(f"{nodes} nodes, {mix}")
    return rows


def compare(rg: SimulatedWorkload, baselines: dict[str, SimulatedWorkload]) -> dict[str, Any]:
    """Return the reductions of cost, energy and makespan against each baseline, in percent."""
    figures = {"cost": "total_cost", "energy": "energy_cost", "makespan": "ended_s"}
    return {
        f"{name}_reduction_pct": {
            baseline: 100.0 * (1.0 - getattr(rg.result, figure) / getattr(one.result, figure))
            for baseline, one in baselines.items()
        }
        for name, figure in figures.items()
    } | _result_figures(rg)


def _result_figures(one: SimulatedWorkload) -> dict[str, float]:
    return {
        "tardiness_cost": one.result.tardiness_cost,
        "energy_cost": one.result.energy_cost,
        "ended_s": one.result.ended_s,
        "deadlines_met_pct": one.result.deadlines_met_pct,
        "changes": one.result.changes,
        "decision_s_mean": mean(one.decision_s),
        "decision_s_max": max(one.decision_s),
    }


def optimality_gaps(instances: int = 100, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Return the gap between Randomized Greedy's f_OBJ and the optimum, in percent, for 3 to 6 jobs on 2 or 3 nodes.

    The top-level figures are for local search, before any job runs. ``settings`` has the figures of the other settings.
    ``running`` has the cases in which half of the jobs already run; the optimum may move these jobs at no cost.
    ``every_node_mean_pct`` is the gap to the optimum under constraint (4n) as printed in the paper.
    """
    makers = dict(SETTINGS)
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
        every_node.append(
            _gap_pct(makers["local_search"](), jobs, nodes, now_s, optimum(jobs, nodes, now_s, every_node=True).value)
        )
        half_placed = (
            RandomizedGreedy(iterations=1).allocate(jobs[: len(jobs) // 2], nodes, now_s, rescale=True).placements
        )
        for job in jobs:
            job.held = half_placed.get(job.name)
        for name, make in makers.items():
            running[name].append(_gap_pct(make(), jobs, nodes, now_s, best))
        if progress is not None:
            progress(f"optimum {seed + 1} of {instances}")
    summed = {name: _summarise_gaps(gaps_pct) for name, gaps_pct in gaps.items()}
    return {
        "instances": instances,
        "setting": "local_search",
        **summed.pop("local_search"),
        "settings": summed,
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
    arrivals, cluster = heterogeneous_workload(nodes, waiting, mix, SEED)
    jobs = [ClusterJob(one.name, one.arrives_s, one.work, one.speeds, one.deadline_s, one.weight) for one in arrivals]
    timed = TimedPolicy(SETTINGS["default"]())
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
    """Format the rows as a table of the reductions and the decision times."""
    lines = [
        "Randomized Greedy: percent lower than under FIFO / EDF / priorities",
        f"{'mix':6} {'nodes':>5}  {'total cost':>20}  {'energy':>20}  {'makespan':>20}  {'ms per decision (max)':>20}",
    ]
    for mix in MIXES:
        chosen = [row for row in rows if row["mix"] == mix]
        for row in chosen:
            lines.append(f"{mix:6} {row['nodes']:5}  {_row_cells(row)}")
        if chosen:
            lines.append(f"{mix:6} {'mean':>5}  {_row_cells(_mean_row(chosen))}")
    for setting in ("local_search", "published", "published, moves are free"):
        clusters = [row["settings"][setting] for row in rows if setting in row["settings"]]
        if clusters:
            lines.append(f"{setting}: mean over {len(clusters)} clusters")
            lines.append(f"{'':13} {_row_cells(_mean_row(clusters))}")
    return "\n".join(lines)


_REDUCTIONS = ("cost_reduction_pct", "energy_reduction_pct", "makespan_reduction_pct")


def _mean_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {figure: {name: mean(row[figure][name] for row in rows) for name in BASELINES} for figure in _REDUCTIONS} | {
        "decision_s_mean": mean(row["decision_s_mean"] for row in rows),
        "decision_s_max": max(row["decision_s_max"] for row in rows),
    }


def _row_cells(row: dict[str, Any]) -> str:
    saved = (" / ".join(f"{row[figure][name]:.1f}" for name in BASELINES) for figure in _REDUCTIONS)
    took = f"{1000 * row['decision_s_mean']:.1f} ({1000 * row['decision_s_max']:.1f})"
    return "  ".join(f"{cell:>20}" for cell in (*saved, took))
