"""Simulates published traces under every policy: deadlines met, promises kept, completion and simulation times."""

from __future__ import annotations

import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.allocators.learned_speeds import LearnedSpeeds
from benchmarks.allocators.timed import TimedPolicy
from paceline.allocate import (
    Allocation,
    ClusterJob,
    ElasticFlow,
    Greedy,
    LeastCost,
    Node,
    OnTime,
    Policy,
    RollingHorizon,
    Speeds,
    edf,
    most_on_time,
    sizes,
)
from paceline.simulate.cluster import Arrival, ElasticFlowOverhead, Friction, Simulation
from paceline.simulate.cluster.traces import read_throughputs, read_trace, resample

# Name, file and number of GPUs, as in ElasticFlow's evaluation.
TRACES = (
    ("195job", "elasticflow-195job.csv", 128),
    ("cluster10", "elasticflow-cluster10.csv", 256),
    ("philly", "elasticflow-philly.csv", 256),
    ("cluster01", "elasticflow-cluster01.csv", 512),
)
POLLUX = tuple((f"pollux-{number}", f"pollux-workload-{number}.csv", 64) for number in range(1, 5))
# Per cent of all jobs on time in ElasticFlow's own simulator: by its job log, by its own counter, and in 60 s slots.
PUBLISHED = {"195job": "68.7, 74.9, 86.7", "cluster10": "95.8", "philly": "91.0", "cluster01": "78.8"}
# The same by the figures in the plotting script of ElasticFlow's artifact (figure 8b), on as many GPUs as here.
PLOTTED = {"cluster10": "98.1", "philly": "87.0", "cluster01": "78.8"}
FULL_TRACE_JOBS = 69_351  # number of jobs in the full trace, from which cluster01 is taken
PERIOD_S = 300.0  # time between two regular decisions, as in ``paceline simulate``
DRAWN = "drawn deadlines"  # setting of the Pollux traces
PAUSE_S = 30.0  # cost of each start and each resize
SEEDS = range(3)
CONFIDENCES = (0.5, 0.8, 0.95)  # of promises, in addition to the default
DEADLINE_SEEDS = range(30)  # many, because the draws differ more than the policies
WORK_ERROR = 0.3
TIGHTNESS = (0.5, 1.5)  # range of drawn deadlines, relative to the duration on the requested GPUs (ElasticFlow)


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


# Constructors of the policies. The argument is the pause of a change, for policies that plan for it.
POLICIES: Mapping[str, Callable[[float], Policy]] = {
    "edf, as requested": lambda pause_s: edf(sizes.requested),
    "edf, fastest": lambda pause_s: edf(sizes.fastest),
    "edf, cheapest in time": lambda pause_s: edf(),
    "greedy": lambda pause_s: Greedy(),
    "milp": lambda pause_s: RollingHorizon(period_s=PERIOD_S),
    "least_cost": lambda pause_s: LeastCost(move_s=pause_s),
    "elasticflow": lambda pause_s: ElasticFlow(change_s=pause_s),
    "on_time_promises": lambda pause_s: OnTime(pause_s, keep_promises=True),
    "on_time": OnTime,
}
EVENTS_ONLY = ("edf, as requested", "edf, fastest", "edf, cheapest in time", "least_cost")
COMPARED = ("edf, cheapest in time", "elasticflow", "on_time_promises", "on_time")


