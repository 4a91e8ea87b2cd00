"""Measures jobs that share a pool of cores under an arbiter, in a real Airflow and real containers.

Deadlines are multiples of the jobs' durations, which are measured first.
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
from benchmarks.promises.stage import DIGITS, OURS, NotMeasuredError, Stage, wait_until

POOL, CORES = OURS, 1.2
# Deadlines relative to the work, for jobs that need well-shared cores, and for jobs that start slowly because few cores
# are free or the arbiter is not running.
TIGHT_FACTOR, LOOSE_FACTOR = 1.4, 1.8
MIN_DEVICES = {f"{OURS}_night": 0.1, f"{OURS}_urgent": 1.0, f"{OURS}_infeasible": 1.2}
NIGHT, URGENT, INFEASIBLE = MIN_DEVICES
NO_DEADLINE, ARBITER = f"{OURS}_no_deadline", f"{OURS}_arbiter"
DAGS = """
from airflow.sdk import DAG
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator, Docker

for name, min_devices in $min_devices.items():
    with DAG(name, schedule=None, params={"deadline": "300s", "batches": 200}):
        DeadlineTrainingOperator(
            task_id="train",
            script=$script,
            runtime=Docker(image=$image),
            arguments=["--batches={{ params.batches }}", "--batch-size=64", "--checkpoint-every-s=2"],
            deadline="{{ params.deadline }}",
            deadline_from="task",
            min_devices=min_devices,
            max_devices=$cores,
            on_infeasible="fail" if name.endswith("infeasible") else "best_effort",
            pool=$pool,
            shared=True,
        )

