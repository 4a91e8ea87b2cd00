"""Measures the effect of killed containers on the samples and the deadline of training on three machines.

``python -m benchmarks.failures`` (about 15 minutes) runs a DAG in a real Airflow. In ten runs, the benchmark kills the
container of one of three workers at a random time; in one run, it kills the container of the same worker three times;
in another run, it kills the container of the parameter server. The model counts how often each sample was trained on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from demo.airflow_process import AirflowProcess
from tqdm import tqdm

from benchmarks.engine import connect
from paceline.runtime import DockerRuntime

HERE = Path(__file__).parent
DAG, WORKERS = "failures", ("a", "b", "c")
# Enough work that each worker needs more than the minimum allocation; with less work, all workers would end early.
SAMPLES, EPOCHS, ROUNDS = 600, 8, 60
DEADLINE_S = 60.0
_POLL_S = 0.2
_DAG = """
from airflow.sdk import DAG
from paceline.fleet import Fleet, Machine
from paceline.operators import train_on_fleet

machines = [Machine(name=name, kind="part", cores=0.6, memory_gib=1) for name in {workers!r}]
with DAG({dag!r}, schedule=None):
    train_on_fleet(
        fleet=Fleet(machines=machines, parameter_server=machines[0]),
        plan={{"workers": {{one.name: {{"samples": {part}, "batch_size": 4}} for one in machines}}}},
        server={{"cores": 0.3}},
        script={script!r},
        arguments=["{samples}", "{epochs}", "{rounds}"],
        deadline="{deadline_s:g}s",
        deadline_from="task",
    )
"""


class FailureRuns:
    """Runs of the DAG in which containers of its tasks are killed."""

    def __init__(self, airflow: AirflowProcess) -> None:
        self._airflow = airflow
        self._engine = connect()
        text = _DAG.format(
            workers=WORKERS,
            dag=DAG,
            part=SAMPLES // len(WORKERS),
            script=str(HERE / "edge" / "counted.py"),
            samples=SAMPLES,
            epochs=EPOCHS,
            rounds=ROUNDS,
            deadline_s=DEADLINE_S,
        )
        (airflow.dags_folder / "failures.py").write_text(text)

    def run(self, kills: Sequence[tuple[str, float]]) -> dict[str, Any]:
        """Run the DAG and kill containers; ``kills`` has a task and its further progress in percent for each kill."""
        run_id = self._airflow.run_dag(DAG)
        killed: list[tuple[str, float]] = []
        for task, further_pct in kills:
            before_pct = killed[-1][1] if killed else 0.0
            killed.append(self._kill(run_id, task, before_pct + further_pct))
        state = self._airflow.wait(DAG, run_id, timeout_s=600)
        states = self._airflow.task_states(DAG, run_id)
        result = self._airflow.xcom(DAG, run_id, "train.result") if state == "success" else {}
        return {
            "killed": [{"task": task, "at_pct": round(at_pct, 1)} for task, at_pct in killed],
            "state": state,
            "workers": {name: states[f"train.{name}"] for name in WORKERS},
            "error_pct": result.get("error_pct"),
            "wrong_samples": _count_wrong_samples(result.get("model")),
        }

    def _kill(self, run_id: str, task: str, at_pct: float) -> tuple[str, float]:
        def is_far_enough() -> bool:
            pace = self._airflow.task_state(DAG, run_id, f"train.{task}", "pace") or {}
            running = self._running_containers(task)
            return float(pace.get("progress_pct") or 0.0) >= at_pct and bool(running) and self._has_progress(running[0])

        _wait_until(is_far_enough, f"{task} does not reach {at_pct:.0f} %")
        (container,) = self._running_containers(task)
        self._engine.kill(container)
        # Wait for this container to end, so that the next kill hits the task's next container.
        _wait_until(lambda: not self._is_running(container), f"{task} does not end")
        pace = self._airflow.task_state(DAG, run_id, f"train.{task}", "pace") or {}
        return task, float(pace.get("progress_pct") or 0.0)

    def _running_containers(self, task: str) -> list[str]:
        labels = [f"paceline.dag={DAG}", f"paceline.task=train.{task}"]
        return [str(container["Id"]) for container in self._engine.containers(filters={"label": labels})]

    def _has_progress(self, container: str) -> bool:
        """Return whether the container has reported progress; only the loss of such a container counts as a failure."""
        started = self._engine.inspect_container(container)["State"]["StartedAt"]
        since_s = int(datetime.fromisoformat(started[:19] + "+00:00").timestamp())
        return b'"event":"progress"' in self._engine.logs(container, since=since_s)

    def _is_running(self, container: str) -> bool:
        return any(running["Id"] == container for running in self._engine.containers())


def _wait_until(condition: Callable[[], bool], error: str) -> None:
    give_up_s = time.monotonic() + 180
    while not condition():
        if time.monotonic() > give_up_s:
            raise TimeoutError(error)
        time.sleep(_POLL_S)


def _count_wrong_samples(model: str | None) -> int | None:
    """Return how many samples were not trained on exactly once in every epoch; None without a model."""
    import torch

    if model is None:
        return None
    counts = torch.load(Path(model) / "model.pt", weights_only=True)["counts"]
    return int((counts != EPOCHS).sum())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, print its summary and write the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failures", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=10, help="number of runs in which one worker is killed (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("build/failures"))
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    chosen = parser.parse_args(arguments)
    draw = random.Random(chosen.seed)
    plans = {f"a worker, {number + 1}": [(draw.choice(WORKERS), draw.uniform(2, 80))] for number in range(chosen.runs)}
    plans["a worker, three times"] = [("b", 5.0), ("b", 3.0), ("b", 3.0)]
    plans["the parameter server"] = [("parameter_server", draw.uniform(20, 80))]
    done: dict[str, Any] = {}
    try:
        with AirflowProcess(chosen.folder) as airflow:
            failure_runs = FailureRuns(airflow)
            for name, kills in tqdm(plans.items(), unit="run"):
                done[name] = failure_runs.run(kills)
                tqdm.write(f"{name}: {json.dumps(done[name])}")
    finally:
        DockerRuntime(connect).remove_all({"paceline.dag": DAG})  # containers of an interrupted run
    one = [done[name] for name in plans if name.startswith("a worker, ") and "times" not in name]
    summary = {
        "runs": len(done),
        "ended": sum(run["state"] == "success" for run in done.values()),
        "wrong_samples": sum(run["wrong_samples"] or 0 for run in done.values()),
        "latest_pct": max((run["error_pct"] for run in one if run["error_pct"] is not None), default=None),
        "excluded": done["a worker, three times"]["workers"]["b"],
    }
    print(json.dumps(summary, indent=1))
    if chosen.json:
        chosen.json.write_text(json.dumps({"runs": done, "summary": summary}, indent=1) + "\n")
    return 0 if summary["ended"] == summary["runs"] and not summary["wrong_samples"] else 1


if __name__ == "__main__":
    sys.exit(main())
