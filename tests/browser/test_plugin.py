"""Tests of the plugin in Airflow: registration, the message for a missing build, and a list of many jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from demo.airflow_process import AirflowProcess
from tests.recorded import RecordedRun, record

from paceline.plugins.web import bundle
from paceline.testing.plant import Plant

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]
OpenPage = Callable[..., "Page"]
DAG_WITH_50_TASKS = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("many", schedule=None):
    for number in range(50):
        EmptyOperator(task_id=f"train-{number}")
"""


def test_plugin_found_twice_is_registered_once(airflow: AirflowProcess, open_page: OpenPage) -> None:
    plugins = [plugin for plugin in airflow.api("GET", "/plugins")["plugins"] if plugin["name"] == "paceline"]
    assert len(plugins) == 1
    assert [page["url_route"] for page in plugins[0]["react_apps"]] == ["retraining", "pace", "task-pace"]
    page = open_page("/plugin/retraining")
    page.get_by_role("heading", name="Retraining").wait_for()
    page.get_by_role("button", name="Browse").click()
    assert page.get_by_role("menuitem", name="Retraining").count() == 1


def test_page_without_built_scripts_shows_a_message(
    airflow: AirflowProcess, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bundle, "STATIC", tmp_path)
    script = bundle.read_script()
    page = open_page("/paceline/static/pace.svg")
    page.route("**/paceline/static/pages.js*", lambda route: route.fulfill(body=script, content_type="text/javascript"))
    page.goto(f"{airflow.url}/plugin/retraining")
    page.get_by_role("alert").get_by_text("run `make ui`").wait_for()


def test_fifty_running_jobs_are_listed_the_most_urgent_first(airflow: AirflowProcess, open_page: OpenPage) -> None:
    (airflow.dags_folder / "many.py").write_text(DAG_WITH_50_TASKS)
    pace = record(Plant(batches=1000, batch_s=0.1), 120, until_s=60)["pace"]
    run = RecordedRun(airflow, "many")
    try:
        for number in range(50):
            run.put_training({"pace": pace, "deadline": "2m"}, f"train-{number}")
        rows = [one for one in airflow.pages("/jobs")["running"] if one["dag_id"] == "many"]
        assert {(one["task_id"], one["deadline"]["value"]) for one in rows} == {(f"train-{n}", "2m") for n in range(50)}
        page = open_page("/plugin/retraining")
        jobs = page.get_by_role("table", name="Running training jobs").get_by_role("progressbar")
        show_all = page.get_by_role("button", name=re.compile(r"Show all \d+ running jobs"))
        show_all.wait_for()
        assert jobs.count() == 10
        show_all.click()
        page.get_by_role("button", name="Show the 10 most urgent").wait_for()
        assert jobs.count() >= 50
    finally:
        run.end()
