"""Randomized Greedy against FIFO, EDF and priorities, and against the optimum: section V-B of ANDREAS.

Clusters of 10 to 100 nodes with two kinds of GPUs, ten jobs for each node. Baselines never change the allocation of
a running job. Unlike in the paper's simulator, a job that is stopped or moved restarts from its last snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

from benchmarks.allocators.timed import Timed
from paceline.allocate import ClusterJob, Node, Policy, RandomizedGreedy, edf, fifo, priority
from paceline.allocate.andreas.objective import objective
from paceline.allocate.andreas.optimum import optimum
from paceline.simulate.cluster import Friction, Simulation, SimulationResult
from paceline.simulate.cluster.heterogeneous import PUE, heterogeneous

Mix = Literal["small", "large"]
MIXES: tuple[Mix, ...] = ("small", "large")
NODES, QUICK_NODES = tuple(range(10, 101, 10)), (10, 20)
SEED = 7
SNAPSHOT_S = 60.0  # about an epoch
BASELINES: dict[str, Callable[[], Policy]] = {"fifo": fifo, "edf": edf, "ps": priority}
SETTINGS: dict[str, Callable[[], RandomizedGreedy]] = {
    "default": lambda: RandomizedGreedy(move_s=SNAPSHOT_S / 2),
    "local_search": lambda: RandomizedGreedy(move_s=SNAPSHOT_S / 2, local_search=True),
    "published": lambda: RandomizedGreedy(improve=False),
}
PUBLISHED_UP_TO = 30  # nodes: enough to show the cost of moves, which are free in the paper


@dataclass(frozen=True)
class Simulated:
    """Result of a simulated workload, and the seconds of each decision."""

    result: SimulationResult
    took_s: Sequence[float]


def simulate(policy: Policy, nodes: int, mix: Mix, seed: int = SEED, *, free_moves: bool = False) -> Simulated:
    """Simulate a workload under a policy, which decides whenever a job arrives or ends."""
    arrivals, cluster = heterogeneous(nodes, mix=mix, seed=seed)
    timed = Timed(policy)
    friction = Friction(snapshot_every_s=None if free_moves else SNAPSHOT_S)
    return Simulated(Simulation(arrivals, cluster, timed, friction=friction, pue=PUE).run(), timed.took_s)


def run(quick: bool = False, progress: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Simulate all clusters under all policies; return a row per cluster with Randomized Greedy's savings in percent.

    Parameters
    ----------
    quick:
        Only 10 and 20 nodes.
    progress:
        Called with the name of each finished simulation.
    """
    rows = []
    for mix in MIXES:
        for nodes in QUICK_NODES if quick else NODES:
            baselines = {name: simulate(made(), nodes, mix) for name, made in BASELINES.items()}
            settings = {
                name: simulate(made(), nodes, mix)
                for name, made in SETTINGS.items()
                if name != "published" or nodes <= PUBLISHED_UP_TO
            }
            if nodes <= PUBLISHED_UP_TO:
                settings["published, moves are free"] = simulate(SETTINGS["published"](), nodes, mix, free_moves=True)
            rows.append(
                {"nodes": nodes, "mix": mix}
                | compare(settings["default"], baselines)
                | {"settings": {name: compare(one, baselines) for name, one in settings.items() if name != "default"}}
                | {"baselines": {name: _figures(one) for name, one in baselines.items()}}
            )
            if progress is not None:
                progress(f"{nodes} nodes, {mix}")
    return rows


def compare(rg: Simulated, baselines: dict[str, Simulated]) -> dict[str, Any]:
    """Return the reductions of cost, energy and makespan against each baseline, in percent."""
    figures = {"cost": "total_cost", "energy": "energy_cost", "makespan": "ended_s"}
    return {
        f"{name}_reduction_pct": {
            baseline: 100.0 * (1.0 - getattr(rg.result, figure) / getattr(one.result, figure))
            for baseline, one in baselines.items()
        }
        for name, figure in figures.items()
    } | _figures(rg)


def _figures(one: Simulated) -> dict[str, float]:
    return {
        "tardiness_cost": one.result.tardiness_cost,
        "energy_cost": one.result.energy_cost,
        "ended_s": one.result.ended_s,
        "deadlines_met_pct": one.result.deadlines_met_pct,
        "changes": one.result.changes,
        "decision_s_mean": mean(one.took_s),
        "decision_s_max": max(one.took_s),
    }


