"""The page "Drift" shows the history of a model, from the results of recorded runs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
from demo.airflow_process import AirflowProcess
from tests.recorded import RecordedRun, record

from paceline.contract import DRIFT_XCOM, EVALUATION_XCOM, PROMOTION_XCOM
from paceline.drift import DriftReport, compare
from paceline.testing.plant import Plant

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(600)]
OpenPage = Callable[..., "Page"]
Violations = Callable[["Page"], list[str]]
DAG = """
from airflow.sdk import DAG
from paceline.operators import DeadlineTrainingOperator, EvaluateOperator, PromoteOperator
from paceline.sensors import DriftSensor

with DAG("retrain_churn", schedule=None):
    drift = DriftSensor(
        task_id="drift", model="churn", reference="a.csv", current="b.csv", on_no_drift="skip", on_bad_data="no_drift",
    )
    train = DeadlineTrainingOperator(task_id="train", command="python -m app.train", deadline="90m")
    evaluate = EvaluateOperator(
        task_id="evaluate", model="churn", registry="/models", challenger="model",
        data={"holdout.csv": "holdout.csv"}, command="python -m app.score", metric="auc",
    )
    drift >> train >> evaluate >> PromoteOperator(task_id="promote", registry="/models", evaluation=evaluate.output)
"""
DAYS = 18
# The level of `minutes` on each day. The model learns the first change; the second one passes.
LEVELS = [0.0] * 5 + [0.4, 0.8, 1.0, 1.0] + [1.0] * 5 + [0.0] * 2 + [1.0] * 2
TRAININGS = {6: "promoted", 14: "rejected"}
EMPTY = 11  # the day without the column `plan`
NOW = datetime.now(timezone.utc).replace(hour=6, minute=0, second=0, microsecond=0)


def make_customers(level: float, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    error = 0.12 + 0.15 * abs(level)
    actual = random.integers(0, 2, 1200)
    return pd.DataFrame(
        {
            "minutes": random.normal(level, 1, 1200),
            "calls": random.normal(level / 3, 1, 1200),
            "plan": random.choice(["basic", "plus", "pro"], 1200),
            "age": random.normal(40, 12, 1200).round(),
            "predicted": np.where(random.random(1200) < error, 1 - actual, actual),
            "actual": actual,
        }
    )


@cache  # a comparison takes a second, and each test needs all days
def check_day(day: int) -> DriftReport:
    learned = 1.0 if day > min(TRAININGS) else 0.0
    current = make_customers(LEVELS[day], seed=day + 1)
    if learned:
        current["predicted"] = make_customers(LEVELS[day] - learned, seed=day + 1)["predicted"]
    if day == EMPTY:
        current["plan"] = None
    reference = make_customers(learned, seed=100)
    reference["predicted"] = make_customers(0.0, seed=100)["predicted"]
    return compare(reference, current, prediction="predicted", actual="actual")


@pytest.fixture(scope="module")
def runs(airflow: AirflowProcess) -> list[RecordedRun]:
    """Return a run for each day, with a drift check; two of them trained."""
    (airflow.dags_folder / "retrain_churn.py").write_text(DAG)
    recorded = []
    for day in range(DAYS):
        at = NOW - timedelta(days=DAYS - day)
        run = RecordedRun(airflow, "retrain_churn", at)
        recorded.append(run)
        report, retrain = check_day(day), day in TRAININGS
        churn = {"model": "churn", "registry": "models"}
        results: dict[str, tuple[str, dict[str, Any]]] = {
            "drift": (DRIFT_XCOM, report.summary().model_copy(update={**churn, "retrain": retrain}).to_json())
        }
        if retrain:
            outcome, version = TRAININGS[day], 2 + [*TRAININGS].index(day)
            value = {**churn, "version": version}
            scores = {"metric": "auc", "challenger": 0.8, "champion": None, "champion_version": None}
            results["evaluate"] = (EVALUATION_XCOM, {**value, **scores, "improvement": None})
            decision = {
                "promoted": outcome == "promoted",
                "verdict": "better" if outcome == "promoted" else "not better",
                "reason": f"version {version}, auc 0.8",
                "champion_version": 2,
                "previous_version": None,
            }
            results["promote"] = (PROMOTION_XCOM, {**value, **decision})
            deadline_s = 5400.0 if outcome == "promoted" else 3600.0
            run.put_training(record(Plant(400, 12.0), deadline_s, seed=day), at=at + timedelta(minutes=80))
        for task_id, (mark, value) in results.items():
            run.put_task(task_id, "success", began=at, ended=at + timedelta(minutes=2))
            run.put_xcom(task_id, True, key=mark)
            run.put_xcom(task_id, value)
        run.put_xcom("drift", report.to_dict(), key="report")
        run.put_state("success", at + timedelta(minutes=90))
        date_run(
            airflow, run, {"drift": at, "evaluate": at + timedelta(minutes=85), "promote": at + timedelta(minutes=90)}
        )
    return recorded


def date_run(airflow: AirflowProcess, run: RecordedRun, times: dict[str, datetime]) -> None:
    """Set the times of a run and its XComs, which Airflow's API sets to now."""
    with sqlite3.connect(airflow.home / "airflow.db", timeout=60) as database:
        run_after = "UPDATE dag_run SET run_after = ? WHERE dag_id = ? AND run_id = ?"
        database.execute(run_after, [str(run.began), run.dag_id, run.run_id])
        for task_id, at in times.items():
            timestamp = "UPDATE xcom SET timestamp = ? WHERE dag_id = ? AND run_id = ? AND task_id = ?"
            database.execute(timestamp, [str(at), run.dag_id, run.run_id, task_id])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_history_shows_drift_alarms_trainings_and_versions(
    runs: list[RecordedRun], open_page: OpenPage, violations: Violations, pictures: Path, theme: str
) -> None:
    page = open_page("/plugin/retraining/drift?model=churn&registry=models", height=1250, dark=theme == "dark")
    history = page.get_by_role("region", name="Drift history of churn (models)")
    picture = history.get_by_role("group", name=re.compile("^Drift of churn"))
    picture.wait_for()
    alarms = [day for day in range(DAYS) if check_day(day).verdict in ("drift", "bad data")]
    summary = f"{DAYS} checks, {len(alarms)} alarms, 2 trainings, 2 versions, 1 promoted"
    assert summary in (picture.get_attribute("aria-label") or "")
    assert picture.get_by_text("★2").count() == 1
    assert picture.get_by_text("✕3").count() == 1
    assert history.get_by_text("Model's error").count() >= 1
    page.get_by_role("tabpanel", name="Drift").screenshot(path=pictures / f"history-{theme}.png")
    assert violations(page) == []

    history.get_by_text("As a table").click()
    table = history.get_by_role("table", name="Checks, trainings and versions")
    assert table.get_by_role("row").count() == 1 + DAYS + 4
    table.get_by_role("row", name=re.compile("bad data")).wait_for()
    assert violations(page) == []


