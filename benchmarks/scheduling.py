"""Gain of a schedule that knows the machines over the fair schedule: section V-C of Deep-Edge.

``python -m benchmarks.scheduling`` draws states of a fleet in which its applications meet their latency limits, and
compares the schedulers' predicted epochs (seconds). Then it trains by some of the schedules on an emulated fleet, with
SIFT and stress-ng beside the training (about an hour). Needs the measurements of ``python -m benchmarks.models``.
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
from tqdm import tqdm

from benchmarks.edge.fleet import DEVICES, EmulatedFleet, emulated_fleet
from benchmarks.edge.measured import APP, FOLDER, bench_of, estimates, read
from paceline.airflow.demo.signals import end_on_sigterm
from paceline.profiles.bench import Bench
from paceline.profiles.neighbours import Load
from paceline.profiles.readings import percentile
from paceline.schedule import Candidate, NoFeasibleWorkerError, Plan, Problem, State, deep_edge, fair, schedule
from paceline.schedule.plan import infeasible

if TYPE_CHECKING:
    import pandas as pd

    from paceline.profiles import ProfileEstimates

EXPERIMENTS, REAL = 120, 12
SAMPLES = 3855  # as in the paper
FLEET = {name: kind for name, (kind, _, _) in DEVICES.items()}
# Latency limit as a multiple of an execution's time on the slowest idle device: a limit in milliseconds would depend on
# the machine's speed. The other multiples show the gain under tighter limits.
PATIENCE, OTHER_PATIENCE = 5.0, (3.0, 4.0)
SCHEDULERS = {"default": schedule, "deep_edge": deep_edge, "fair": fair}
# Stress levels: shares of a device's cores and of its memory, and of the parameter server's cores.
CPU, MEMORY, SERVER = (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.25, 0.5), (0.0, 0.5)


def predicted(
    measured: pd.DataFrame, known: ProfileEstimates, number: int, limit_s: float, seed: int = 0
) -> dict[str, Any]:
    """Compare the schedulers' predicted epochs in ``number`` states of the fleet, drawn from the measured ones."""
    draw = np.random.default_rng(seed)
    feasible = {kind: rows[rows[f"alone_s.{APP}"] <= limit_s] for kind, rows in measured.groupby("kind")}
    speedups: dict[str, list[float]] = {"default": [], "deep_edge": []}
    over_fair_among_feasible: list[float] = []
    violations = infeasible_states = 0
    while len(speedups["default"]) < number:
        candidates = [_drawn(name, feasible[kind], draw, limit_s) for name, kind in FLEET.items()]
        server = State(cpu=float(draw.choice(measured["server_cpu"])))
        problem = Problem(SAMPLES, candidates, server)
        try:
            plans = {name: choose(problem, known) for name, choose in SCHEDULERS.items()}
        except NoFeasibleWorkerError:
            infeasible_states += 1
            continue
        for name, gained in speedups.items():
            gained.append(plans["fair"].epoch_s / plans[name].epoch_s)
        violations += _violations(plans["default"], candidates, known)
        over_fair_among_feasible.append(_fair_among_feasible(problem, known).epoch_s / plans["default"].epoch_s)
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


def at_rest_s(measured: pd.DataFrame) -> float:
    """Return the median seconds of an execution on the slowest kind of device when idle."""
    idle = measured[(measured["stress_cpu"] == 0) & (measured["stress_memory"] == 0)]
    return float(idle.groupby("kind")[f"alone_s.{APP}"].median().max())


def _drawn(name: str, rows: pd.DataFrame, draw: np.random.Generator, limit_s: float) -> Candidate:
    row = rows.iloc[int(draw.integers(len(rows)))]
    return Candidate(name, str(row["kind"]), State(cpu=row["cpu"], memory=row["memory"]), {APP: limit_s})


def _violations(plan: Plan, candidates: Sequence[Candidate], known: ProfileEstimates) -> int:
    chosen = {part.worker for part in plan.assignments}
    machines = [one for one in candidates if one.name in chosen]
    return sum(
        times[APP] > one.latency_s[APP] for one, times in zip(machines, known.execution_s(machines), strict=True)
    )


def _fair_among_feasible(problem: Problem, known: ProfileEstimates) -> Plan:
    """Return the fair schedule of the feasible machines; the paper's fair schedule includes the others."""
    unfit = infeasible(problem, known)
    return fair(replace(problem, candidates=[one for one in problem.candidates if one.name not in unfit]), known)


def solver_ms(
    measured: pd.DataFrame, known: ProfileEstimates, limit_s: float, workers: int = 1000, repeats: int = 5
) -> float:
    """Return the median milliseconds of a schedule for ``workers`` workers."""
    draw = np.random.default_rng(1)
    kinds = dict(list(measured.groupby("kind")))
    names = sorted(kinds)
    candidates = [_drawn(f"w{number}", kinds[names[number % len(names)]], draw, limit_s) for number in range(workers)]
    took_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        schedule(Problem(100 * workers, candidates), known)
        took_s.append(time.perf_counter() - began_s)
    return round(1000 * float(np.median(took_s)), 1)


@dataclass(frozen=True)
class Drawn:
    """A state of the emulated fleet in which its applications meet their latency limits."""

    number: int
    loads: Mapping[str, Load]
    server_load: Load
    problem: Problem
    limit_s: float
    alone: list[float]


