"""In a real Airflow, private environment variables reach the job, and no file of Airflow contains their values."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training import gates
from tests.integration.training.gates import TrainingTask
from tests.waiting import LONG_S, until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

DAG = """
from pathlib import Path
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

def report_failure(context):
    (Path("FOLDER") / "reported").write_text(str(context["exception"]))

variables = {
    "PASSWORD": "{{ conn.private_store.password }}",
    "KEY": "{{ read('FOLDER/key') }}",
    "DIGITS": "{{ read('FOLDER/digits') }}",
}
job = dict(script="show.py", deadline="1h", runtime="process", private_environment=variables)
with DAG(
    "private", schedule=None, render_template_as_native_obj=True,
    user_defined_macros={"read": lambda path: Path(path).read_text()},
):
    DeadlineTrainingOperator(task_id="train", arguments=["FOLDER"], **job)
    DeadlineTrainingOperator.partial(
        task_id="mapped", retries=0, on_failure_callback=report_failure, **job
    ).expand(arguments=[["--fail"]])
"""
SCRIPT = """
import os, sys, time
from pathlib import Path
from paceline.train import track

def show():
    for name in ("PASSWORD", "KEY", "DIGITS"):
        print("shows", name, os.environ[name], flush=True)

show()
if sys.argv[1] == "--fail":
    sys.exit(3)
for number in track(range(2)):
    while not (Path(sys.argv[1]) / "gate").exists():
        time.sleep(0.05)
expected = [(Path(sys.argv[1]) / name).read_text() for name in ("key", "digits")]
assert [os.environ[name] for name in ("KEY", "DIGITS")] == expected
show()
"""
SECRETS = {"key": "-- begin of wheat --\nfield-of-wheat-1\nfield-of-wheat-2\n", "digits": "000123456789"}
PASSWORD = "opensesame-7"


@pytest.fixture
def folder(airflow: AirflowProcess, tmp_path: Path) -> Iterator[Path]:
    """Add the DAG above, its script and its secrets; yield a folder that does not belong to Airflow."""
    for name, value in SECRETS.items():
        (tmp_path / name).write_text(value)
    connection = {"connection_id": "private_store", "conn_type": "generic", "password": PASSWORD}
    airflow.api("POST", "/connections", connection)
    (airflow.dags_folder / "show.py").write_text(SCRIPT)
    with gates.temporary_dag(airflow, "private", DAG.replace("FOLDER", str(tmp_path))):
        yield tmp_path
    airflow.api("DELETE", "/connections/private_store")


def test_private_values_reach_the_job_and_are_masked_everywhere(airflow: AirflowProcess, folder: Path) -> None:
    task = TrainingTask(airflow, "private", airflow.run_dag("private"))
    until(lambda: task.instance()["state"] == "running" and "shows DIGITS" in task.log(1))
    os.kill(task.instance()["pid"], signal.SIGKILL)
    until(lambda: task.instance()["try_number"] == 2 and "taking it over" in task.log(2))
    (folder / "gate").touch()
    assert airflow.wait("private", task.run_id, LONG_S) == "failed"  # because of the mapped task
    assert task.instance()["state"] == "success", task.log(2)

    mapped = airflow.task_log("private", task.run_id, "mapped", map_index=0)
    reported = (folder / "reported").read_text()
    for text in (task.log(1), task.log(2), mapped, reported):
        assert "shows PASSWORD ***" in text
        assert "shows KEY ***" in text
        assert "shows DIGITS ***" in text
    assert "exit code 3" in reported
    secrets = [PASSWORD, SECRETS["digits"], *SECRETS["key"].split("\n")[:-1]]
    assert [one for one in secrets if one in reported] == []
    for file in (path for path in airflow.home.rglob("*") if path.is_file()):  # logs and the database
        content = file.read_bytes()
        assert [one for one in secrets if one.encode() in content] == [], file
