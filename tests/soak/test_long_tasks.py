"""Training lasts longer than the token with which its task's process calls Airflow: Airflow reissues the token.

The lifetime of the token is short here. By default, it is ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training.gates import TrainingTask, open_gates, temporary_dag
from tests.waiting import LONG_S, until

from paceline.contract import Ceiling

pytestmark = [pytest.mark.airflow, pytest.mark.docker, pytest.mark.timeout(1800)]

TOKEN_S, LEEWAY_S = 40, 10  # Airflow accepts a token for LEEWAY_S after its end
LIFETIMES_S = 3 * (TOKEN_S + LEEWAY_S)
SCRIPT = Path(__file__).parents[1] / "integration" / "training" / "endless.py"
DAG_ID = "long_tasks"
DAG = f"""
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG({DAG_ID!r}, schedule=None):
    training = dict(script={str(SCRIPT)!r}, arguments=["1_000_000"], deadline="2h", max_devices=0.1)
    DeadlineTrainingOperator(task_id="train", **training)
    DeadlineTrainingOperator(task_id="deferred", shared=True, deferrable=True, **training)
"""


@pytest.fixture
def airflow(tmp_path: Path, docker_host: str) -> Iterator[AirflowProcess]:
    """Yield an Airflow whose tokens are valid for ``TOKEN_S`` and that logs when it reissues one."""
    config = {
        "execution_api.jwt_expiration_time": TOKEN_S,
        "api_auth.jwt_leeway": LEEWAY_S,
        "logging.logging_level": "DEBUG",
    }
    with AirflowProcess(tmp_path / "airflow", config=config, environment={"DOCKER_HOST": docker_host}) as running:
        yield running


def test_training_outlasts_the_token_of_its_task(airflow: AirflowProcess, docker_client: docker.APIClient) -> None:
    with temporary_dag(airflow, DAG_ID, DAG):
        run_id = airflow.run_dag(DAG_ID)
        train, deferred = (TrainingTask(airflow, DAG_ID, run_id, name) for name in ("train", "deferred"))
        until(lambda: deferred.instance()["state"] == "deferred", deferred)
        deferred.wait_until(lambda pace: pace["state"] == "waiting" and pace["t_s"] > LIFETIMES_S)
        ceiling = Ceiling(0.1, 1).to_json()
        airflow.put_task_state(DAG_ID, run_id, "deferred", "ceiling", ceiling)
        granted_s = deferred.wait_until(lambda pace: pace["state"] == "training")["t_s"]
        for task, since_s in ((deferred, granted_s), (train, 0.0)):
            task.wait_until(lambda pace, since_s=since_s: pace["t_s"] > since_s + LIFETIMES_S)
            open_gates(docker_client, task.container, "finish")
        assert airflow.wait(DAG_ID, run_id, LONG_S) == "success"
    assert [task.instance()["try_number"] for task in (train, deferred)] == [1, 1]
    log = airflow.log_path("scheduler").read_text()  # the processes that supervise tasks write to it
    assert log.count("issued us a refreshed Task token") >= 6
