"""Measures the gain of a profile-based schedule over the fair schedule (section V-C of Deep-Edge).

``python -m benchmarks.scheduling`` draws states of a fleet in which its applications meet their latency limits, and
compares the schedulers' predicted epochs (seconds). Then it trains with some of the schedules on an emulated fleet,
with SIFT and stress-ng alongside the jobs (about an hour). It needs the measurements of ``python -m
benchmarks.models``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from demo.signals import end_on_sigterm
from tqdm import tqdm

from benchmarks.edge.fleet import DEVICES, EmulatedFleet, emulated_fleet
from benchmarks.edge.measured import APP, FOLDER, fit_estimates, make_bench, read
from paceline.profiles.bench import Bench
from paceline.profiles.neighbours import Load
from paceline.profiles.readings import percentile
from paceline.schedule import Candidate, NoFeasibleWorkerError, Plan, Problem, State, deep_edge, fair, schedule
from paceline.schedule.plan import infeasible_candidates

if TYPE_CHECKING:
    import pandas as pd

    from paceline.profiles import ProfileEstimates

EXPERIMENTS, REAL_EXPERIMENTS = 120, 12
SAMPLES = 3855  # as in the paper
FLEET = {name: kind for name, (kind, _, _) in DEVICES.items()}
# Latency limit as a multiple of an execution's time on the slowest idle device: a limit in milliseconds would depend on
# the machine's speed. The other multiples show the gain under tighter limits.
LIMIT_FACTOR, OTHER_FACTORS = 5.0, (3.0, 4.0)
SCHEDULERS = {"default": schedule, "deep_edge": deep_edge, "fair": fair}
# Stress levels: shares of a device's cores and of its memory, and of the parameter server's cores.
CPU, MEMORY, SERVER = (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.25, 0.5), (0.0, 0.5)


def compare_predictions(
    measured: pd.DataFrame, profiles: ProfileEstimates, number: int, limit_s: float, seed: int = 0
) -> dict[str, Any]:
    """Compare the schedulers' predicted epochs in ``number`` states of the fleet, drawn from the measurements."""
    draw = np.random.default_rng(seed)
    feasible = {kind: rows[rows[f"alone_s.{APP}"] <= limit_s] for kind, rows in measured.groupby("kind")}
    speedups: dict[str, list[float]] = {"default": [], "deep_edge": []}
    over_fair_among_feasible: list[float] = []
    violations = infeasible_states = 0
    while len(speedups["default"]) < number:
        candidates = [_draw_candidate(name, feasible[kind], draw, limit_s) for name, kind in FLEET.items()]
        server = State(cpu=float(draw.choice(measured["server_cpu"])))
        problem = Problem(SAMPLES, candidates, server)
        try:
            plans = {name: choose(problem, profiles) for name, choose in SCHEDULERS.items()}
        except NoFeasibleWorkerError:
            infeasible_states += 1
            continue
        for name, gained in speedups.items():
            gained.append(plans["fair"].epoch_s / plans[name].epoch_s)
        violations += _count_violations(plans["default"], candidates, profiles)
        over_fair_among_feasible.append(_fair_among_feasible(problem, profiles).epoch_s / plans["default"].epoch_s)
    gained = speedups["default"]
    return {
        "experiments": number,
        "mean_speedup": round(float(np.mean(gained)), 3),
        "p10_speedup": round(float(np.percentile(gained, 10)), 3),
        "violations": violations,
        "mean_speedup_deep_edge": round(float(np.mean(speedups["deep_edge"])), 3),
        "mean_speedup_over_fair_among_fit": round(float(np.mean(over_fair_among_feasible)), 3),
        "no_machine_bears_it": infeasible_states,
    }


def idle_execution_s(measured: pd.DataFrame) -> float:
    """Return the median seconds of an execution on an idle device of the slowest kind."""
    idle = measured[(measured["stress_cpu"] == 0) & (measured["stress_memory"] == 0)]
    return float(idle.groupby("kind")[f"alone_s.{APP}"].median().max())


