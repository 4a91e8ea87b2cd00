"""Training jobs of several DAGs share a pool in a real Airflow, in real containers, while their arbiter is killed.

The jobs need no torch and run until the test ends them (``training/endless.py``), so the test does not depend on the
machine's speed. ``benchmarks.promises`` measures how well deadlines are met under an arbiter.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.pool import PoolWatch, running_arbiter
from tests.integration.training.gates import TrainingTask, open_gates, temporary_dag
from tests.waiting import LONG_S, until

from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).parent / "training" / "endless.py"
POOL, CORES, URGENT = "shared_pool", 0.35, 0.2
DAGS = f"""
from airflow.sdk import DAG
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator

# While the urgent job runs, the pool has enough cores for only one night job.
for name, min_devices, max_devices in ("night_1", 0.1, 0.15), ("night_2", 0.1, 0.15), ("urgent", {URGENT}, {URGENT}):
    with DAG(name, schedule=None, params={{"deadline": "2h"}}):
        DeadlineTrainingOperator(
            task_id="train",
            script={str(SCRIPT)!r},
            arguments=["6000"],
            deadline="{{{{ params.deadline }}}}",
            deadline_from="task",
            min_devices=min_devices,
            max_devices=max_devices,
            on_infeasible="fail" if name == "urgent" else "best_effort",
            pool={POOL!r},
            labels={{"paceline.pool": {POOL!r}}},
            shared=True,
        )

with DAG("one_arbiter", schedule=None):
    ArbiterOperator(
        task_id="arbiter", pool={POOL!r}, devices={CORES}, conn_id="airflow_api", every=20, retry_delay=1
    )
"""


@pytest.fixture
def arbiter(airflow: AirflowProcess, docker_client: docker.APIClient) -> Iterator[TrainingTask]:
    """Yield the task of an arbiter that runs until the end of the test."""
    with temporary_dag(airflow, "one_arbiter", DAGS), running_arbiter(airflow, "one_arbiter") as run_id:
        yield TrainingTask(airflow, "one_arbiter", run_id, "arbiter")
    DockerRuntime(docker_client).remove_all({"paceline.pool": POOL})  # a failed test leaves containers


def test_pool_survives_killed_arbiter_and_rejects_infeasible_deadline(
    airflow: AirflowProcess, docker_client: docker.APIClient, arbiter: TrainingTask
) -> None:
    watch = PoolWatch(airflow, docker_client, POOL, CORES)

    def start_task(dag_id: str, deadline: str) -> TrainingTask:
        return TrainingTask(airflow, dag_id, airflow.run_dag(dag_id, {"deadline": deadline}))

    def let_job_finish(task: TrainingTask) -> None:
        open_gates(docker_client, task.container, "finish")

    def progress_pct(task: TrainingTask) -> float:
        return task.stored_value("pace")["progress_pct"]

    def arbiter_knows_speeds(*tasks: TrainingTask) -> bool:
        """Return whether the arbiter knows the speed of each task's job."""
        paces = [task.stored_value("pace") or {} for task in tasks]
        return all(pace.get("remaining") and pace["state"] == "training" for pace in paces)

    # Admission needs a known speed, so run the urgent job once beforehand, and end it after a few batches.
    urgent = start_task("urgent", "1h")
    watch.wait_until(lambda: arbiter_knows_speeds(urgent))
    nights = [start_task(name, "2h") for name in ("night_1", "night_2")]
    let_job_finish(urgent)
    assert airflow.wait("urgent", urgent.run_id, LONG_S, before_poll=watch.check) == "success"
    watch.wait_until(lambda: arbiter_knows_speeds(*nights))
    watch.wait_until(lambda: [cores for _, cores in watch.ceilings.values()] == [0.15, 0.15])  # both night jobs

    # Kill the arbiter's process, as if its machine had failed. The jobs keep their allocations and continue to train.
    before, so_far = watch.ceilings, [progress_pct(task) for task in nights]
    os.kill(arbiter.instance()["pid"], signal.SIGKILL)
    watch.wait_until(lambda: arbiter.instance()["try_number"] == 2)
    watch.wait_until(lambda: all(progress_pct(task) > at for task, at in zip(nights, so_far, strict=True)))
    assert watch.ceilings == before

    # The arbiter's next try knows the earlier grants and frees devices for the urgent job.
    urgent = start_task("urgent", "1h")
    watch.wait_until(lambda: watch.states.get(urgent.run_id) == "training")
    assert watch.ceilings[urgent.run_id][1] == URGENT
    preempted, trains = sorted(nights, key=lambda task: watch.ceilings[task.run_id][1])
    assert (watch.ceilings[preempted.run_id][1], watch.states[preempted.run_id]) == (0.0, "preempted")
    assert watch.states[trains.run_id] == "training"
    assert watch.ceilings[preempted.run_id][0] > before[preempted.run_id][0], "grant numbers continue"
    at = progress_pct(preempted)
    let_job_finish(urgent)
    assert airflow.wait("urgent", urgent.run_id, LONG_S, before_poll=watch.check) == "success"
    watch.wait_until(lambda: watch.states[preempted.run_id] == "training" and progress_pct(preempted) > at)

    # Make the urgent job's last run seem to take hours, so that a deadline of ten minutes is infeasible.
    result = urgent.result()
    result["learned"]["batches"] *= 10_000
    path = f"/dags/urgent/dagRuns/{urgent.run_id}/taskInstances/train/xcomEntries/return_value"
    airflow.api("PATCH", path, {"value": result})
    infeasible = start_task("urgent", "10m")
    assert airflow.wait("urgent", infeasible.run_id, LONG_S, before_poll=watch.check) == "failed"
    refusal = "deadline: 600 s cannot be promised beside the deadlines of other jobs, "
    refusal += "the earliest deadline that can be promised is "
    message = re.search(refusal + r"(\d+) s", infeasible.log())
    assert message is not None
    assert float(message[1]) > 3600

    for task in nights:
        let_job_finish(task)
    for task in nights:
        assert airflow.wait(task.dag_id, task.run_id, LONG_S, before_poll=watch.check) == "success"
        progress = [row[1] for row in task.stored_value("history")["samples"]]
        assert progress == sorted(progress), "no batch was trained twice"
    assert docker_client.containers(all=True, filters={"label": f"paceline.pool={POOL}"}) == []


def test_second_arbiter_waits_until_the_first_one_has_ended(airflow: AirflowProcess) -> None:
    dag = """
from airflow.sdk import DAG
from paceline.operators import ArbiterOperator

with DAG({!r}, schedule=None):
    ArbiterOperator(task_id="arbiter", pool="doubled_pool", devices=1, conn_id="airflow_api")
"""
    allocating = "Allocating the devices of the pool doubled_pool"
    names = ("first_arbiter", "second_arbiter")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(temporary_dag(airflow, name, dag.format(name)))
        with running_arbiter(airflow, names[0]) as run_id:
            first = TrainingTask(airflow, names[0], run_id, "arbiter")
            airflow.wait_for_task(names[0], run_id, "arbiter", timeout_s=LONG_S)
            until(lambda: allocating in first.log())
            second_id = stack.enter_context(running_arbiter(airflow, names[1]))
            second = TrainingTask(airflow, names[1], second_id, "arbiter")
            airflow.wait_for_task(names[1], second_id, "arbiter", timeout_s=LONG_S)
            until(lambda: f"The arbiter {names[0]} {run_id} arbiter allocates the pool" in second.log())
            assert allocating not in second.log()
        until(lambda: allocating in second.log())
