"""The DAG for the reader's own CSV file behaves in a real Airflow as its tutorial says."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo.airflow_process import AirflowProcess

from paceline.registry import FileRegistry

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]

TUTORIAL = Path(__file__).parents[2] / "docs" / "own-data.md"
DEADLINE = {"deadline": "20s"}


def write_rows(path: Path, mean_age: float) -> None:
    """Write customers. The older half of the customers of a plan churn more often."""
    draw = random.Random(0)
    rows = []
    for _ in range(2000):
        age, plan = draw.gauss(mean_age, 8), draw.choice(["basic", "family", "pro"])
        churned = draw.random() < (0.8 if age > mean_age else 0.2)
        rows.append(f"{age:.1f},{plan},{draw.expovariate(1):.3f},{'yes' if churned else 'no'}")
    path.write_text("\n".join(["age,plan,usage,churned", *rows]) + "\n")


@pytest.fixture
def csv(airflow: AirflowProcess, tmp_path: Path) -> Iterator[Path]:
    """Save the tutorial's files, and yield the path of the reader's CSV file."""
    files = dict(
        re.findall(r"Save this as `airflow/dags/([\w.]+)`.*?```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    )
    assert set(files) == {"csv_train.py", "csv_score.py", "own_data.py"}
    path = tmp_path / "customers.csv"
    files["own_data.py"] = files["own_data.py"].replace("/home/me/customers.csv", str(path))
    for name, text in files.items():
        (airflow.dags_folder / name).write_text(text)
    yield path
    for name in files:
        (airflow.dags_folder / name).unlink()


def run(airflow: AirflowProcess) -> dict[str, Any]:
    """Run the DAG, and return the state of each task."""
    run_id = airflow.run_dag("own_data", DEADLINE)
    assert airflow.wait("own_data", run_id, timeout_s=600) == "success"
    tasks = airflow.api("GET", f"/dags/own_data/dagRuns/{run_id}/taskInstances")["task_instances"]
    return {task["task_id"]: task["state"] for task in tasks}


def test_first_run_and_run_after_a_change_train_on_own_data(airflow: AirflowProcess, csv: Path) -> None:
    registry = FileRegistry(airflow.dags_folder.parent / "own-data" / "models")
    write_rows(csv, mean_age=40)
    assert set(run(airflow).values()) == {"success"}
    assert [promotion.version for promotion in registry.history("own-data")] == [1]

    assert run(airflow) == {"drift": "skipped", "train": "skipped", "evaluate": "skipped", "promote": "skipped"}

    write_rows(csv, mean_age=55)
    assert set(run(airflow).values()) == {"success"}
    champion = registry.champion("own-data")
    assert champion is not None
    assert champion.version == 2
    assert champion.lineage["evaluation"]["better"] is True  # type: ignore[index,call-overload]