def _draw_candidate(name: str, rows: pd.DataFrame, draw: np.random.Generator, limit_s: float) -> Candidate:
    row = rows.iloc[int(draw.integers(len(rows)))]
    return Candidate(name, str(row["kind"]), State(cpu=row["cpu"], memory=row["memory"]), {APP: limit_s})


def _count_violations(plan: Plan, candidates: Sequence[Candidate], profiles: ProfileEstimates) -> int:
    chosen = {part.worker for part in plan.assignments}
    machines = [one for one in candidates if one.name in chosen]
    return sum(
        times[APP] > one.latency_s[APP] for one, times in zip(machines, profiles.execution_s(machines), strict=True)
    )


def _fair_among_feasible(problem: Problem, profiles: ProfileEstimates) -> Plan:
    """Return the fair schedule of the feasible machines; the paper's fair schedule also uses infeasible machines."""
    infeasible_names = infeasible_candidates(problem, profiles)
    return fair(
        replace(problem, candidates=[one for one in problem.candidates if one.name not in infeasible_names]), profiles
    )


def solver_ms(
    measured: pd.DataFrame, profiles: ProfileEstimates, limit_s: float, workers: int = 1000, repeats: int = 5
) -> float:
    """Return the median milliseconds to compute a schedule for ``workers`` workers."""
    draw = np.random.default_rng(1)
    kinds = dict(list(measured.groupby("kind")))
    names = sorted(kinds)
    candidates = [
        _draw_candidate(f"w{number}", kinds[names[number % len(names)]], draw, limit_s) for number in range(workers)
    ]
    took_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        schedule(Problem(100 * workers, candidates), profiles)
        took_s.append(time.perf_counter() - began_s)
    return round(1000 * float(np.median(took_s)), 1)


@dataclass(frozen=True)
class FleetState:
    """A state of the emulated fleet in which its applications meet their latency limits."""

    number: int
    loads: Mapping[str, Load]
    server_load: Load
    problem: Problem
    limit_s: float
    alone: list[float]


def run_experiments(
    profiles: ProfileEstimates, number: int, limit_s: float, record: Path, seed: int = 0
) -> dict[str, Any]:
    """Train with the schedules on the emulated fleet; append every experiment to ``record`` immediately."""
    record.parent.mkdir(parents=True, exist_ok=True)
    recorded = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    done = [one for one in recorded if one.get("limit_s") == limit_s]  # results with another limit do not count
    with (
        emulated_fleet() as fleet,
        make_bench(fleet) as bench,
        tqdm(total=number, initial=min(len(done), number), unit="experiment") as bar,
        record.open("a") as file,
    ):
        states = _feasible_states(bench, fleet, limit_s, seed, skip=max((one["number"] for one in done), default=0))
        while len(done) < number:
            state = next(states)
            try:
                one = _experiment(bench, profiles, state)
            except NoFeasibleWorkerError as error:
                tqdm.write(str(error))
                continue
            done.append(one)
            file.write(json.dumps(one) + "\n")
            file.flush()
            bar.update()
            tqdm.write(f"fair {one['fair_s']:.1f} s, default {one['default_s']:.1f} s: {one['speedup']:.2f} times")

    def mean(name: str) -> float:
        return round(float(np.mean([one[name] for one in done[:number]])), 3)

    def share_over_limit_pct(name: str) -> float:
        seconds = [each_s for one in done[:number] for each_s in one[name]]
        return round(100 * sum(each_s > limit_s for each_s in seconds) / max(len(seconds), 1), 2)

    return {
        "experiments": len(done[:number]),
        "mean_speedup": mean("speedup"),
        "mean_speedup_as_in_use": mean("speedup_as_in_use"),
        "missed_pct": share_over_limit_pct("beside"),
        "missed_alone_pct": share_over_limit_pct("alone"),
        "missed_fair_pct": share_over_limit_pct("beside_fair"),
        "mean_error_pct": mean("error_pct"),
    }


