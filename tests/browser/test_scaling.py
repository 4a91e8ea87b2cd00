"""The page of an elastic training job shows the nodes over time and the reason for each scaling decision."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from demo.airflow_process import AirflowProcess
from tests.recorded import RecordedRun, record_team

from paceline.elastic import Team
from paceline.simulate.parameter_servers import Workload

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]
OpenPage = Callable[..., "Page"]
Violations = Callable[["Page"], list[str]]
DAG = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator

with DAG("overnight", schedule=None):
    DeadlineTrainingOperator(task_id="train", command="python -m app.train", team={}, max_devices=12)
"""
# A worker can use only 1.5 cores, so the job scales by adding workers.
WORKLOAD = Workload(compute_core_s=4.0, worker_cores=1.5, update_core_s=0.05, server_cores=2, state_bytes=1e6)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_of_elastic_job_shows_nodes_and_scaling_reasons(
    airflow: AirflowProcess, open_page: OpenPage, violations: Violations, pictures: Path, theme: str
) -> None:
    (airflow.dags_folder / "overnight.py").write_text(DAG)
    run = RecordedRun(airflow, "overnight")
    run.put_training(record_team(WORKLOAD, batches=900, budget=12.0, options=Team(stable_samples=15, max_workers=16)))
    run.put_state("success")
    page = open_page(f"/plugin/retraining/dags/overnight/runs/{run.run_id}", height=1500, dark=theme == "dark")
    card = page.get_by_role("region", name="Training job train")
    card.get_by_role("heading", name="Cores by node type").wait_for()
    card.get_by_text("done").first.wait_for()
    card.get_by_text("starts on 3 of 12 cores. Now 1 parameter server on 1 core, 2 workers on 2 cores").wait_for()
    card.get_by_text(re.compile(r"% of 4.5 cores are used: 1 more worker\. Now .*, 3 workers on")).wait_for()
    assert card.get_by_text("setpoint").count() == 0, "there is no deadline"
    nodes = re.compile(r"Nodes of train: 1 parameter server on .* cores?, 8 workers on")
    card.get_by_label(nodes).locator("canvas").wait_for()
    page.screenshot(path=pictures / f"scaling-{theme}.png")
    assert violations(page) == []
