"""Measures computing costs: DAG parsing, allocation, scheduling, control steps and loops, and ``track``."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.promises.place import PROJECT
from benchmarks.promises.registry import Reading, measures
from benchmarks.promises.stage import Stage
from paceline.allocate import ClusterJob, Node, OnTime, Speeds

if TYPE_CHECKING:
    import pandas as pd

_PARSE = """
import runpy, sys, time
# The DAG processor and every DAG file import these modules in any case.
import airflow.sdk, airflow.sdk.definitions.decorators
from airflow.sdk import DAG, Asset, BaseHook, BaseSensorOperator, ObjectStoragePath, Param, ResumableJobMixin, task
from airflow.triggers.base import BaseEventTrigger
began_s = time.process_time()
runpy.run_path(sys.argv[1])
print(time.process_time() - began_s)
"""
# Set-up and timed statement of the commands in docs/benchmarks.md, by promise.
_TRACK_COMMANDS = {
    "track": ("import torch; from paceline.train import track", "for _ in track(range(1_000_000)): pass"),
    "track-number": (
        "from paceline.train import report, track",
        "for _ in track(range(1_000_000)): report(loss=0.5)",
    ),
    "track-tensor": (
        "import torch; from paceline.train import report, track; loss = 2 * torch.ones((), requires_grad=True)",
        "for _ in track(range(1_000_000)): report(loss=loss)",
    ),
}


def _call_times_s(call: Callable[[], object], times: int) -> Iterator[float]:
    for _ in range(times):
        began_s = time.perf_counter()
        call()
        yield time.perf_counter() - began_s


@measures("parse", takes_s=(20, 10))
def parse(stage: Stage) -> Iterator[Reading]:
    """Parse each example DAG in a new process."""
    stage.log("parsing the example DAGs")
    environment = {**os.environ, "AIRFLOW_HOME": str(stage.scratch / "parse")}
    for name in ("retrain_on_drift", "retrain_on_edge", "watch_for_drift"):
        command = [sys.executable, "-c", _PARSE, str(PROJECT / "dags" / f"{name}.py")]
        took_s = min(
            float(subprocess.check_output(command, env=environment, text=True).splitlines()[-1])
            for _ in range(1 if stage.quick else 3)
        )
        yield Reading("parse", took_s, name)


@measures("store", takes_s=(10, 10), needs=("demo",))
def store(stage: Stage) -> Iterator[Reading]:
    """Store the flights and the weather of 2013 in SQLite."""
    from demo.store import fill_store, read_flights

    stage.log("creating the demo's store")
    began_s = time.process_time()
    fill_store(stage.scratch / "flights.db", read_flights())
    yield Reading("store", time.process_time() - began_s)


@measures("schedule-1000", takes_s=(10, 10))
def schedule_1000(stage: Stage) -> Iterator[Reading]:
    """Schedule a thousand machines of one kind, whose profile is learned from forty points."""
    import numpy as np

    from paceline.profiles import Axes, DeviceProfile, Origin, ProfileEstimates, first_points
    from paceline.schedule import Candidate, Problem, State, schedule

    stage.log("scheduling a thousand machines")
    axes = Axes(
        {
            "cpu": (0.0, 0.2, 0.4, 0.6, 0.8),
            "memory": (0.1, 0.4, 0.7),
            "batch_size": (1, 4, 16, 64),
            "workers": (1, 2, 4),
            "server_cpu": (0.0, 0.5),
        }
    )
    origin = Origin("train-1", cores=4, memory_gib=4, gpus=0, measured_at="2030-01-01T00:00:00+00:00")
    profile = DeviceProfile.fit("nano", _plausible_measurements(first_points(axes, 40)), origin, apps=["sift"])
    estimates = ProfileEstimates({"nano": profile})
    draw = np.random.default_rng(0)
    many = [Candidate(f"w{number}", "nano", State(cpu=draw.uniform(0, 0.8), memory=0.2)) for number in range(1000)]
    problem = Problem(100_000, many, State(cpu=0.2))
    schedule(problem, estimates)  # the first call builds the lookup tables of the estimates
    for took_s in _call_times_s(lambda: schedule(problem, estimates), 5):
        yield Reading("schedule-1000", 1000 * took_s)


def _plausible_measurements(points: Sequence[Mapping[str, float]]) -> pd.DataFrame:
    """Return artificial measurements at the points."""
    import numpy as np
    import pandas as pd

    draw = np.random.default_rng(0)
    frame: pd.DataFrame = pd.DataFrame(points)

    def noise() -> Any:
        return np.exp(draw.normal(0, 0.02, len(frame)))

    frame["gpu"], frame["new_gpu"] = 0.0, 0.0
    frame["pushes_per_s"] = frame.workers / frame.batch_size
    frame["compute_s"] = 0.02 * (1 + 0.5 / frame.batch_size) / (1 - 0.7 * frame.cpu) * noise()
    frame["update_s"] = 0.01 * (1 + 0.4 * (frame.workers - 1) + frame.server_cpu) * (1 + 0.5 * frame.cpu) * noise()
    frame["new_cpu"] = np.clip((0.3 + 0.7 * frame.cpu) * noise(), 0, 1)
    frame["new_memory"] = np.clip((0.1 + frame.memory + 0.003 * frame.batch_size) * noise(), 0, 1)
    frame["execution_s.sift"] = 0.05 / (1.1 - frame.new_cpu) * noise()
    return frame


@measures("on-time", "on-time-10000", takes_s=(5, 5))
def on_time(stage: Stage) -> Iterator[Reading]:
    """Decide with ``on_time`` for 5 jobs in a pool of 8 devices, and for 10,000 jobs in a pool of 200."""
    stage.log("deciding with on_time")
    curves = ({"device": Speeds.doubling_efficiency(8)}, {"device": Speeds((1, 2, 4, 8), (1.0, 1.9, 2.0, 1.5))})

    def make_decision(number: int, devices: int, longest_s: float) -> Callable[[], object]:
        draw = random.Random(3)
        jobs = [
            ClusterJob(f"j{n}", 0.0, draw.uniform(1, 50), draw.choice(curves), deadline_s=draw.uniform(1, longest_s))
            for n in range(number)
        ]
        return lambda: OnTime(change_s=0.0).allocate(jobs, [Node("pool", devices)], 0.0, rescale=True)

    few = make_decision(5, 8, 60.0)
    few()
    yield Reading("on-time", 1000 * statistics.median(_call_times_s(few, 101)), "5 jobs, 8 devices")
    for took_s in _call_times_s(make_decision(10_000, 200, 5000.0), 3):
        yield Reading("on-time-10000", took_s)


@measures("milp", "milp-large", "milp-gap", takes_s=(20, 20))
def milp(stage: Stage) -> Iterator[Reading]:
    """Decide with ModelArts' allocator for two days of jobs on 110 nodes, and for many jobs at once."""
    import numpy as np

    from benchmarks.allocators.modelarts import PERIOD_S, Scenario, simulate
    from paceline.allocate import RollingHorizon
    from paceline.simulate.cluster.generate import modelarts_workload

    stage.log("deciding with milp")
    took_s = simulate(Scenario(), RollingHorizon(period_s=PERIOD_S), 110, 0).decision_s
    yield Reading("milp", 1000 * statistics.mean(took_s), f"{len(took_s)} decisions")
    speeds = {"device": Speeds.doubling_efficiency(16)}
    for seed in range(1 if stage.quick else 3):
        work_left = np.random.default_rng(seed).uniform(0.0, 1.0, 1000)
        jobs = [
            ClusterJob(one.name, 0.0, one.work * share, speeds)
            for one, share in zip(modelarts_workload(seed, 1000), work_left, strict=True)
        ]
        policy = RollingHorizon(period_s=PERIOD_S)
        began_s = time.perf_counter()
        policy.allocate(jobs, [Node("pool", 3000)], 0.0, rescale=True)
        yield Reading("milp-large", time.perf_counter() - began_s, f"workload {seed}")
        if policy.last is not None:
            yield Reading("milp-gap", 100 * policy.last.gap, f"workload {seed}")