def run(data: Path, quick: bool, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Simulate each trace under each policy and setting; return a row for each combination."""
    rows, usual = [], Friction(pause_s=PAUSE_S)
    for name, arrivals, gpus in _traces(data, TRACES[:2] if quick else TRACES, "A100"):
        for label, make in POLICIES.items():
            progress(f"{name}, {label}")
            rows.append(
                _simulate(name, gpus, "pause of 30 s", label, [arrivals], lambda make=make: make(PAUSE_S), usual)
            )
        for setting, label, workloads, policy, friction in _variants(arrivals):
            progress(f"{name}, {setting}, {label}")
            rows.append(_simulate(name, gpus, setting, label, workloads, policy, friction))
    for name, arrivals, gpus in _traces(data, POLLUX[:1] if quick else POLLUX, "T4"):
        drawn = [draw_deadlines(arrivals, seed) for seed in DEADLINE_SEEDS]
        for label in COMPARED:
            progress(f"{name}, {label}")
            rows.append(_simulate(name, gpus, DRAWN, label, drawn, lambda make=POLICIES[label]: make(PAUSE_S), usual))
    return rows


def _traces(data: Path, traces: Sequence[tuple[str, str, int]], gpu: str) -> Iterator[tuple[str, list[Arrival], int]]:
    tables = read_throughputs(data / "throughput" / gpu)
    for name, file, gpus in traces:
        yield name, list(read_trace(data / "traces" / file, tables)), gpus


def _variants(
    arrivals: list[Arrival],
) -> Iterator[tuple[str, str, list[list[Arrival]], Callable[[], Policy], Friction]]:
    """Yield the settings of the extra rows: name, policy, workloads, constructor of the policy, and friction."""
    usual = Friction(pause_s=PAUSE_S)
    inexact = [with_work_errors(arrivals, seed) for seed in SEEDS]
    for label in COMPARED:
        make = POLICIES[label]
        yield "pause of 60 s", label, [arrivals], lambda make=make: make(60.0), Friction(pause_s=60.0)
        yield "work off by 30 %", label, inexact, lambda make=make: make(PAUSE_S), usual
        yield "... and speeds learned", label, inexact, lambda make=make: LearnedSpeeds(make(PAUSE_S)), usual
        # A change costs 2 or 7 s, and 2 s more for one device and for each doubling: about 10 s. It stops all jobs, so
        # that on_time meets more deadlines if it plans 30 s; elasticflow does not.
        overhead, planned_s = Friction(rounds=ElasticFlowOverhead()), 10.0 if label == "elasticflow" else PAUSE_S
        if label == "on_time_promises":
            for confidence in CONFIDENCES:
                sure = partial(OnTime, PAUSE_S, keep_promises=True, confidence=confidence)
                yield f"work off, {confidence:g} sure", label, inexact, sure, usual
                yield "... and speeds learned", label, inexact, lambda sure=sure: LearnedSpeeds(sure()), usual
        yield (
            "ElasticFlow's overhead",
            label,
            [arrivals],
            lambda make=make, planned_s=planned_s: make(planned_s),
            overhead,
        )
    yield "slots of 240 s", "elasticflow", [arrivals], lambda: ElasticFlow(slot_s=240.0, change_s=PAUSE_S), usual
    yield "pause not planned", "elasticflow", [arrivals], lambda: ElasticFlow(change_s=0.0), usual


def _simulate(
    trace: str,
    gpus: int,
    setting: str,
    label: str,
    workloads: Sequence[Sequence[Arrival]],
    make: Callable[[], Policy],
    friction: Friction,
) -> dict[str, Any]:
    """Return the row of a policy: means over the workloads, and the range of the deadlines met."""
    results, decision_s, planned, bound = [], [], 0, 0
    began_s = time.process_time()
    for workload in workloads:
        policy = CountingPolicy(make())
        pool = [Node("pool", gpus)]
        period_s = None if label in EVENTS_ONLY else PERIOD_S
        results.append(Simulation(workload, pool, policy, friction=friction, period_s=period_s).run())
        decision_s += policy.decision_s
        planned, bound = planned + policy.planned, bound + policy.bound
    met = [result.deadlines_met_pct for result in results]
    number = len(results)
    return {
        "trace": trace,
        "gpus": gpus,
        "setting": setting,
        "policy": label,
        "workloads": number,
        "deadlines_met_pct": round(sum(met) / number, 2),
        "deadlines_met_range_pct": [round(min(met), 2), round(max(met), 2)],
        "deadlines_met_each_pct": [round(one, 2) for one in met],
        "rejected": sum(result.rejected for result in results) / number,
        "accepted_late": sum(result.accepted_late for result in results) / number,
        "promises_kept_pct": round(sum(result.promises_kept_pct for result in results) / number, 2),
        "possible_alone_pct": round(100 * sum(map(_feasible_alone, workloads[0])) / len(workloads[0]), 2),
        "mean_jct_s": round(sum(result.mean_total_s for result in results) / number, 1),
        "changes": sum(result.changes for result in results) / number,
        "sim_s": round((time.process_time() - began_s) / number, 2),
        "decision_s_mean": round(sum(decision_s) / len(decision_s), 6),
        "planned_of_bound_pct": round(100 * planned / bound, 2) if bound else None,
    }


def with_work_errors(arrivals: Sequence[Arrival], seed: int) -> list[Arrival]:
    """Return the jobs with estimates of their work that are off by up to ``WORK_ERROR``, which policies know."""
    draw, inexact = random.Random(seed), dict[int, Speeds]()
    sd = WORK_ERROR / 3**0.5

    def with_sd(speeds: Speeds) -> Speeds:  # jobs of the same speeds share one object, as policies keep its curves
        return inexact.setdefault(id(speeds), replace(speeds, sd=(sd,) * len(speeds.counts)))

    return [
        replace(
            one,
            estimated=draw.uniform(1 - WORK_ERROR, 1 + WORK_ERROR),
            speeds={kind: with_sd(speeds) for kind, speeds in one.speeds.items()},
        )
        for one in arrivals
    ]


def draw_deadlines(arrivals: Sequence[Arrival], seed: int) -> list[Arrival]:
    """Return the jobs, each with a deadline after 0.5 to 1.5 times its duration on the requested GPUs."""
    draw = random.Random(seed)
    drawn = []
    for one in arrivals:
        (speeds,) = one.speeds.values()
        duration_s = one.work / speeds.at(speeds.largest_count(one.requested or 1))
        drawn.append(replace(one, deadline_s=one.arrives_s + draw.uniform(*TIGHTNESS) * duration_s))
    return drawn


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
    lines = [
        f"{'trace':9} {'GPUs':>4}  {'setting':22} {'policy':21} {'on time':>8} {'range':>13} {'possible':>8} "
        f"{'rejected':>8} {'accepted, late':>14} {'kept':>7} {'mean JCT':>8} {'CPU':>7}"
    ]
    for row in rows:
        low, high = row["deadlines_met_range_pct"]
        spread = f"{low:.1f} to {high:.1f}" if row["workloads"] > 1 else ""
        lines.append(
            f"{row['trace']:9} {row['gpus']:4}  {row['setting']:22} {row['policy']:21} "
            f"{row['deadlines_met_pct']:6.1f} % {spread:>13} {row['possible_alone_pct']:6.1f} % "
            f"{row['rejected']:8.1f} {row['accepted_late']:14.1f} {row['promises_kept_pct']:5.1f} % "
            f"{row['mean_jct_s'] / 3600:6.2f} h {row['sim_s']:5.1f} s"
        )
    lines += _pairs(rows)
    for source, known in (("own simulator", PUBLISHED), ("plotting script", PLOTTED)):
        lines.append(
            f"ElasticFlow's {source}, % of all jobs: {', '.join(f'{one} {pct}' for one, pct in known.items())}"
        )
    return "\n".join(lines)


def _pairs(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the mean difference between `on_time_promises` and `elasticflow` on the same drawn deadlines."""
    drawn = {(row["trace"], row["policy"]): row for row in rows if row["setting"] == DRAWN}
    for trace in dict.fromkeys(trace for trace, _ in drawn):
        ours, theirs = (
            drawn[trace, policy]["deadlines_met_each_pct"] for policy in ("on_time_promises", "elasticflow")
        )
        points = [one - other for one, other in zip(ours, theirs, strict=True)]
        error = statistics.stdev(points) / len(points) ** 0.5
        yield (
            f"{trace}, {DRAWN}: on_time_promises - elasticflow = {statistics.mean(points):+.1f} ± {error:.1f} points "
            f"(standard error), ahead in {sum(one > 0 for one in points)} workloads and behind in "
            f"{sum(one < 0 for one in points)} of {len(points)}"
        )
