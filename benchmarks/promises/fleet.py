"""Measures training on several machines, and the two demos: deadlines, accuracy and sizes of the shards."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from demo import edge as edge_demo
from demo import story
from demo.screen import Screen
from demo.watch import EDGE_TASKS

from benchmarks.promises.place import PROJECT
from benchmarks.promises.registry import Reading, measures
from benchmarks.promises.stage import DIGITS, SCRIPTS, NotMeasuredError, Stage, wait_until
from benchmarks.promises.training import had_full_allocation
from paceline.train.progress import parse_line

DAG = """
from airflow.sdk import DAG
from paceline.fleet import Fleet, Machine
from paceline.operators import Docker, train_on_fleet

machines = [Machine(name=name, kind="part", cores=$cores, memory_gib=1) for name in $shards]
with DAG($dag, schedule=None):
    train_on_fleet(
        fleet=Fleet(machines=machines, parameter_server=machines[0]),
        plan={"workers": {name: {"samples": samples, "batch_size": 64} for name, samples in $shards.items()}},
        server={"cores": 0.5},
        script=$script,
        runtime=Docker(image=$image),
        arguments=["--batches=350", "--batch-size=64"],
        deadline="60s",
        deadline_from="run",
    )
"""
SHARDS, CORES = {"a": 50, "b": 40, "c": 30}, 0.5
EPOCHS = 64  # the sample order changes the accuracy by one point after 16 epochs, and by a third of a point after 64


@measures("unequal", "unequal-cores", takes_s=(80, None), needs=("engine",))
def unequal(stage: Stage) -> Iterator[Reading]:
    """Train with three workers that have shards of 50, 40 and 30 samples.

    The work is small enough for slow machines. Workers at their maximum allocation would take over each other's
    batches, and their allocations would be equal.
    """
    dag_id = stage.dag("unequal", DAG, shards=SHARDS, cores=CORES, script=str(DIGITS))
    stage.log("three workers with unequal shards train with a deadline of 60 s")
    run_id = stage.airflow.run_dag(dag_id)
    if stage.airflow.wait(dag_id, run_id, timeout_s=300) != "success":
        raise NotMeasuredError(f"training failed: {stage.airflow.task_states(dag_id, run_id)}")
    results = {name: stage.airflow.xcom(dag_id, run_id, f"train.{name}") for name in SHARDS}
    excuse = ""
    if max(result["error_pct"] for result in results.values()) > 3.0:
        histories = [stage.airflow.task_state(dag_id, run_id, f"train.{name}", "history") for name in SHARDS]
        if all(had_full_allocation(history["samples"], CORES) for history in histories):
            excuse = "all workers had all of their cores in the second half of the run"
    for name, result in results.items():
        yield Reading("unequal", result["error_pct"], f"shard of {SHARDS[name]}", excuse)
    ratio = results["a"]["device_seconds"] / results["c"]["device_seconds"]
    yield Reading("unequal-cores", ratio, excused=excuse)


@measures("accuracy", takes_s=(60, None), needs=("torch",))
def accuracy(stage: Stage) -> Iterator[Reading]:
    """Train on scikit-learn's digits, first in one process, then with three workers for the same number of epochs."""
    script = [str(SCRIPTS / "digits_model.py"), str(EPOCHS)]
    plan = stage.scratch / "plan.json"
    plan.write_text(json.dumps({"workers": {name: {"samples": 20, "batch_size": 16} for name in "abc"}}))
    with ExitStack() as stack:

        def start(name: str, command: list[str], **environment: str) -> tuple[subprocess.Popen[str], Path, Path]:
            output, log = stage.scratch / "accuracy" / name, stage.scratch / "accuracy" / f"{name}.txt"
            output.mkdir(parents=True, exist_ok=True)
            paths = {"PYTHONPATH": str(PROJECT / "include"), "PACELINE_OUTPUT": str(output), "OMP_NUM_THREADS": "1"}
            with log.open("w") as file:
                process = subprocess.Popen(
                    [sys.executable, *command],
                    env={**os.environ, **paths, **environment},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process, output, log

        def wait_for_end(process: subprocess.Popen[str]) -> None:
            wait_until(lambda: process.poll() is not None, 240, "a process does not end")
            if process.returncode != 0:
                raise NotMeasuredError(f"a process ended with exit code {process.returncode}")

        stage.log("training in one process")
        alone, output, _ = start("alone", script)
        wait_for_end(alone)
        best = json.loads((output / "accuracy.json").read_text())
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        stage.log("training with three workers")
        serve = ["-m", "paceline.train.parameter_server", str(plan), "--port", str(port)]
        _, _, server_log = start("server", serve, PACELINE_CHECKPOINT=str(stage.scratch / "accuracy" / "checkpoint"))
        workers = []
        for name in "abc":
            (stage.scratch / "accuracy" / name).mkdir(parents=True)
            (stage.scratch / "accuracy" / name / "hold").touch()  # batches wait until all workers have started
            workers.append(start(name, script, PACELINE_SERVER=f"127.0.0.1:{port}", PACELINE_WORKER=name))
        wait_until(
            lambda: all(f"{name} has joined" in server_log.read_text() for name in "abc"),
            120,
            "the workers do not start",
        )
        for _, output, _ in workers:
            (output / "hold").unlink()
        for process, output, log in workers:
            wait_for_end(process)
            learned = json.loads((output / "accuracy.json").read_text())
            batches = [one.done for line in log.read_text().splitlines() if (one := parse_line(line))][-1]
            yield Reading(
                "accuracy", 100 * (best - learned), f"{100 * learned:.1f} and {100 * best:.1f} %, {batches} batches"
            )


def _make_demo(stage: Stage, name: str, **options: Any) -> tuple[story.Demo, Screen, Any]:
    """Return a demo with its own folder, its screen, and the file ``build/promises/NAME.txt`` for its output."""
    from rich.console import Console

    if stage.image != story.IMAGE:
        raise NotMeasuredError(f"the demos train in {story.IMAGE}, not in {stage.image}")
    stage.stop_airflow()
    output = (stage.folder / f"{name}.txt").open("w")
    demo = story.Demo(folder=stage.scratch / name, dags=PROJECT / "dags", **options)
    return demo, Screen(Console(file=output, width=160)), output


@measures("demo", takes_s=(140, None), needs=("demo", "torch"))
def demo(stage: Stage) -> Iterator[Reading]:
    """Run ``make demo`` and measure its end relative to the start of its run."""
    stage.log("make demo, with its own Airflow")
    prepared, screen, output = _make_demo(stage, "demo")
    with output:
        summary = story.run(prepared, screen)
    if summary["dag_run_state"] != "success":
        raise NotMeasuredError(f"the demo failed: {output.name}")
    yield Reading("demo", summary["finished_s"], str(summary["runtime"]))


@measures("edge", "edge-parts", takes_s=(360, None), needs=("engine", "neighbours", "root", "tc", "demo", "torch"))
def edge(stage: Stage) -> Iterator[Reading]:
    """Run ``make demo-edge`` and measure its deviation from the deadline, and the sizes of the shards."""
    stage.log("make demo-edge, with its own Airflow")
    prepared, screen, output = _make_demo(
        stage, "edge", deadline="120s", dag=edge_demo.DAG, tasks=EDGE_TASKS, training=edge_demo.TRAINING
    )
    with output:
        summary = edge_demo.run_edge(prepared, screen)
    if summary["dag_run_state"] != "success":
        raise NotMeasuredError(f"the demo failed: {output.name}")
    yield Reading("edge", summary["error_pct"])
    yield Reading("edge-parts", summary["samples"]["ewr"] / summary["samples"]["lga"], "ewr to lga")