def test_trend_and_last_statistics_have_thresholds(
    runs: list[RecordedRun], open_page: OpenPage, violations: Violations, pictures: Path
) -> None:
    for theme in ("light", "dark"):
        for width in (600, 1400):
            page = open_page(
                "/plugin/retraining/drift?model=churn&registry=models", width=width, height=1800, dark=theme == "dark"
            )
            newest = page.get_by_role("group", name=re.compile("^Drift of churn")).locator("a").nth(DAYS - 1)
            newest.wait_for()
            box = newest.locator("rect").first.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= width, "the picture begins with the newest check, also in a narrow window"
            page.get_by_label("Trend of", exact=True).select_option("calls")
            chart = page.get_by_label(
                re.compile(r"Trend of calls: calls: effect [\d.]+ \(threshold 0.1\), (no )?drift")
            )
            chart.locator("canvas").wait_for()
            page.get_by_label("Check of calls").press("Home")
            page.get_by_text(re.compile(r": calls: effect .* \(threshold 0.1\), no drift")).wait_for()
            table = page.get_by_role("table", name="Statistics of the last check")
            row = table.get_by_role("row").filter(has_text="minutes")
            row.get_by_text(re.compile(r"effect 0\.\d+ \(threshold 0.1\)")).wait_for()
            assert table.evaluate("table => table.parentElement.scrollWidth <= table.parentElement.clientWidth")
            assert violations(page) == []
            page.screenshot(path=pictures / f"drift-trend-{theme}-{width}.png", full_page=True)


