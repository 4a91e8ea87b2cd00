"""Measures decisions of ``on_time``: simulations of 13,000 jobs, and decisions for 1,000 and 10,000 waiting jobs."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline.allocate import ClusterJob, Node, OnTime, Speeds
from paceline.arbiter import Arbiter, DeviceRequest, Grant
from paceline.control import RemainingWork
from paceline.simulate.cluster import Arrival, Friction, Simulation
from paceline.simulate.cluster.traces import read_throughputs, read_trace

JOBS = 13_000
DEVICES = (128, 512, 1024)
PAUSE_S = 30.0
_BLOCK = 100  # consecutive jobs of the trace that are drawn together, so that its bursts remain
_DECISIONS = 5  # repetitions of each single decision
_STEPS = 60  # of the arbiter, one a second
# Jobs, devices, and the work of the jobs relative to the work that fills about half of the devices.
_DECIDED = ((1000, 3000, 1), (1000, 3000, 2), (1000, 3000, 4), (10_000, 30_000, 1), (10_000, 30_000, 4))


def run(data: Path, quick: bool, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure the CPU time of simulations and of single decisions; return a row for each."""
    tables = read_throughputs(data / "throughput" / "A100")
    trace = list(read_trace(data / "traces" / "elasticflow-cluster01.csv", tables))
    rows: list[dict[str, Any]] = []
    for devices in DEVICES:
        for seed in range(1 if quick else 3):
            for promises in (False,) if quick else (False, True):
                progress(f"{JOBS} jobs, {devices} devices, seed {seed}")
                arrivals = list(_drawn_in_blocks(trace, JOBS, seed, gap_factor=DEVICES[0] / devices))
                policy, friction = OnTime(PAUSE_S, keep_promises=promises), Friction(pause_s=PAUSE_S)
                began_s = time.process_time()
                result = Simulation(arrivals, [Node("pool", devices)], policy, friction=friction).run()
                rows.append(
                    {
                        "measured": f"simulation, {JOBS} jobs" + (", keeps promises" if promises else ""),
                        "devices": devices,
                        "seed": seed,
                        "cpu_s": round(time.process_time() - began_s, 2),
                        "deadlines_met_pct": round(result.deadlines_met_pct, 2),
                    }
                )
    for jobs, pool, load in _DECIDED[:1] if quick else _DECIDED:
        progress(f"{jobs:,} jobs, {pool:,} devices, load {load}")
        rows += _decisions(jobs, pool, load)
    return rows


def _drawn_in_blocks(trace: Sequence[Arrival], jobs: int, seed: int, gap_factor: float) -> Iterator[Arrival]:
    """Yield jobs of a trace in random blocks of consecutive jobs; multiply the gaps between arrivals."""
    draw = random.Random(seed)
    gaps_s = [later.arrives_s - one.arrives_s for one, later in pairwise(trace)]
    now_s, first = 0.0, 0
    for number in range(jobs):
        if number % _BLOCK == 0:
            first = number - draw.randrange(len(trace) - _BLOCK)
        index = number - first
        one = trace[index]
        left_s = None if one.deadline_s is None else one.deadline_s - one.arrives_s
        deadline_s = None if left_s is None else now_s + left_s
        yield replace(one, name=f"{number}", arrives_s=now_s, deadline_s=deadline_s)
        now_s += gap_factor * gaps_s[index]


def _decisions(number: int, devices: int, load: float) -> Iterator[dict[str, Any]]:
    """Yield the CPU time of the first decision for many jobs by the policy, and of the arbiter's steps from then on."""
    draw = random.Random(0)
    curves = (Speeds.doubling_efficiency(64), Speeds.linear(32), Speeds((1, 2, 4, 8), (1.0, 1.9, 3.5, 6.1)))
    jobs = [
        ClusterJob(
            f"{index}",
            0.0,
            load * draw.uniform(500, 20_000),
            {"device": draw.choice(curves)},
            deadline_s=draw.uniform(600, 20_000),
        )
        for index in range(number)
    ]
    requests = [
        DeviceRequest(
            key=job.name,
            state="waiting",
            arrived_s=0.0,
            deadline_s=job.deadline_s or 0.0,
            origin_s=0.0,
            updated_s=0.0,
            min_devices=1.0,
            max_devices=draw.choice((4.0, 16.0, 64.0, 1000.0)),
            quantum=1.0,
            held=0.0,
            applied_grant=0,
            ceiling=None,
            remaining=RemainingWork(job.work, draw.uniform(0.6, 1.0), 0.0, sd=0.1, sd_devices=4.0, exponent_sd=0.1),
            user_deadline_s=job.deadline_s,
        )
        for job in jobs
    ]
    pool, named = [Node("pool", devices)], f"{number:,} jobs, load {load}"
    late = len(OnTime(PAUSE_S).allocate(jobs, pool, 0.0, rescale=True).late)
    cpu_s = statistics.median(
        _cpu_time_s(lambda: OnTime(PAUSE_S).allocate(jobs, pool, 0.0, rescale=True)) for _ in range(_DECISIONS)
    )
    yield _decision("OnTime.allocate, " + named, devices, cpu_s) | {"deadlines_met_pct": 100 * (1 - late / number)}
    runs = [_step_times_s(requests, devices) for _ in range(_DECISIONS)]
    for label, times_s in (
        ("first", [run[0] for run in runs]),
        ("later", [one for run in runs for one in run[1:]]),
        ("slowest later", [max(run[1:]) for run in runs]),
    ):
        yield _decision(f"Arbiter.step, {label}, {named}", devices, statistics.median(times_s))


def _decision(measured: str, devices: int, cpu_s: float) -> dict[str, Any]:
    return {
        "measured": measured,
        "devices": devices,
        "seed": 0,
        "cpu_s": round(cpu_s, 4),
        "deadlines_met_pct": None,
    }


def _step_times_s(requests: Sequence[DeviceRequest], devices: int) -> list[float]:
    """Return the CPU time of each step in the first minute, in which the jobs apply their grants and train."""
    arbiter, current, times_s = Arbiter(devices, quantum=1.0), {one.key: one for one in requests}, []
    for now_s in range(_STEPS):
        began_s = time.process_time()
        grants = arbiter.step(list(current.values()), now_s)
        times_s.append(time.process_time() - began_s)
        current |= {grant.key: _with_grant(current[grant.key], grant, now_s) for grant in grants}
    return times_s


def _with_grant(request: DeviceRequest, grant: Grant, now_s: float) -> DeviceRequest:
    held, number = grant.ceiling.devices, grant.ceiling.grant
    state = "training" if held else "waiting"
    return replace(request, ceiling=grant.ceiling, held=held, applied_grant=number, state=state, updated_s=now_s)


def _cpu_time_s(call: Callable[[], object]) -> float:
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format the rows as a table."""
    lines = [f"{'measured':42} {'devices':>7} {'seed':>4} {'CPU time':>10} {'on time':>8}"]
    for row in rows:
        on_time = "" if row["deadlines_met_pct"] is None else f"{row['deadlines_met_pct']:6.1f} %"
        lines.append(
            f"{row['measured']:42} {row['devices']:7} {row['seed']:4} {1000 * row['cpu_s']:7.0f} ms {on_time:>8}"
        )
    return "\n".join(lines)