with DAG($no_deadline, schedule=None):
    DeadlineTrainingOperator(
        task_id="train",
        script=$counted,
        runtime=Docker(image=$image),
        arguments=["200", "30", "25"],
        team={},
        max_devices=$cores,
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
    """Runs jobs in the pool, and records the largest sums of their ceilings and quotas."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.airflow = stage, stage.airflow
        counted = Path(__file__).parents[1] / "edge" / "counted.py"
        values = {"script": str(DIGITS), "counted": str(counted), "cores": CORES, "pool": POOL}
        stage.dag("sharing", DAGS, **values, min_devices=MIN_DEVICES, no_deadline=NO_DEADLINE, arbiter=ARBITER)
        self.max_ceilings = self.max_quotas = 0.0
        self.states: list[str] = []

    def start(self, dag_id: str, deadline_s: float, batches: int = 200) -> str:
        """Start a job; return the id of its DAG run."""
        return self.airflow.run_dag(dag_id, {"deadline": f"{deadline_s:.1f}s", "batches": batches})

    def wait_for_end(self, dag_id: str, run_id: str, timeout_s: float = 600) -> str:
        """Wait until a DAG run ends, recording allocations meanwhile; return its state."""
        return self.airflow.wait(dag_id, run_id, timeout_s=timeout_s, before_poll=self.read_allocations)

    def result(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return the result of a successful job."""
        result: dict[str, Any] = self.airflow.xcom(dag_id, run_id, "train")
        return result

    def duration_s(self, dag_id: str, batches: int = 200) -> float:
        """Return the duration in seconds of a job that runs alone in the pool.

        The measurements of this job also allow an admission decision for later runs.
        """
        self.stage.log("measuring the duration of a job alone in the pool")
        run_id = self.start(dag_id, 300.0, batches)
        if self.wait_for_end(dag_id, run_id) != "success":
            raise NotMeasuredError(f"{dag_id} failed alone in the pool")
        return float(self.result(dag_id, run_id)["finished_s"])

    def read_allocations(self) -> None:
        """Read the ceilings of all jobs in the pool and the quotas of their containers."""
        rows = self.airflow.pages(f"/pools/{quote(POOL)}/jobs")["jobs"]
        # A finished job has no allocation, even before its task has cleaned up.
        active = [row for row in rows if not row["pace"] or row["pace"]["state"] not in ("finished", "failed")]
        self.max_ceilings = max(self.max_ceilings, sum(row["ceiling"]["devices"] for row in active if row["ceiling"]))
        self.states = [row["pace"]["state"] for row in rows if row["pace"]]
        self.max_quotas = max(self.max_quotas, sum(self._quotas()))

    def wait_for_training(self, number: int) -> None:
        """Wait until ``number`` jobs are training."""
        wait_until(
            lambda: self.states.count("training") >= number,
            120,
            f"{number} jobs do not train",
            between_checks=self.read_allocations,
        )

    def excess_readings(self, of: str) -> Iterator[Reading]:
        """Return the largest excess of the ceilings and of the quotas over the pool."""
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
                continue  # the container has just ended
            yield host["CpuQuota"] / host["CpuPeriod"]


def _short_name(dag_id: str) -> str:
    return dag_id.removeprefix(f"{OURS}_")


@contextmanager
def running_arbiter(stage: Stage) -> Iterator[str]:
    """Run an arbiter during the block, and end its process: two arbiters would over-allocate the pool."""
    run_id = stage.airflow.run_dag(ARBITER)
    try:
        yield run_id
    finally:
        stage.end_run(ARBITER, run_id)


@measures("crash", "pool", takes_s=(180, None), needs=("engine",))
def crash(stage: Stage) -> Iterator[Reading]:
    """Run four jobs and an urgent fifth that share the cores, and kill their arbiter."""
    sharing, airflow = Sharing(stage), stage.airflow
    with running_arbiter(stage) as arbiter:
        takes_s = sharing.duration_s(URGENT)
        all_s = (4 + 1) * takes_s / CORES
        stage.log(
            f"four jobs with a deadline of {all_s * LOOSE_FACTOR:.0f} s; then the arbiter is killed, and a fifth starts"
        )
        runs = [(NIGHT, sharing.start(NIGHT, all_s * LOOSE_FACTOR)) for _ in range(4)]
        sharing.wait_for_training(3)
        # The arbiter's process ends immediately, as if its machine had failed. Jobs keep their allocations.
        os.kill(airflow.task_instance(ARBITER, arbiter, "arbiter")["pid"], signal.SIGKILL)
        # Airflow misses the heartbeats and restarts the arbiter. Until then, no job gets a grant.
        restarted = lambda: airflow.task_instance(ARBITER, arbiter, "arbiter")["try_number"] == 2  # noqa: E731
        wait_until(restarted, 120, "the arbiter is not restarted", between_checks=sharing.read_allocations)
        runs.append((URGENT, sharing.start(URGENT, takes_s * LOOSE_FACTOR)))
        for dag_id, run_id in runs:
            if sharing.wait_for_end(dag_id, run_id, timeout_s=2 * all_s * LOOSE_FACTOR) != "success":
                raise NotMeasuredError(f"{dag_id} {run_id} failed")
    for dag_id, run_id in runs:
        error_pct = sharing.result(dag_id, run_id)["error_pct"]
        # The urgent job may be early, because its minimum allocation is more than it needs.
        yield Reading("crash", max(error_pct, 0.0) if dag_id == URGENT else error_pct, _short_name(dag_id))
    yield from sharing.excess_readings("crash")
    named = [f"{_short_name(dag_id)} {number}" for number, (dag_id, _) in enumerate(runs, start=1)]
    draw(airflow, [(name, *run) for name, run in zip(named, runs, strict=True)], CORES, stage.folder / "sharing.png")


@measures("tight", "pool", takes_s=(170, None), needs=("engine",))
def tight(stage: Stage) -> Iterator[Reading]:
    """Run four jobs that would miss their deadlines with equal shares, and a job with an infeasible deadline."""
    sharing, batches = Sharing(stage), 300
    with running_arbiter(stage):
        takes_s = sharing.duration_s(INFEASIBLE, batches)
        # With equal shares, all four jobs would end at the same time.
        deadlines_s = [2 * takes_s * TIGHT_FACTOR] * 2 + [4 * takes_s * TIGHT_FACTOR] * 2
        stage.log(f"four jobs with deadlines of {deadlines_s[0]:.0f} and {deadlines_s[-1]:.0f} s")
        runs = [sharing.start(NIGHT, deadline_s, batches) for deadline_s in deadlines_s]
        sharing.wait_for_training(2)
        infeasible = sharing.start(INFEASIBLE, 1.05 * takes_s, batches)
        if sharing.wait_for_end(INFEASIBLE, infeasible, 120) != "failed":
            raise NotMeasuredError("a job with an infeasible deadline was admitted")
        for run_id in runs:
            if sharing.wait_for_end(NIGHT, run_id) != "success":
                raise NotMeasuredError(f"{NIGHT} {run_id} failed")
    for run_id, deadline_s in zip(runs, deadlines_s, strict=True):
        yield Reading("tight", sharing.result(NIGHT, run_id)["error_pct"], f"deadline {deadline_s:.0f} s")
    yield from sharing.excess_readings("tight")


@measures("without-deadline", "pool", takes_s=(130, None), needs=("engine",))
def alongside(stage: Stage) -> Iterator[Reading]:
    """Run a job without a deadline on the cores that a job with a deadline does not use."""
    sharing = Sharing(stage)
    with running_arbiter(stage):
        takes_s = sharing.duration_s(URGENT)
        stage.log(f"a job without a deadline, then a job with a deadline of {takes_s * LOOSE_FACTOR:.0f} s")
        unlimited = stage.airflow.run_dag(NO_DEADLINE)
        sharing.wait_for_training(1)
        urgent = sharing.start(URGENT, takes_s * LOOSE_FACTOR)
        if (
            sharing.wait_for_end(URGENT, urgent) != "success"
            or sharing.wait_for_end(NO_DEADLINE, unlimited) != "success"
        ):
            raise NotMeasuredError("a job failed")
    yield Reading("without-deadline", sharing.result(URGENT, urgent)["error_pct"])
    yield from sharing.excess_readings("without-deadline")
