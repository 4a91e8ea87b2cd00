"""A training that scales is watched: what it consists of, since when, and why."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest

from paceline.demo.airflow_process import AirflowProcess
from paceline.runtime import DockerRuntime

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.docker, pytest.mark.timeout(500)]
Open = Callable[..., "Page"]
Findings = Callable[["Page"], list[str]]
SCRIPT = Path(__file__).parents[1] / "unit" / "train" / "counted.py"
# Its workers wait most of the time, as for data that comes from afar: more of them are what it needs.
DAG = f"""
from airflow.sdk import DAG
from paceline.elastic import Options
from paceline.operators import DeadlineTrainingOperator

with DAG("overnight", schedule=None):
    DeadlineTrainingOperator(
        task_id="train",
        script={str(SCRIPT)!r},
        arguments=["400", "12", "0.2"],
        objective="throughput",
        budget=1.2,
        scaling=Options(start_share=0.5, stable_samples=3, stable_variation=0.2, most_servers=2, most_workers=6),
    )
"""


def test_the_nodes_of_a_training_are_seen_over_time_with_the_reasons(
    airflow: AirflowProcess, open_page: Open, serious: Findings, pictures: Path, docker_client: docker.APIClient
) -> None:
    (airflow.dags_folder / "overnight.py").write_text(DAG)
    run_id = airflow.run_dag("overnight")
    try:
        page = open_page(f"/plugin/retraining/dags/overnight/runs/{run_id}", height=1500)
        training = page.get_by_role("region", name="Training train")
        training.get_by_role("heading", name="Cores of its nodes").wait_for(timeout=90_000)
        training.get_by_text("it begins on 0.6 of 1.2 cores").first.wait_for(timeout=20_000)
        training.get_by_text(re.compile("[1-9] more workers?")).first.wait_for(timeout=120_000)
        assert training.get_by_text("even pace").count() == 0, "there is no deadline"
        assert airflow.wait("overnight", run_id, timeout_s=300) == "success"
        training.get_by_text("done").first.wait_for(timeout=20_000)
        training.get_by_label(
            re.compile(r"Nodes of train: \d+ parameter servers? on .* cores?, \d+ workers on")
        ).wait_for()
        page.screenshot(path=pictures / "scaling-light.png")
        assert serious(page) == []
    finally:
        DockerRuntime(docker_client).remove_all({"paceline.dag": "overnight"})