def gap(instances: int = 100, progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Return how far f_OBJ of Randomized Greedy is above the optimum, in percent: 3 to 6 jobs on 2 or 3 nodes.

    The top-level figures are those with local search, when no job runs yet. ``settings`` has the other settings, and
    ``running`` the cases in which half of the jobs run already; the optimum may move them at no cost.
    ``every_node_mean_pct`` is the gap to the optimum with constraint (4n) as printed.
    """
    makes = dict(SETTINGS)
    gaps: dict[str, list[float]] = {name: [] for name in makes}
    running: dict[str, list[float]] = {name: [] for name in makes}
    every_node: list[float] = []
    took_s: list[float] = []
    for seed in range(instances):
        jobs, nodes, now_s = _instance(seed)
        began_s = time.perf_counter()
        best = optimum(jobs, nodes, now_s).value
        took_s.append(time.perf_counter() - began_s)
        for name, made in makes.items():
            gaps[name].append(_above_pct(made(), jobs, nodes, now_s, best))
        every_node.append(
            _above_pct(makes["local_search"](), jobs, nodes, now_s, optimum(jobs, nodes, now_s, every_node=True).value)
        )
        begun = RandomizedGreedy(iterations=1).allocate(jobs[: len(jobs) // 2], nodes, now_s, rescale=True).placements
        for job in jobs:
            job.held = begun.get(job.name)
        for name, made in makes.items():
            running[name].append(_above_pct(made(), jobs, nodes, now_s, best))
        if progress is not None:
            progress(f"optimum {seed + 1} of {instances}")
    summed = {name: _summary(each) for name, each in gaps.items()}
    return {
        "instances": instances,
        "setting": "local_search",
        **summed.pop("local_search"),
        "settings": summed,
        "running": {name: _summary(each) for name, each in running.items()},
        "every_node_mean_pct": mean(every_node),
        "optimum_s_mean": mean(took_s),
    }


def _instance(seed: int) -> tuple[list[ClusterJob], list[Node], float]:
    """Return jobs that have arrived, none of them started, with their nodes and the time."""
    arrivals, nodes = heterogeneous(2 + seed % 2, 3 + seed % 4, MIXES[seed // 4 % 2], seed)
    jobs = [ClusterJob(one.name, one.arrives_s, one.work, one.speeds, one.deadline_s, one.weight) for one in arrivals]
    return jobs, nodes, arrivals[-1].arrives_s


def _above_pct(policy: Policy, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, best: float) -> float:
    found = objective(policy.allocate(jobs, nodes, now_s, rescale=True).placements, jobs, nodes, now_s)
    return 100.0 * (found / best - 1.0)


def _summary(gaps_pct: Sequence[float]) -> dict[str, float]:
    exact = sum(each < 1e-6 for each in gaps_pct)
    return {
        "mean_pct": mean(gaps_pct),
        "worst_pct": max(gaps_pct),
        "within_3_pct": 100.0 * sum(each <= 3.0 for each in gaps_pct) / len(gaps_pct),
        "exact_pct": 100.0 * exact / len(gaps_pct),
    }


def decision(nodes: int = 100, waiting: int = 800, mix: Mix = "small") -> dict[str, float]:
    """Measure the seconds of one decision while more jobs wait than can run and some run already."""
    arrivals, cluster = heterogeneous(nodes, waiting, mix, SEED)
    jobs = [ClusterJob(one.name, one.arrives_s, one.work, one.speeds, one.deadline_s, one.weight) for one in arrivals]
    timed = Timed(SETTINGS["default"]())
    for now_s in (arrivals[len(arrivals) // 2].arrives_s, arrivals[-1].arrives_s):
        for _ in range(5):
            placements = timed.allocate(jobs, cluster, now_s, rescale=True).placements
        for job in jobs:
            job.held = placements.get(job.name)
    return {
        "nodes": nodes,
        "jobs": len(jobs),
        "decision_s_mean": mean(timed.took_s),
        "decision_s_max": max(timed.took_s),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format the rows as a table of the reductions and the decision times."""
    lines = [
        "Randomized Greedy: percent lower than under FIFO / EDF / priorities",
        f"{'mix':6} {'nodes':>5}  {'total cost':>20}  {'energy':>20}  {'makespan':>20}  {'ms a decision (max)':>20}",
    ]
    for mix in MIXES:
        chosen = [row for row in rows if row["mix"] == mix]
        for row in chosen:
            lines.append(f"{mix:6} {row['nodes']:5}  {_cells(row)}")
        if chosen:
            lines.append(f"{mix:6} {'mean':>5}  {_cells(_means(chosen))}")
    for setting in ("local_search", "published", "published, moves are free"):
        others = [row["settings"][setting] for row in rows if setting in row["settings"]]
        if others:
            lines.append(f"{setting}: mean over {len(others)} clusters")
            lines.append(f"{'':13} {_cells(_means(others))}")
    return "\n".join(lines)


_SAVED = ("cost_reduction_pct", "energy_reduction_pct", "makespan_reduction_pct")


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {figure: {name: mean(row[figure][name] for row in rows) for name in BASELINES} for figure in _SAVED} | {
        "decision_s_mean": mean(row["decision_s_mean"] for row in rows),
        "decision_s_max": max(row["decision_s_max"] for row in rows),
    }


def _cells(row: dict[str, Any]) -> str:
    saved = (" / ".join(f"{row[figure][name]:.1f}" for name in BASELINES) for figure in _SAVED)
    took = f"{1000 * row['decision_s_mean']:.1f} ({1000 * row['decision_s_max']:.1f})"
    return "  ".join(f"{cell:>20}" for cell in (*saved, took))
