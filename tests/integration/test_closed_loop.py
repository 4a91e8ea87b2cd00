"""A scheduled check against the champion's training data, in a real Airflow: each change leads to one training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training import gates
from tests.waiting import LONG_S

from paceline.registry import FileRegistry

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1200)]

DAG = """
from pathlib import Path

from airflow.sdk import DAG, task
from paceline.registry import FileRegistry
from paceline.sensors import DriftSensor

with DAG("closed_loop", schedule=None, params={"day": "", "cooldown": "", "promote": True}):
    drift = DriftSensor(
        task_id="drift", reference="champion", model="churn", registry="FOLDER/registry",
        current="FOLDER/{{ params.day }}.parquet", cooldown="{{ params.cooldown }}", on_no_drift="skip",
    )

    @task
    def train(window, params):
        # Stands for training, evaluation and promotion.
        model = Path("FOLDER") / f"model-{params['day']}"
        model.mkdir(exist_ok=True)
        (model / "weights").write_text(params["day"])
        registry = FileRegistry("FOLDER/registry")
        version = registry.register(model, name="churn", data_window=window).version
        if params["promote"]:
            registry.promote("churn", version, reason="better")

    train(drift.output["window"])
"""


@pytest.fixture
def folder(airflow: AirflowProcess, tmp_path: Path):
    rng = np.random.default_rng(0)
    for day, shift in (("calm", 0.0), ("calm_again", 0.0), ("shifted", 1.0), ("shifted_again", 1.0), ("worse", 2.0)):
        frame = pd.DataFrame({"usage": rng.normal(shift, 1, 500), "age": rng.normal(40, 10, 500)})
        frame.to_parquet(tmp_path / f"{day}.parquet")
    with gates.temporary_dag(airflow, "closed_loop", DAG.replace("FOLDER", str(tmp_path))):
        yield tmp_path


def test_each_change_leads_to_one_training(airflow: AirflowProcess, folder: Path) -> None:
    def check(day: str, **params: object) -> str:
        """Run the DAG for a day. Return the reason of the sensor's decision, with a "+" before it if it trained."""
        run_id = airflow.run_dag("closed_loop", {"day": day, **params})
        assert airflow.wait("closed_loop", run_id, LONG_S) == "success"
        trained = airflow.task_states("closed_loop", run_id)["train"] == "success"
        summary = airflow.xcom("closed_loop", run_id, "drift")
        assert summary["retrain"] is trained
        return "+" * trained + summary["reason"]

    assert check("calm") == f"+churn has no champion yet in {folder}/registry."
    assert check("calm_again") == "No drift in 2 features."
    assert check("shifted", promote=False) == "+Drift in 1 of 2 features: usage."
    # The challenger was not promoted, so the drift persists and starts training again after the cooldown.
    held = check("shifted_again", cooldown="1d")
    assert held.startswith(
        "Drift in 1 of 2 features: usage. Training does not start: an earlier training job started at "
    )
    assert check("shifted_again", cooldown="0.001s") == "+Drift in 1 of 2 features: usage."
    assert check("shifted") == "No drift in 2 features."
    assert check("worse") == "+Drift in 1 of 2 features: usage."

    registry = FileRegistry(folder / "registry")
    assert [promotion.version for promotion in registry.history("churn")] == [1, 3, 4]
    champion = registry.champion("churn")
    assert champion is not None
    worse = f"{folder}/worse.parquet"
    state = champion.data_window["file_state"]  # of the file that the sensor has read
    assert champion.data_window == {
        "source": worse,
        "parameters": None,
        "conn_id": None,
        "file": worse,
        "file_state": state,
    }