def test_picture_fits_all_checks_or_says_where_older_ones_are(runs: list[RecordedRun], open_page: OpenPage) -> None:
    page = open_page("/plugin/retraining/drift?model=churn&registry=models", width=600)
    frame = page.get_by_role("group", name="Picture of the history")
    frame.locator("svg a").nth(DAYS - 1).wait_for()
    page.wait_for_function(
        "box => box.clientWidth > 0 && box.scrollWidth <= box.clientWidth", arg=frame.element_handle()
    )
    hint = page.get_by_text("Scroll the picture for older checks.")
    hint.wait_for(state="detached")
    page.set_viewport_size({"width": 400, "height": 1000})
    hint.wait_for()
    assert frame.evaluate("box => box.scrollLeft > 0"), "the newest check can be seen"


def test_click_on_a_check_opens_its_drift_report(runs: list[RecordedRun], open_page: OpenPage) -> None:
    page = open_page("/plugin/retraining/drift?model=churn&registry=models")
    picture = page.get_by_role("group", name=re.compile("^Drift of churn"))
    picture.locator("a").nth(8).locator("rect").nth(1).click()
    page.get_by_role("region", name="Drift report of drift").wait_for()
    assert unquote(page.url).endswith(f"/dags/retrain_churn/runs/{runs[8].run_id}")


def test_history_of_an_unknown_model_says_that_no_check_is_stored(
    runs: list[RecordedRun], open_page: OpenPage, violations: Violations
) -> None:
    page = open_page("/plugin/retraining/drift?model=price")
    page.get_by_text("No check of price is stored.").wait_for()
    assert violations(page) == []


def test_runs_of_two_versions_are_compared(
    runs: list[RecordedRun], open_page: OpenPage, violations: Violations, pictures: Path
) -> None:
    for theme in ("light", "dark"):
        for width in (600, 1400):
            page = open_page(
                "/plugin/retraining/compare?model=churn&registry=models&version=2",
                width=width,
                height=1800,
                dark=theme == "dark",
            )
            page.get_by_role("checkbox", name="version 3").press("Space")
            table = page.get_by_role("table", name="Runs side by side")
            table.get_by_role("link", name="version 3").wait_for()
            rows = [row.get_by_role("cell").all_inner_texts() for row in table.get_by_role("row").all()]
            assert rows[-1] == ["not better", "better"]
            page.get_by_label("Progress of version 3, version 2").locator("canvas").wait_for()
            page.get_by_label("Allocated cores of version 3, version 2").locator("canvas").wait_for()
            page.get_by_role("heading", name="Curves", level=2).wait_for()
            page.get_by_label("Time since the start").press("Home")
            page.get_by_text("0:00: version 3 0.0 %, version 2 0.0 %").wait_for()
            assert table.evaluate("table => table.parentElement.scrollWidth <= table.parentElement.clientWidth")
            assert violations(page) == []
            page.screenshot(path=pictures / f"compare-{theme}-{width}.png", full_page=True)
    page.get_by_role("link", name="All versions of churn").click()
    page.get_by_text("does not open object stores").first.wait_for()
