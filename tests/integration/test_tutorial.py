"""The tutorial's DAG behaves in a real Airflow as the tutorial says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo.airflow_process import AirflowProcess
from tests.integration.training.gates import TrainingTask

from paceline.airflow.cli import main

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


def _tutorial_files() -> dict[str, str]:
    """Return the contents of the files in the tutorial that a reader saves, by file name."""
    files = re.findall(r"Save this as `airflow/dags/([\w.]+)`.*?```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    return dict(files)


@pytest.fixture
def tutorial_dags(airflow: AirflowProcess) -> Iterator[None]:
    for name, text in _tutorial_files().items():
        (airflow.dags_folder / name).write_text(text)
    yield
    for name in _tutorial_files():
        (airflow.dags_folder / name).unlink()


def test_tutorial_trains_and_follows_a_new_deadline(
    airflow: AirflowProcess, tutorial_dags: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_AIRFLOW_URL", airflow.url)
    monkeypatch.setenv("PACELINE_AIRFLOW_USER", "admin")
    monkeypatch.setenv("PACELINE_AIRFLOW_PASSWORD", airflow.passwords["admin"])
    run_id = airflow.run_dag("tutorial", {"deadline": "10m"})
    training = TrainingTask(airflow, "tutorial", run_id)
    pace = training.wait_until(lambda pace: pace["state"] == "training")
    deadline_s = round(pace["t_s"]) + 100  # still in the future if the command is slow
    assert main(["deadline", "set", "tutorial", "latest", "train", f"{deadline_s}s"]) == 0
    assert airflow.wait("tutorial", run_id, timeout_s=600) == "success", training.log()
    result = training.result()
    assert result["deadline_s"] == deadline_s
    assert (Path(result["model"]) / "model.pt").exists()