def real(known: ProfileEstimates, wanted: int, limit_s: float, keep: Path, seed: int = 0) -> dict[str, Any]:
    """Train by the schedules on the emulated fleet; append every experiment to ``keep`` at once."""
    keep.parent.mkdir(parents=True, exist_ok=True)
    kept = [json.loads(line) for line in keep.read_text().splitlines()] if keep.exists() else []
    done = [one for one in kept if one.get("limit_s") == limit_s]  # another limit makes another experiment
    with (
        emulated_fleet() as fleet,
        bench_of(fleet) as bench,
        tqdm(total=wanted, initial=min(len(done), wanted), unit="experiment") as bar,
        keep.open("a") as file,
    ):
        states = _feasible_states(bench, fleet, limit_s, seed, skip=max((one["number"] for one in done), default=0))
        while len(done) < wanted:
            drawn = next(states)
            try:
                one = _experiment(bench, known, drawn)
            except NoFeasibleWorkerError as error:
                tqdm.write(str(error))
                continue
            done.append(one)
            file.write(json.dumps(one) + "\n")
            file.flush()
            bar.update()
            tqdm.write(f"fair {one['fair_s']:.1f} s, default {one['default_s']:.1f} s: {one['speedup']:.2f} times")

    def mean(name: str) -> float:
        return round(float(np.mean([one[name] for one in done[:wanted]])), 3)

    def missed_pct(name: str) -> float:
        seconds = [each_s for one in done[:wanted] for each_s in one[name]]
        return round(100 * sum(each_s > limit_s for each_s in seconds) / max(len(seconds), 1), 2)

    return {
        "experiments": len(done[:wanted]),
        "mean_speedup": mean("speedup"),
        "mean_speedup_as_in_use": mean("speedup_as_in_use"),
        "missed_pct": missed_pct("beside"),
        "missed_alone_pct": missed_pct("alone"),
        "missed_fair_pct": missed_pct("beside_fair"),
        "mean_error_pct": mean("error_pct"),
    }


def _feasible_states(bench: Bench, fleet: EmulatedFleet, limit_s: float, seed: int, skip: int) -> Iterator[Drawn]:
    """Yield random states of the fleet in which every application meets its latency limit."""
    for number in count(skip + 1):
        draw = np.random.default_rng([seed, number])
        loads = {one.name: Load(float(draw.choice(CPU)), float(draw.choice(MEMORY))) for one in fleet.machines}
        server_load = Load(float(draw.choice(SERVER)))
        seen, times = bench.measure_without_training(loads, server=server_load)
        states = {name: State(cpu=one.mean_cpu, memory=one.max_memory) for name, one in seen.items()}
        alone = {one.name: times[one.name].get(APP, []) for one in fleet.machines}
        if all(percentile(seconds) <= limit_s for seconds in alone.values()):
            candidates = [Candidate(one.name, one.kind, states[one.name], {APP: limit_s}) for one in fleet.machines]
            problem = Problem(SAMPLES, candidates, states[fleet.server.name])
            seconds_alone = [each for seconds in alone.values() for each in seconds]
            yield Drawn(number, loads, server_load, problem, limit_s, seconds_alone)


def _experiment(bench: Bench, known: ProfileEstimates, drawn: Drawn) -> dict[str, Any]:
    """Train by the fair and the default schedule with fixed parts, and by the default with parts that may move."""
    plans = {name: SCHEDULERS[name](drawn.problem, known) for name in ("fair", "default")}
    runs = [("fair", "fair", True), ("default", "default", True), ("as_in_use", "default", False)]
    took_s: dict[str, float] = {}
    executions: dict[str, list[float]] = {}
    # Alternate the order, because the machine's speed drifts.
    for run, name, fixed in runs if drawn.number % 2 else reversed(runs):
        plan = plans[name].to_dict()["workers"]
        took_s[run], times = bench.epoch(
            plan, drawn.loads, samples=SAMPLES, server=drawn.server_load, fixed_parts=fixed
        )
        executions[run] = [each_s for apps in times.values() for seconds in apps.values() for each_s in seconds]
    return {
        "number": drawn.number,
        "limit_s": drawn.limit_s,
        "fair_s": took_s["fair"],
        "default_s": took_s["default"],
        "speedup": took_s["fair"] / took_s["default"],
        "speedup_as_in_use": took_s["fair"] / took_s["as_in_use"],
        "error_pct": 100 * abs(plans["default"].epoch_s / took_s["default"] - 1),
        "expected_s": {name: plan.epoch_s for name, plan in plans.items()},
        "chosen": [part.worker for part in plans["default"].assignments],
        "alone": drawn.alone,
        "beside": executions["default"] + executions["as_in_use"],
        "beside_fair": executions["fair"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its result and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=__doc__)
    parser.add_argument("--measured", type=Path, default=FOLDER / "measured.jsonl", metavar="FILE")
    parser.add_argument("--experiments", type=int, default=EXPERIMENTS, help="states to draw (%(default)s)")
    parser.add_argument("--real", type=int, default=REAL, help="states to train in (%(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="record of real experiments, to resume from")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    end_on_sigterm()
    if not chosen.measured.exists():
        parser.error(f"{chosen.measured} does not exist: run python -m benchmarks.models first")
    measured = read(chosen.measured)
    known = estimates(measured)
    rest_s = at_rest_s(measured)
    result = predicted(measured, known, chosen.experiments, PATIENCE * rest_s)
    result["limit_s"] = round(PATIENCE * rest_s, 3)
    others = {times: predicted(measured, known, chosen.experiments, times * rest_s) for times in OTHER_PATIENCE}
    for name in ("mean_speedup", "mean_speedup_over_fair_among_fit"):
        result[f"{name}_by_patience"] = {times: other[name] for times, other in others.items()}
    result["solver_ms_1000_workers"] = solver_ms(measured, known, PATIENCE * rest_s)
    print(json.dumps(result, indent=1), flush=True)
    if chosen.real:
        result["real"] = real(known, chosen.real, PATIENCE * rest_s, chosen.folder / "scheduling.jsonl")
        print(json.dumps(result["real"], indent=1))
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
