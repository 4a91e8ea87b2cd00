"""Measures trainings that share a pool of cores under an arbiter, in a real Airflow and real containers.

Deadlines are multiples of the trainings' durations, which are measured first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.promises.picture import draw
from benchmarks.promises.registry import Reading, measures
from benchmarks.promises.stage import OURS, SCRIPTS, NotMeasuredError, Stage, until

POOL, CORES = OURS, 1.2
# Deadlines relative to the work: for trainings that are feasible if cores are shared well; and for trainings that start
# slowly, because few cores are free or the arbiter is not running.
FITS, SPARE = 1.4, 1.8
MIN_DEVICES = {f"{OURS}_night": 0.1, f"{OURS}_urgent": 1.0, f"{OURS}_at_once": 1.2}
NIGHT, URGENT, AT_ONCE = MIN_DEVICES
SOON, ARBITER = f"{OURS}_soon", f"{OURS}_arbiter"
DAGS = """
from airflow.sdk import DAG
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator

for name, min_devices in $min_devices.items():
    with DAG(name, schedule=None, params={"deadline": "300s", "batches": 200}):
        DeadlineTrainingOperator(
            task_id="train",
            script=$script,
            image=$image,
            arguments=["--batches={{ params.batches }}", "--batch-size=64", "--checkpoint-every-s=2"],
            deadline="{{ params.deadline }}",
            deadline_from="task",
            min_devices=min_devices,
            max_devices=$cores,
            on_infeasible="fail" if name.endswith("at_once") else "best_effort",
            pool=$pool,
            shared=True,
        )

with DAG($soon, schedule=None):
    DeadlineTrainingOperator(
        task_id="train",
        script=$counted,
        image=$image,
        arguments=["200", "30", "25"],
        objective="throughput",
        budget=$cores,
        pool=$pool,
        shared=True,
    )

with DAG($arbiter, schedule=None):
    ArbiterOperator(
        task_id="arbiter", pool=$pool, devices=$cores, conn_id="airflow_api", every=20, lifetime=1200, retries=3,
        retry_delay=1,
    )
