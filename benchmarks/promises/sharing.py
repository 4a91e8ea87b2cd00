"""Trainings share a pool of cores under an arbiter, in a real Airflow and real containers: their ends, and the pool.

Deadlines are multiples of what the trainings take here and now, which is measured before.
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
# Times as long as the work takes: for trainings that fit if cores are shared well; and for those that begin when there
# is little for them, or nobody to give it, and whose beginnings take the longer for it.
FITS, SPARE = 1.4, 1.8
LEAST = {f"{OURS}_night": 0.1, f"{OURS}_urgent": 1.0, f"{OURS}_at_once": 1.2}
NIGHT, URGENT, AT_ONCE = LEAST
SOON, ARBITER = f"{OURS}_soon", f"{OURS}_arbiter"
DAGS = """
from airflow.sdk import DAG
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator

for name, least in $least.items():
    with DAG(name, schedule=None, params={"deadline": "300s", "batches": 200}):
        DeadlineTrainingOperator(
            task_id="train",
            script=$script,
            image=$image,
            arguments=["--batches={{ params.batches }}", "--batch-size=64", "--checkpoint-every-s=2"],
            deadline="{{ params.deadline }}",
            deadline_from="task",
            min_devices=least,
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
    """Runs of trainings in the pool, and the most that they were given and held together."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.airflow = stage, stage.airflow
        counted = Path(__file__).parents[1] / "edge" / "counted.py"
        values = {"script": str(SCRIPTS / "digits.py"), "counted": str(counted), "cores": CORES, "pool": POOL}
        stage.dag("sharing", DAGS, **values, least=LEAST, soon=SOON, arbiter=ARBITER)
        self.most_given = self.most_held = 0.0
        self.states: list[str] = []

    def start(self, dag_id: str, deadline_s: float, batches: int = 200) -> str:
        """Start a training and return its run."""
        return self.airflow.run_dag(dag_id, {"deadline": f"{deadline_s:.1f}s", "batches": batches})

    def end(self, dag_id: str, run_id: str, timeout_s: float = 600) -> str:
        """Watch until a training has ended, and return how."""
        return self.airflow.wait(dag_id, run_id, timeout_s=timeout_s, each=self.look)

    def result(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """What a training that has ended well has returned."""
        result: dict[str, Any] = self.airflow.xcom(dag_id, run_id, "train")
        return result

    def takes_s(self, dag_id: str, batches: int = 200) -> float:
        """Seconds of a training with the pool for itself; it also is known from then on what it takes.

        Nobody can be promised what nobody knows.
        """
        self.stage.say("measuring what a training takes that has the pool for itself")
        run_id = self.start(dag_id, 300.0, batches)
        if self.end(dag_id, run_id) != "success":
            raise NotMeasuredError(f"{dag_id} failed with the pool for itself")
        return float(self.result(dag_id, run_id)["finished_s"])

    def look(self) -> None:
        """Look at the ceilings of all trainings of the pool, and at the quotas of their containers."""
        rows = self.airflow.pages(f"/pools/{quote(POOL)}/trainings")
        # One that has ended holds nothing, although its task has not tidied up yet.
        here = [row for row in rows if not row["pace"] or row["pace"]["state"] not in ("finished", "failed")]
        self.most_given = max(self.most_given, sum(row["ceiling"]["devices"] for row in here if row["ceiling"]))
        self.states = [row["pace"]["state"] for row in rows if row["pace"]]
        self.most_held = max(self.most_held, sum(self._quotas()))

    def train(self, number: int) -> None:
        """Wait until so many trainings train."""
        until(lambda: self.states.count("training") >= number, 120, f"{number} do not train", each=self.look)

    def above(self, of: str) -> Iterator[Reading]:
        """How far ceilings and quotas were above the pool, at most."""
        yield Reading("pool", self.most_given - CORES, f"{of}, ceilings")
        yield Reading("pool", self.most_held - CORES, f"{of}, quotas")

    def _quotas(self) -> Iterator[float]:
        import docker

        for one in self.stage.client.containers(filters={"label": "paceline.task=train", "status": "running"}):
            if not one["Labels"].get("paceline.dag", "").startswith(OURS):
                continue
            try:
                host = self.stage.client.inspect_container(one["Id"])["HostConfig"]
            except docker.errors.NotFound:
                continue  # it ended just now
            yield host["CpuQuota"] / host["CpuPeriod"]


def _short(dag_id: str) -> str:
    return dag_id.removeprefix(f"{OURS}_")


@contextmanager
def an_arbiter(stage: Stage) -> Iterator[str]:
    """The run of an arbiter that ends with the block, its process included: two would give the pool out twice."""
    run_id = stage.airflow.run_dag(ARBITER)
    try:
        yield run_id
    finally:
        stage.end_run(ARBITER, run_id)


@measures("crash", "pool", takes_s=(180, None), needs=("engine",))
def crash(stage: Stage) -> Iterator[Reading]:
    """Four trainings and an urgent fifth share the cores, whatever becomes of their arbiter."""
    sharing, airflow = Sharing(stage), stage.airflow
    with an_arbiter(stage) as arbiter:
        takes_s = sharing.takes_s(URGENT)
        all_s = (4 + 1) * takes_s / CORES
        stage.say(f"four trainings by {all_s * SPARE:.0f} s, then the arbiter is killed and an urgent fifth comes")
        runs = [(NIGHT, sharing.start(NIGHT, all_s * SPARE)) for _ in range(4)]
        sharing.train(3)
        # Its process is gone at once, as if its machine had failed: trainings keep what they have.
        os.kill(airflow.task_instance(ARBITER, arbiter, "arbiter")["pid"], signal.SIGKILL)
        # Airflow misses its heartbeat and starts it again; meanwhile nobody could be given anything.
        again = lambda: airflow.task_instance(ARBITER, arbiter, "arbiter")["try_number"] == 2  # noqa: E731
        until(again, 120, "the arbiter does not come back", each=sharing.look)
        runs.append((URGENT, sharing.start(URGENT, takes_s * SPARE)))
        for dag_id, run_id in runs:
            if sharing.end(dag_id, run_id, timeout_s=2 * all_s * SPARE) != "success":
                raise NotMeasuredError(f"{dag_id} {run_id} failed")
    for dag_id, run_id in runs:
        error_pct = sharing.result(dag_id, run_id)["error_pct"]
        # The urgent one may be early: at its least it holds more than it needs.
        yield Reading("crash", max(error_pct, 0.0) if dag_id == URGENT else error_pct, _short(dag_id))
    yield from sharing.above("crash")
    named = [f"{_short(dag_id)} {number}" for number, (dag_id, _) in enumerate(runs, start=1)]
    draw(airflow, [(name, *run) for name, run in zip(named, runs, strict=True)], CORES, stage.folder / "sharing.png")


@measures("tight", "pool", takes_s=(170, None), needs=("engine",))
def tight(stage: Stage) -> Iterator[Reading]:
    """Four trainings that would be far too late if cores were shared equally, and one that nobody can serve."""
    sharing, batches = Sharing(stage), 300
    with an_arbiter(stage):
        takes_s = sharing.takes_s(AT_ONCE, batches)
        # Shared equally, two would be done when all four are.
        deadlines_s = [2 * takes_s * FITS] * 2 + [4 * takes_s * FITS] * 2
        stage.say(f"four trainings by {deadlines_s[0]:.0f} and {deadlines_s[-1]:.0f} s")
        runs = [sharing.start(NIGHT, deadline_s, batches) for deadline_s in deadlines_s]
        sharing.train(2)
        hopeless = sharing.start(AT_ONCE, 1.05 * takes_s, batches)
        if sharing.end(AT_ONCE, hopeless, 120) != "failed":
            raise NotMeasuredError("a training whose deadline does not fit was let in")
        for run_id in runs:
            if sharing.end(NIGHT, run_id) != "success":
                raise NotMeasuredError(f"{NIGHT} {run_id} failed")
    for run_id, deadline_s in zip(runs, deadlines_s, strict=True):
        yield Reading("tight", sharing.result(NIGHT, run_id)["error_pct"], f"by {deadline_s:.0f} s")
    yield from sharing.above("tight")


@measures("beside", "pool", takes_s=(130, None), needs=("engine",))
def beside(stage: Stage) -> Iterator[Reading]:
    """A training without a deadline has what one with a deadline leaves it."""
    sharing = Sharing(stage)
    with an_arbiter(stage):
        takes_s = sharing.takes_s(URGENT)
        stage.say(f"a training without a deadline, then one by {takes_s * SPARE:.0f} s")
        soon = stage.airflow.run_dag(SOON)
        sharing.train(1)
        urgent = sharing.start(URGENT, takes_s * SPARE)
        if sharing.end(URGENT, urgent) != "success" or sharing.end(SOON, soon) != "success":
            raise NotMeasuredError("a training failed")
    yield Reading("beside", sharing.result(URGENT, urgent)["error_pct"])
    yield from sharing.above("beside")
