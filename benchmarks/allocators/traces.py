"""Simulates published traces under every policy: deadlines met, completion times and simulation time."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.allocators.timed import TimedPolicy
from paceline.allocate import (
    Allocation,
    ClusterJob,
    Greedy,
    LeastCost,
    Node,
    OnTime,
    Policy,
    RollingHorizon,
    edf,
    fifo,
    most_on_time,
    sizes,
)
from paceline.simulate.cluster import Arrival, Friction, Simulation
from paceline.simulate.cluster.traces import read_throughputs, read_trace, resample

# Name, file and number of GPUs, as in ElasticFlow's evaluation.
TRACES = (
    ("195job", "elasticflow-195job.csv", 128),
    ("cluster10", "elasticflow-cluster10.csv", 256),
    ("philly", "elasticflow-philly.csv", 256),
    ("cluster01", "elasticflow-cluster01.csv", 512),
)
FULL_TRACE_JOBS = 69_351  # number of jobs in the full trace, from which cluster01 is taken
PERIOD_S = 300.0  # time between two regular decisions of periodic policies
PAUSE_S = 30.0  # cost of each start and each resize


class CountingPolicy(TimedPolicy):
    """A timed policy that also counts the jobs that ``OnTime`` plans on time, and sums the bounds of this count."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.planned = self.bound = 0

    def allocate(self, jobs: Sequence[ClusterJob], nodes: Sequence[Node], now_s: float, *, rescale: bool) -> Allocation:
        """Return the allocation of the wrapped policy, and count its jobs on time."""
        allocation = super().allocate(jobs, nodes, now_s, rescale=rescale)
        if isinstance(self.policy, OnTime):
            self.planned += sum(job.deadline_s is not None for job in jobs) - len(allocation.late)
            self.bound += most_on_time(jobs, nodes[0], now_s)
        return allocation


POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo, as requested": lambda: fifo(sizes.requested),
    "edf, as requested": lambda: edf(sizes.requested),
    "edf, fastest": lambda: edf(sizes.fastest),
    "edf, cheapest in time": edf,
    "greedy": Greedy,
    "milp": lambda: RollingHorizon(period_s=PERIOD_S),
    "least_cost": lambda: LeastCost(move_s=PAUSE_S),
    "on_time": lambda: OnTime(PAUSE_S),
    "on_time, keeps promises": lambda: OnTime(PAUSE_S, keep_promises=True),
}
PERIODIC = ("greedy", "milp")


def run(data: Path, quick: bool, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Simulate each trace under each policy; return a row for each pair of trace and policy."""
    tables = read_throughputs(data / "throughput" / "A100")
    rows = []
    for name, file, gpus in TRACES[:2] if quick else TRACES:
        arrivals = list(read_trace(data / "traces" / file, tables))
        possible = sum(_feasible_alone(one) for one in arrivals)
        for label, make in POLICIES.items():
            policy = CountingPolicy(make())
            progress(f"{name}, {label}")
            began_s = time.perf_counter()
            period_s = PERIOD_S if label in PERIODIC else None
            friction = Friction(pause_s=PAUSE_S)
            result = Simulation(arrivals, [Node("pool", gpus)], policy, friction=friction, period_s=period_s).run()
            rows.append(
                {
                    "trace": name,
                    "gpus": gpus,
                    "policy": label,
                    "deadlines_met_pct": round(result.deadlines_met_pct, 2),
                    "possible_alone_pct": round(100 * possible / len(arrivals), 2),
                    "mean_jct_s": round(result.mean_total_s, 1),
                    "changes": result.changes,
                    "sim_s": round(time.perf_counter() - began_s, 2),
                    "decision_s_mean": round(sum(policy.decision_s) / len(policy.decision_s), 6),
                    "planned_of_bound_pct": round(100 * policy.planned / policy.bound, 2) if policy.bound else None,
                }
            )
    return rows


def _feasible_alone(one: Arrival) -> bool:
    """Return whether a job would be on time if it ran alone on its fastest number of GPUs."""
    (speeds,) = one.speeds.values()
    assert one.deadline_s is not None
    return one.arrives_s + one.work / speeds.at(speeds.fastest) <= one.deadline_s


def measure_simulator(data: Path, jobs: int = FULL_TRACE_JOBS) -> dict[str, Any]:
    """Measure the simulator's time and memory for ``jobs`` jobs like those of cluster01, under EDF."""
    trace = list(
        read_trace(data / "traces" / "elasticflow-cluster01.csv", read_throughputs(data / "throughput" / "A100"))
    )
    figures: dict[str, Any] = {}
    for number in (len(trace), jobs // 10, jobs):
        began_s = time.perf_counter()
        arrivals = trace if number == len(trace) else resample(trace, number, seed=0)
        result = Simulation(arrivals, [Node("pool", 512)], edf(), friction=Friction(pause_s=PAUSE_S)).run()
        figures[f"{number} jobs"] = {
            "sim_s": round(time.perf_counter() - began_s, 2),
            "done": result.done,
            "most_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
    return figures


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format the rows as a table."""
    lines = [f"{'trace':10} {'GPUs':>4}  {'policy':25} {'on time':>8} {'of possible':>11} {'mean JCT':>10} {'took':>7}"]
    for row in rows:
        lines.append(
            f"{row['trace']:10} {row['gpus']:4}  {row['policy']:25} {row['deadlines_met_pct']:6.1f} % "
            f"{row['possible_alone_pct']:9.1f} % {row['mean_jct_s'] / 3600:8.2f} h {row['sim_s']:5.1f} s"
        )
    return "\n".join(lines)