@measures("least-cost", takes_s=(12, 12))
def least_cost(stage: Stage) -> Iterator[Reading]:
    """Decide with LeastCost for 200 jobs in a cluster of 20 nodes of two kinds."""
    from benchmarks.allocators import andreas

    stage.log("deciding with least_cost")
    took_s = andreas.simulate("least_cost", andreas.Scenario(nodes=20), 0).decision_s
    yield Reading("least-cost", 1000 * statistics.mean(took_s), f"{len(took_s)} decisions")


@measures("control", "plant", takes_s=(5, 5))
def control(stage: Stage) -> Iterator[Reading]:
    """Run steps of the deadline controller, and simulate a whole run."""
    from paceline.control import DeadlineController, Limits, Observation
    from paceline.testing.plant import Plant
    from paceline.testing.simulated_run import simulate_run

    stage.log("running steps of the deadline controller")
    limits = Limits(0.1, 2.0)
    controller = DeadlineController(limits, 10_000)
    controller.start(0.0)
    began_s = time.process_time()
    for second in range(2000):
        controller.step(Observation(second, second, 10_000, done_s=second, allocated_devices=1.0))
    yield Reading("control", 1000 * (time.process_time() - began_s) / 2000)
    plant = Plant(batches=22_000, batch_s=3.0, startup_s=3.0, tail_s=0.5, noise=0.05)
    deadline_s = 1.5 * plant.shortest_s(2.0)
    for took_s in _call_times_s(
        lambda: simulate_run(plant, DeadlineController(limits, deadline_s, period_s=deadline_s / 2000)), 3
    ):
        yield Reading("plant", 1000 * took_s)


@measures("track", "track-number", "track-tensor", takes_s=(25, 15), needs=("torch",))
def track(stage: Stage) -> Iterator[Reading]:
    """Run the commands in docs/benchmarks.md, and read the best of seven loops of a million batches."""
    environment = {**os.environ, "PACELINE_OUTPUT": str(stage.scratch)}
    for promise, (before, loop) in _TRACK_COMMANDS.items():
        stage.log(f"a million batches: {loop}")
        repeats = "3" if stage.quick else "7"
        command = [sys.executable, "-m", "timeit", "-n", "1", "-r", repeats, "-u", "nsec", "-s", before, loop]
        output = subprocess.check_output(command, env=environment, text=True, stderr=subprocess.DEVNULL)
        (line,) = [line for line in output.splitlines() if "best of" in line]
        yield Reading(promise, float(line.split(":")[1].split()[0]) / 1e6)


@measures("loops", takes_s=(45, 20))
def loops(stage: Stage) -> Iterator[Reading]:
    """Run a thousand control loops with simulated jobs. Run them last, because they raise the load average."""
    stage.log("running a thousand control loops in one process")
    # Use a separate process, as a worker does: the memory of this process has data of other benchmarks.
    figures = stage.scratch / "loops.json"
    command = [sys.executable, "-m", "benchmarks.loops", "--seconds", "10" if stage.quick else "30", "--json", figures]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    result = json.loads(figures.read_text())
    yield Reading("loops", result["cores"], f"{result['missed_periods']} of {result['steps']} steps late")