"""


class Sharing:
    """Runs trainings in the pool and records their largest total of ceilings and of quotas."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.airflow = stage, stage.airflow
        counted = Path(__file__).parents[1] / "edge" / "counted.py"
        values = {"script": str(SCRIPTS / "digits.py"), "counted": str(counted), "cores": CORES, "pool": POOL}
        stage.dag("sharing", DAGS, **values, min_devices=MIN_DEVICES, soon=SOON, arbiter=ARBITER)
        self.max_ceilings = self.max_quotas = 0.0
        self.states: list[str] = []

    def start(self, dag_id: str, deadline_s: float, batches: int = 200) -> str:
        """Start a training; return its run."""
        return self.airflow.run_dag(dag_id, {"deadline": f"{deadline_s:.1f}s", "batches": batches})

    def end(self, dag_id: str, run_id: str, timeout_s: float = 600) -> str:
        """Watch a training until its end; return its state."""
        return self.airflow.wait(dag_id, run_id, timeout_s=timeout_s, each=self.read)

    def result(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return the result of a successful training."""
        result: dict[str, Any] = self.airflow.xcom(dag_id, run_id, "train")
        return result

    def duration_s(self, dag_id: str, batches: int = 200) -> float:
        """Return the seconds of a training alone in the pool.

        Its measurements also make the admission of later runs possible.
        """
        self.stage.log("measuring the duration of a training alone in the pool")
        run_id = self.start(dag_id, 300.0, batches)
        if self.end(dag_id, run_id) != "success":
            raise NotMeasuredError(f"{dag_id} failed alone in the pool")
        return float(self.result(dag_id, run_id)["finished_s"])

    def read(self) -> None:
        """Read the ceilings of all trainings of the pool and the quotas of their containers."""
        rows = self.airflow.pages(f"/pools/{quote(POOL)}/trainings")
        # A finished training has no allocation, even before its task has cleaned up.
        active = [row for row in rows if not row["pace"] or row["pace"]["state"] not in ("finished", "failed")]
        self.max_ceilings = max(self.max_ceilings, sum(row["ceiling"]["devices"] for row in active if row["ceiling"]))
        self.states = [row["pace"]["state"] for row in rows if row["pace"]]
        self.max_quotas = max(self.max_quotas, sum(self._quotas()))

    def wait_for_training(self, number: int) -> None:
        """Wait until ``number`` trainings train."""
        until(lambda: self.states.count("training") >= number, 120, f"{number} do not train", each=self.read)

    def above(self, of: str) -> Iterator[Reading]:
        """Return the largest excess of ceilings and of quotas over the pool."""
        yield Reading("pool", self.max_ceilings - CORES, f"{of}, ceilings")
        yield Reading("pool", self.max_quotas - CORES, f"{of}, quotas")

    def _quotas(self) -> Iterator[float]:
        import docker

        for one in self.stage.client.containers(filters={"label": "paceline.task=train", "status": "running"}):
            if not one["Labels"].get("paceline.dag", "").startswith(OURS):
                continue
            try:
                host = self.stage.client.inspect_container(one["Id"])["HostConfig"]
            except docker.errors.NotFound:
                continue  # it has just ended
            yield host["CpuQuota"] / host["CpuPeriod"]


def _short(dag_id: str) -> str:
    return dag_id.removeprefix(f"{OURS}_")


@contextmanager
def running_arbiter(stage: Stage) -> Iterator[str]:
    """Run an arbiter during the block; its process ends with it, as two arbiters would over-allocate the pool."""
    run_id = stage.airflow.run_dag(ARBITER)
    try:
        yield run_id
    finally:
        stage.end_run(ARBITER, run_id)


@measures("crash", "pool", takes_s=(180, None), needs=("engine",))
def crash(stage: Stage) -> Iterator[Reading]:
    """Four trainings and an urgent fifth share the cores while their arbiter is killed."""
    sharing, airflow = Sharing(stage), stage.airflow
    with running_arbiter(stage) as arbiter:
        takes_s = sharing.duration_s(URGENT)
        all_s = (4 + 1) * takes_s / CORES
        stage.log(f"four trainings by {all_s * SPARE:.0f} s, then the arbiter is killed and an urgent fifth starts")
        runs = [(NIGHT, sharing.start(NIGHT, all_s * SPARE)) for _ in range(4)]
        sharing.wait_for_training(3)
        # The process ends at once, as if its machine had failed: trainings keep their allocations.
        os.kill(airflow.task_instance(ARBITER, arbiter, "arbiter")["pid"], signal.SIGKILL)
        # Airflow misses the heartbeat and restarts the arbiter; until then no training gets a grant.
        restarted = lambda: airflow.task_instance(ARBITER, arbiter, "arbiter")["try_number"] == 2  # noqa: E731
        until(restarted, 120, "the arbiter is not restarted", each=sharing.read)
        runs.append((URGENT, sharing.start(URGENT, takes_s * SPARE)))
        for dag_id, run_id in runs:
            if sharing.end(dag_id, run_id, timeout_s=2 * all_s * SPARE) != "success":
                raise NotMeasuredError(f"{dag_id} {run_id} failed")
    for dag_id, run_id in runs:
        error_pct = sharing.result(dag_id, run_id)["error_pct"]
        # The urgent training may be early: its minimum is more than it needs.
        yield Reading("crash", max(error_pct, 0.0) if dag_id == URGENT else error_pct, _short(dag_id))
    yield from sharing.above("crash")
    named = [f"{_short(dag_id)} {number}" for number, (dag_id, _) in enumerate(runs, start=1)]
    draw(airflow, [(name, *run) for name, run in zip(named, runs, strict=True)], CORES, stage.folder / "sharing.png")


@measures("tight", "pool", takes_s=(170, None), needs=("engine",))
def tight(stage: Stage) -> Iterator[Reading]:
    """Four trainings that would miss their deadlines with equal shares, and one with an infeasible deadline."""
    sharing, batches = Sharing(stage), 300
    with running_arbiter(stage):
        takes_s = sharing.duration_s(AT_ONCE, batches)
        # With equal shares, all four would end at the same time.
        deadlines_s = [2 * takes_s * FITS] * 2 + [4 * takes_s * FITS] * 2
        stage.log(f"four trainings by {deadlines_s[0]:.0f} and {deadlines_s[-1]:.0f} s")
        runs = [sharing.start(NIGHT, deadline_s, batches) for deadline_s in deadlines_s]
        sharing.wait_for_training(2)
        infeasible = sharing.start(AT_ONCE, 1.05 * takes_s, batches)
        if sharing.end(AT_ONCE, infeasible, 120) != "failed":
            raise NotMeasuredError("a training with an infeasible deadline was admitted")
        for run_id in runs:
            if sharing.end(NIGHT, run_id) != "success":
                raise NotMeasuredError(f"{NIGHT} {run_id} failed")
    for run_id, deadline_s in zip(runs, deadlines_s, strict=True):
        yield Reading("tight", sharing.result(NIGHT, run_id)["error_pct"], f"by {deadline_s:.0f} s")
    yield from sharing.above("tight")


@measures("beside", "pool", takes_s=(130, None), needs=("engine",))
def beside(stage: Stage) -> Iterator[Reading]:
    """A training without a deadline uses what one with a deadline leaves."""
    sharing = Sharing(stage)
    with running_arbiter(stage):
        takes_s = sharing.duration_s(URGENT)
        stage.log(f"a training without a deadline, then one by {takes_s * SPARE:.0f} s")
        soon = stage.airflow.run_dag(SOON)
        sharing.wait_for_training(1)
        urgent = sharing.start(URGENT, takes_s * SPARE)
        if sharing.end(URGENT, urgent) != "success" or sharing.end(SOON, soon) != "success":
            raise NotMeasuredError("a training failed")
    yield Reading("beside", sharing.result(URGENT, urgent)["error_pct"])
    yield from sharing.above("beside")
