"""Measures training jobs in a real Airflow: deviation from the deadline, and reaction times of tasks."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.promises.machine import cores
from benchmarks.promises.registry import Reading, measures
from benchmarks.promises.stage import DIGITS, LABEL, Stage, wait_until
from paceline.runtime import JobSpec
from paceline.train.progress import parse_line

SCRIPT = DIGITS
DAG = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator, Docker, Process

RUNTIMES = {"docker": Docker(image=$image), "process": Process()}
with DAG($dag, schedule=None, params={"deadline": "60s", "batches": 1000, "runtime": "docker"}):
    DeadlineTrainingOperator(
        task_id="train",
        script=$script,
        arguments=["--batches={{ params.batches }}", "--batch-size=64", "--checkpoint-every-s=60"],
        deadline="{{ params.deadline }}",
        deadline_from="task",
        runtime=lambda context, jinja_env: RUNTIMES[context["params"]["runtime"]],
    )
"""
OVERHEAD_S = 4.0  # time before the first and after the last batch
MIN_SPEED_LOSS = 0.05  # smallest loss of machine speed that excuses a late run
TRIES = 3
D_C = 1.5  # deadline relative to the shortest time
RUNS = 2  # runs per promise; one with --quick


class TrainingRuns:
    """Runs of a DAG whose number of batches is calibrated first."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.dag = stage.dag("training", DAG, script=str(SCRIPT))
        self.shortest_s = stage.shortest_s

    def measure_speed(self) -> float:
        """Measure the batches per second on all cores for a few seconds."""
        measured_s = 5.0 if self.stage.quick else 10.0
        self.stage.log(f"measuring the speed on all cores for {measured_s:g} s")
        spec = JobSpec(
            name="promises-calibration",
            command=["python", SCRIPT.name, "--batches", "100000", "--batch-size", "64"],
            devices=self.stage.containers.capacity(),
            image=self.stage.image,
            files={SCRIPT.name: SCRIPT},
            labels=LABEL,
        )
        job = self.stage.containers.start(spec)
        seen: list[tuple[float, int]] = []

        def read() -> None:
            progress = [one for line in job.read_lines() if (one := parse_line(line)) and one.done > 20]
            seen.extend((one.wall_s, one.done) for one in progress)

        try:
            wait_until(
                lambda: seen and seen[-1][0] - seen[0][0] > measured_s,
                120,
                "a container does not train",
                between_checks=read,
            )
        finally:
            job.remove()
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])

    def run(self, meanwhile: Callable[[str], object] = lambda run_id: None, **conf: object) -> dict[str, Any]:
        """Train once; return the task's result with the samples of its history."""
        self.stage.log(f"training with a deadline of {conf['deadline']} ({conf['batches']} batches)")
        run_id = self.stage.airflow.run_dag(self.dag, conf)
        meanwhile(run_id)
        state = self.stage.airflow.wait(self.dag, run_id, timeout_s=300)
        if state != "success":
            raise RuntimeError(self.stage.airflow.task_log(self.dag, run_id, "train")[-2000:])
        history = self.stage.airflow.task_state(self.dag, run_id, "train", "history")
        return {**self.stage.airflow.xcom(self.dag, run_id, "train"), "samples": history["samples"]}

    def wait_for_pace(self, run_id: str, **least: float) -> dict[str, Any]:
        """Wait until the values of the newest sample have reached those in ``least``; return the sample."""
        pace: dict[str, Any] = {}

        def is_far_enough() -> bool:
            pace.update(self.stage.airflow.task_state(self.dag, run_id, "train", "pace") or {})
            return bool(pace) and all((pace[key] or 0.0) >= value for key, value in least.items())

        wait_until(is_far_enough, 300, f"training does not reach {least}")
        return pace

    def containers(self) -> list[dict[str, Any]]:
        """Return the containers of this DAG."""
        containers: list[dict[str, Any]] = self.stage.client.containers(
            all=True, filters={"label": f"paceline.dag={self.dag}"}
        )
        return containers

    def measure_deviation(
        self,
        promise: str,
        train: Callable[[int], dict[str, Any]],
        tolerance_pct: float,
        *,
        fraction: float = 1.0,
        runs: int = RUNS,
    ) -> Iterator[Reading]:
        """Run a job right after its calibration; return its deviation from the deadline.

        The promise applies to feasible deadlines at the calibrated speed of the machine. A shared machine may become
        slower. So a late run does not count, and is repeated up to twice, if it had all cores in its second half or if
        a new calibration is slower.
        """
        for again in range(1 if self.stage.quick else runs):
            speed = self.measure_speed()
            for _ in range(TRIES):
                whole_epochs = int((fraction * self.shortest_s - OVERHEAD_S) * speed) // 50
                result = train(50 * max(whole_epochs, 1))
                excuse, before = "", speed
                if result["error_pct"] > tolerance_pct:
                    speed = self.measure_speed()
                    excuse = _excuse(result["samples"], before, speed)
                yield Reading(promise, result["error_pct"], f"run {again + 1}", excuse)
                yield Reading("step", result["step_ms_mean"], promise)
                yield Reading("period", _period_s(result["samples"]), promise)
                if not excuse:
                    break


