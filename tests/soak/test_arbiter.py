"""Real training jobs under an arbiter, with random deadlines, an urgent job, and a killed arbiter.

``benchmarks.promises`` measures how well deadlines are met.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.pool import PoolWatch, running_arbiter
from tests.integration.training.gates import TrainingTask, temporary_dag

from paceline.runtime import DockerRuntime

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(3600)]

SCRIPT = Path(__file__).parents[1] / "integration" / "training" / "digits.py"
POOL, CORES = "loaded_pool", 1.2
MIN_DEVICES = {"night": 0.1, "urgent": 1.0}
SPARE = 1.8  # deadlines, as a multiple of the time that the work takes on all cores
DAGS = f"""
from airflow.sdk import DAG
from paceline.operators import ArbiterOperator, DeadlineTrainingOperator

for name, min_devices in {MIN_DEVICES!r}.items():
    with DAG(name, schedule=None, params={{"deadline": "10m"}}):
        DeadlineTrainingOperator(
            task_id="train",
            script={str(SCRIPT)!r},
            arguments=["--batches=200", "--batch-size=64", "--checkpoint-every-s=2"],
            deadline="{{{{ params.deadline }}}}",
            deadline_from="task",
            min_devices=min_devices,
            max_devices={CORES},
            pool={POOL!r},
            labels={{"paceline.pool": {POOL!r}}},
            shared=True,
        )

with DAG("arbiter", schedule=None):
    ArbiterOperator(task_id="arbiter", pool={POOL!r}, devices={CORES}, conn_id="airflow_api", every=20, retry_delay=1)
"""


@pytest.fixture(scope="session")
def arbiter_dags(airflow: AirflowProcess) -> Iterator[None]:
    with temporary_dag(airflow, "arbiter", DAGS):
        yield


@pytest.fixture
def arbiter(airflow: AirflowProcess, arbiter_dags: None, docker_client: docker.APIClient) -> Iterator[TrainingTask]:
    with running_arbiter(airflow, "arbiter") as run_id:
        yield TrainingTask(airflow, "arbiter", run_id, "arbiter")
    DockerRuntime(docker_client).remove_all({"paceline.pool": POOL})


def test_pool_with_random_deadlines_survives_a_killed_arbiter(
    airflow: AirflowProcess, docker_client: docker.APIClient, arbiter: TrainingTask, rng: random.Random
) -> None:
    watch = PoolWatch(airflow, docker_client, POOL, CORES)

    def start_run(dag_id: str, deadline_s: float) -> str:
        return airflow.run_dag(dag_id, {"deadline": f"{deadline_s:.1f}s"})

    first = start_run("urgent", 600)  # measure the machine's speed to choose deadlines
    assert airflow.wait("urgent", first, timeout_s=1800, before_poll=watch.check) == "success"
    urgent_s = float(airflow.xcom("urgent", first, "train")["finished_s"])
    all_jobs_s = SPARE * (4 + 1) * urgent_s / CORES
    runs = {"night": [start_run("night", all_jobs_s * rng.uniform(0.7, 1.3)) for _ in range(4)]}
    running_jobs = rng.randint(1, 3)  # number of running jobs when the arbiter is killed
    watch.wait_until(lambda: list(watch.states.values()).count("training") >= running_jobs)
    os.kill(arbiter.instance()["pid"], signal.SIGKILL)
    watch.wait_until(lambda: arbiter.instance()["try_number"] == 2)
    runs["urgent"] = [start_run("urgent", urgent_s * SPARE)]
    for dag_id, ids in runs.items():
        for run_id in ids:
            assert airflow.wait(dag_id, run_id, timeout_s=10 * all_jobs_s, before_poll=watch.check) == "success"
    assert docker_client.containers(all=True, filters={"label": f"paceline.pool={POOL}"}) == []
