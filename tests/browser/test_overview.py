"""Models, drift reports and machines, from what real tasks have returned."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from paceline.demo.airflow_process import AirflowProcess
from paceline.schedule.plan import Assignment, Plan

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., "Page"]
Findings = Callable[["Page"], list[str]]
DAG = """
from airflow.sdk import DAG
from paceline.operators import EvaluateOperator, PromoteOperator
from paceline.sensors import DriftSensor

with DAG("judge", schedule=None, params={"challenger": "", "current": ""}):
    drift = DriftSensor(
        task_id="drift", reference="FOLDER/reference.csv", current="{{ params.current }}", on_no_drift="succeed"
    )
    evaluate = EvaluateOperator(
        task_id="evaluate", model="flights", registry="FOLDER/registry", challenger="{{ params.challenger }}",
        data={"holdout.csv": __file__}, script="score.py", metric="auc", runtime="process",
    )
    drift >> evaluate >> PromoteOperator(task_id="promote", registry="FOLDER/registry", evaluation=evaluate.output)
"""
SCORE = """
from paceline.train import input_dir, report
report(auc=float((input_dir() / "model" / "auc").read_text()))
"""


@pytest.fixture(scope="module")
def judged(airflow: AirflowProcess, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two runs that check for drift, evaluate a model and promote it if it is better: the second one is not."""
    folder = tmp_path_factory.mktemp("judge")
    random = np.random.default_rng(0)
    for name, mean, carriers in (("reference", 12, "AABBCD"), ("same", 12, "AABBCD"), ("drifted", 17, "ABBBCE")):
        temperature, humidity = random.normal(mean, 5, 2000), random.normal(60, 15, 2000)
        carrier = random.choice(list(carriers), 2000)
        rows = {"temperature": temperature.round(1), "humidity": humidity.round(), "carrier": carrier}
        pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)
    (airflow.dags_folder / "score.py").write_text(SCORE)
    (airflow.dags_folder / "judge.py").write_text(DAG.replace("FOLDER", str(folder)))
    runs = []
    for auc, current in ((0.70, "drifted"), (0.69, "same")):
        model = folder / f"model-{auc}"
        model.mkdir()
        (model / "auc").write_text(str(auc))
        params = {"challenger": str(model), "current": str(folder / f"{current}.csv")}
        runs.append(airflow.run_dag("judge", params))
        assert airflow.wait("judge", runs[-1], timeout_s=120) == "success"
    return runs


def test_a_run_shows_its_drift_report(judged: list[str], open_page: Open, serious: Findings, pictures: Path) -> None:
    page = open_page(f"/dags/judge/runs/{judged[0]}/plugin/pace")
    report = page.get_by_role("region", name="Drift report of drift")
    report.get_by_role("heading", name="temperature").wait_for(timeout=30_000)
    assert report.get_by_text(re.compile("▲ drift")).count() == 3, "the whole, temperature and carrier"
    said = report.get_by_label("Distribution of temperature").get_attribute("aria-label")
    assert said is not None
    assert re.search("most different at .* reference .* %, current .* %", said)
    page.screenshot(path=pictures / "drift-light.png")
    assert serious(page) == []


def test_a_task_without_drift_or_training_says_so(judged: list[str], open_page: Open) -> None:
    page = open_page(f"/dags/judge/runs/{judged[1]}/tasks/evaluate/plugin/task-pace")
    with page.expect_response(re.compile("xcomEntries")):
        page.reload()
    page.get_by_text("This task has not trained so far.").wait_for(timeout=30_000)
    assert page.get_by_role("region", name=re.compile("Drift report")).count() == 0


def test_a_model_shows_its_champion_its_scores_and_its_last_drift(
    judged: list[str], open_page: Open, serious: Findings
) -> None:
    page = open_page("/plugin/retraining/models")
    model = page.get_by_role("region", name="Model flights")
    model.get_by_text("champion: version 1").wait_for(timeout=30_000)
    assert [text.split() for text in model.get_by_role("listitem").all_inner_texts()] == [
        ["0.700", "1", "★"],
        ["0.690", "2"],
    ]
    assert serious(page) == []
    model.get_by_role("link", name=re.compile("No drift")).click()
    page.get_by_role("region", name="Drift report of drift").wait_for()
    assert page.url.endswith(judged[1].replace(":", "%3A").replace("+", "%2B"))


def test_a_promotion_leads_to_its_model(airflow: AirflowProcess, judged: list[str], open_page: Open) -> None:
    path = f"/dags/judge/dagRuns/{judged[0]}/taskInstances/promote/links"
    link = airflow.api("GET", path)["extra_links"]["Model"]
    page = open_page(link)
    page.get_by_role("region", name="Model flights").wait_for(timeout=30_000)


def test_the_fleet_says_who_trains_and_why_others_do_not(
    airflow: AirflowProcess, judged: list[str], open_page: Open, serious: Findings, pictures: Path
) -> None:
    parts = (Assignment("gate-1", 600, 32, 10.0), Assignment("gate-2", 300, 16, 10.0))
    plan = Plan(parts, {"gate-3": "stitching would take 240 ms, 200 are allowed"}, 10.0)
    now = str(datetime.now(timezone.utc))
    with sqlite3.connect(airflow.home / "airflow.db", timeout=60) as database:  # a schedule takes a profiled fleet
        database.execute(
            "UPDATE task_instance SET operator = 'ScheduleOperator' WHERE run_id = ? AND task_id = 'evaluate'",
            (judged[0],),
        )
        database.execute(
            "UPDATE xcom SET value = ?, timestamp = ?"
            " WHERE run_id = ? AND task_id = 'evaluate' AND key = 'return_value'",
            (json.dumps(plan.to_dict()), now, judged[0]),
        )
    page = open_page("/plugin/retraining/fleet")
    table = page.get_by_role("table", name="Machines of judge")
    table.get_by_text("600 samples, batches of 32").wait_for(timeout=30_000)
    row = table.get_by_role("row").filter(has_text="gate-3")
    assert "left out" in row.inner_text()
    assert "240 ms" in row.inner_text()
    page.screenshot(path=pictures / "fleet-light.png")
    assert serious(page) == []