def _excuse(samples: list[list[float]], before: float, after: float) -> str:
    """Return the reason why a late run does not count against the controller; "" if it counts."""
    if had_full_allocation(samples, cores()):
        return "the job had all cores in the second half of the run"
    lost = 1.0 - after / before
    return f"the machine has lost {100 * lost:.0f} % of its speed" if lost >= MIN_SPEED_LOSS else ""


def had_full_allocation(samples: list[list[float]], max_devices: float) -> bool:
    """Return whether a run had the allocation ``max_devices`` throughout its second half.

    The last samples are ignored, because cores are released while the container ends.
    """
    end_s = samples[-1][0]
    second_half = [row[3] for row in samples if 0.5 < row[0] / end_s < 0.95]
    return bool(second_half) and min(second_half) >= max_devices - 1e-6


def _period_s(samples: list[list[float]]) -> float:
    """Return the median interval of samples, except for the end of the run, where samples are more frequent."""
    rows = [row for row in samples if row[0] < 0.85 * row[4]]
    return statistics.median(after[0] - before[0] for before, after in pairwise(rows))


@measures("container", "step", "period", takes_s=(190, 60), needs=("engine",))
def container(stage: Stage) -> Iterator[Reading]:
    """Train in a container with a deadline of 1.5 times the shortest time."""
    runs = TrainingRuns(stage)
    deadline_s = D_C * stage.shortest_s
    yield from runs.measure_deviation(
        "container", lambda batches: runs.run(batches=batches, deadline=f"{deadline_s:g}s"), 2.0
    )


@measures("cut-deadline", "new-deadline", "step", "period", takes_s=(160, 50), needs=("engine",))
def moved(stage: Stage) -> Iterator[Reading]:
    """Train in a container and cut the deadline during the run."""
    runs = TrainingRuns(stage)
    deadline_s = D_C * stage.shortest_s
    delays_s: list[float] = []

    def cut_deadline(run_id: str) -> None:
        runs.wait_for_pace(run_id, setpoint_pct=30.0)
        stage.airflow.set_task_state(runs.dag, run_id, "train", "deadline", f"{0.8 * deadline_s:g}s")
        began_s = time.monotonic()

        def is_applied() -> bool:
            pace = stage.airflow.task_state(runs.dag, run_id, "train", "pace")
            return bool(pace["deadline_s"] < deadline_s)

        wait_until(is_applied, 30, "the new deadline does not take effect", period_s=0.05)
        delays_s.append(time.monotonic() - began_s)

    def run(batches: int) -> dict[str, Any]:
        return runs.run(cut_deadline, batches=batches, deadline=f"{deadline_s:g}s")

    yield from runs.measure_deviation("cut-deadline", run, 2.0)
    for seconds in delays_s:
        yield Reading("new-deadline", seconds)


@measures("process", "step", "period", takes_s=(65, 40), needs=("engine", "torch"))
def process(stage: Stage) -> Iterator[Reading]:
    """Train in a local process for a shorter time, because the promise is looser; calibrate in a container."""
    runs = TrainingRuns(stage)
    fraction = 0.6

    def run(batches: int) -> dict[str, Any]:
        return runs.run(batches=batches, deadline=f"{fraction * D_C * stage.shortest_s:g}s", runtime="process")

    yield from runs.measure_deviation("process", run, 3.0, fraction=fraction, runs=1)


@measures("ended", takes_s=(20, 20), needs=("engine",))
def ended(stage: Stage) -> Iterator[Reading]:
    """Mark a training task as failed."""
    runs = TrainingRuns(stage)
    stage.log("marking a task as failed while it trains")
    run_id = stage.airflow.run_dag(runs.dag, {"batches": 20_000, "deadline": "10m"})
    runs.wait_for_pace(run_id, progress_pct=0.1)
    began_s = time.monotonic()
    path = f"/dags/{runs.dag}/dagRuns/{run_id}/taskInstances/train"
    stage.airflow.api("PATCH", path, {"new_state": "failed"})
    wait_until(lambda: not runs.containers(), 60, "its container is not removed", period_s=0.1)
    yield Reading("ended", time.monotonic() - began_s)


@measures("orphan", takes_s=(25, 25), needs=("engine",))
def orphan(stage: Stage) -> Iterator[Reading]:
    """Kill the supervisor of a training task."""
    runs = TrainingRuns(stage)
    stage.log("killing the supervisor of a task while it trains")
    run_id = stage.airflow.run_dag(runs.dag, {"batches": 20_000, "deadline": "10m"})
    runs.wait_for_pace(run_id, progress_pct=0.1)
    pid = stage.airflow.task_instance(runs.dag, run_id, "train")["pid"]
    try:
        began_s = time.monotonic()
        os.kill(int(_proc_status(pid)["PPid"]), signal.SIGKILL)
        wait_until(
            lambda: _proc_status(pid).get("State", "Z").startswith("Z"), 60, "the task does not end", period_s=0.1
        )
        yield Reading("orphan", time.monotonic() - began_s)
    finally:
        stage.end_run(runs.dag, run_id)
        for container in runs.containers():
            stage.client.remove_container(container["Id"], force=True, v=True)


def _proc_status(pid: int) -> dict[str, str]:
    """Return the /proc status of a process; {} if the process does not exist."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
