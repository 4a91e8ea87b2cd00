"""In a real Airflow with the OpenLineage provider, the events connect the window of data with the champion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training import gates
from tests.waiting import LONG_S, until

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

DAG = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator, EvaluateOperator, PromoteOperator
from paceline.sensors import DriftSensor

with DAG("lineage", schedule=None):
    calm = DriftSensor(
        task_id="calm", reference="FOLDER/before.parquet", current="FOLDER/calm.parquet", on_no_drift="skip"
    )
    drift = DriftSensor(
        task_id="drift", reference="FOLDER/before.parquet", current="FOLDER/after.parquet", on_no_drift="skip"
    )
    train = DeadlineTrainingOperator(
        task_id="train", script="train.py", inputs={"after.parquet": "FOLDER/after.parquet"}, deadline="1h",
        runtime="process", output="FOLDER/model",
    )
    evaluate = EvaluateOperator(
        task_id="evaluate", model="churn", registry="FOLDER/registry", script="score.py", metric="auc",
        challenger="{{ ti.xcom_pull('train')['model'] }}", data={"holdout": "FOLDER/before.parquet"},
        data_window=drift.output["window"], runtime="process",
    )
    promote = PromoteOperator(task_id="promote", registry="FOLDER/registry", evaluation=evaluate.output)
    drift >> train >> evaluate >> promote
"""
SCRIPTS = {
    "train.py": """
from paceline.train import input_dir, output_dir, track
for batch in track([1] * 20):
    pass
(output_dir() / "weights").write_bytes((input_dir() / "after.parquet").read_bytes())
""",
    "score.py": "from paceline.train import report\nreport(auc=0.7)\n",
}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowProcess]:
    """Yield an Airflow whose OpenLineage provider writes each event to a file of its own, ``events/…json``."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "events").mkdir()
    config = {
        "openlineage.transport": json.dumps({"type": "file", "log_file_path": str(home / "events" / "event")}),
        "openlineage.execution_timeout": int(LONG_S),  # the listener kills a process that takes longer
        "scheduler.task_instance_heartbeat_timeout": 120,
    }
    with AirflowProcess(home, config=config) as running:
        yield running


@pytest.fixture
def folder(airflow: AirflowProcess, tmp_path: Path) -> Iterator[Path]:
    """Add the DAG above, its scripts and its data; yield the folder of the data."""
    rng = np.random.default_rng(0)
    for name, shift in (("before", 0.0), ("calm", 0.0), ("after", 1.0)):
        frame = pd.DataFrame({"usage": rng.normal(shift, 1, 500), "age": rng.normal(40, 10, 500)})
        frame.to_parquet(tmp_path / f"{name}.parquet")
    for name, text in SCRIPTS.items():
        (airflow.dags_folder / name).write_text(text)
    with gates.temporary_dag(airflow, "lineage", DAG.replace("FOLDER", str(tmp_path))):
        yield tmp_path


def _events_at_the_end_of_tasks(airflow: AirflowProcess) -> dict[str, Any]:
    """Return the event of each completed task by the task's id."""
    texts = [path.read_text() for path in (airflow.home / "events").iterdir()]
    events = [json.loads(text) for text in texts if text.endswith("\n")]  # otherwise, it is being written
    ended = [event for event in events if event["eventType"] == "COMPLETE"]
    return {event["job"]["name"].removeprefix("lineage."): event for event in ended}


def test_events_connect_the_window_with_the_champion(airflow: AirflowProcess, folder: Path) -> None:
    run_id = airflow.run_dag("lineage")
    assert airflow.wait("lineage", run_id, LONG_S) == "success"
    tasks = {"calm", "drift", "train", "evaluate", "promote"}
    # A task reports its state to Airflow before it emits its last event.
    until(lambda: tasks <= _events_at_the_end_of_tasks(airflow).keys(), tasks)
    events = _events_at_the_end_of_tasks(airflow)

    def output_of(dataset: tuple[str, str], task: str) -> tuple[str, str]:
        """Return the only dataset that the task writes; the task has to read ``dataset``."""
        event = events[task]
        assert dataset in [(one["namespace"], one["name"]) for one in event["inputs"]]
        (output,) = event["outputs"]
        return output["namespace"], output["name"]

    window = ("file", f"{folder}/after.parquet")
    assert window in [(one["namespace"], one["name"]) for one in events["drift"]["inputs"]]
    model = output_of(window, "train")
    assert model == ("file", f"{folder}/model")
    version = output_of(model, "evaluate")
    assert version == output_of(window, "evaluate") == (f"file://{folder}/registry", "churn")
    assert output_of(version, "promote") == (f"file://{folder}/registry", "churn/champion")
    for task in ("evaluate", "promote"):
        assert events[task]["outputs"][0]["facets"]["version"]["datasetVersion"] == "1"

    report = events["drift"]["run"]["facets"]["paceline_drift"]
    assert (report["verdict"], report["referenceRows"], report["currentRows"]) == ("drift", 500, 500)
    assert [feature["name"] for feature in report["driftedFeatures"]] == ["usage"]
    calm = events["calm"]["run"]["facets"]["paceline_drift"]
    assert (calm["verdict"], calm["retrain"]) == ("no drift", False), "a skipped sensor reports its verdict"