def _feasible_states(bench: Bench, fleet: EmulatedFleet, limit_s: float, seed: int, skip: int) -> Iterator[FleetState]:
    """Yield random states of the fleet in which every application meets its latency limit."""
    for number in count(skip + 1):
        draw = np.random.default_rng([seed, number])
        loads = {one.name: Load(float(draw.choice(CPU)), float(draw.choice(MEMORY))) for one in fleet.machines}
        server_load = Load(float(draw.choice(SERVER)))
        usage_by_machine, times = bench.measure_without_training(loads, server=server_load)
        states = {name: State(cpu=one.mean_cpu, memory=one.max_memory) for name, one in usage_by_machine.items()}
        alone = {one.name: times[one.name].get(APP, []) for one in fleet.machines}
        if all(percentile(seconds) <= limit_s for seconds in alone.values()):
            candidates = [Candidate(one.name, one.kind, states[one.name], {APP: limit_s}) for one in fleet.machines]
            problem = Problem(SAMPLES, candidates, states[fleet.server.name])
            seconds_alone = [each_s for seconds in alone.values() for each_s in seconds]
            yield FleetState(number, loads, server_load, problem, limit_s, seconds_alone)


def _experiment(bench: Bench, profiles: ProfileEstimates, state: FleetState) -> dict[str, Any]:
    """Train with fixed shards of the fair and the default schedule, then with movable shards of the default one."""
    plans = {name: SCHEDULERS[name](state.problem, profiles) for name in ("fair", "default")}
    runs = [("fair", "fair", True), ("default", "default", True), ("as_in_use", "default", False)]
    took_s: dict[str, float] = {}
    executions: dict[str, list[float]] = {}
    # Alternate the order, because the machine's speed drifts.
    for run, name, fixed in runs if state.number % 2 else reversed(runs):
        plan = {shard: one.to_json() for shard, one in plans[name].to_result({}).workers.items()}
        took_s[run], times = bench.measure_epoch(
            plan, state.loads, samples=SAMPLES, server=state.server_load, fixed_shards=fixed
        )
        executions[run] = [each_s for apps in times.values() for seconds in apps.values() for each_s in seconds]
    return {
        "number": state.number,
        "limit_s": state.limit_s,
        "fair_s": took_s["fair"],
        "default_s": took_s["default"],
        "speedup": took_s["fair"] / took_s["default"],
        "speedup_as_in_use": took_s["fair"] / took_s["as_in_use"],
        "error_pct": 100 * abs(plans["default"].epoch_s / took_s["default"] - 1),
        "expected_s": {name: plan.epoch_s for name, plan in plans.items()},
        "chosen": [part.worker for part in plans["default"].assignments],
        "alone": state.alone,
        "beside": executions["default"] + executions["as_in_use"],
        "beside_fair": executions["fair"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its result and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=__doc__)
    parser.add_argument("--measured", type=Path, default=FOLDER / "measured.jsonl", metavar="FILE")
    parser.add_argument("--experiments", type=int, default=EXPERIMENTS, help="number of states to draw (%(default)s)")
    parser.add_argument("--real", type=int, default=REAL_EXPERIMENTS, help="number of states to train in (%(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the record from which a run resumes")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    end_on_sigterm()
    if not chosen.measured.exists():
        parser.error(f"{chosen.measured} does not exist: run python -m benchmarks.models first")
    measured = read(chosen.measured)
    profiles = fit_estimates(measured)
    idle_s = idle_execution_s(measured)
    result = compare_predictions(measured, profiles, chosen.experiments, LIMIT_FACTOR * idle_s)
    result["limit_s"] = round(LIMIT_FACTOR * idle_s, 3)
    by_factor = {
        times: compare_predictions(measured, profiles, chosen.experiments, times * idle_s) for times in OTHER_FACTORS
    }
    for name in ("mean_speedup", "mean_speedup_over_fair_among_fit"):
        result[f"{name}_by_patience"] = {times: other[name] for times, other in by_factor.items()}
    result["solver_ms_1000_workers"] = solver_ms(measured, profiles, LIMIT_FACTOR * idle_s)
    print(json.dumps(result, indent=1), flush=True)
    if chosen.real:
        result["real"] = run_experiments(
            profiles, chosen.real, LIMIT_FACTOR * idle_s, chosen.folder / "scheduling.jsonl"
        )
        print(json.dumps(result["real"], indent=1))
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
