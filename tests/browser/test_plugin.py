"""Tests of the plugin in Airflow: registration, the message for a missing build, and a list of many jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from demo.airflow_process import AirflowProcess
from tests.recorded import RecordedRun, record

from paceline.plugins.web import bundle
from paceline.testing.plant import Plant

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(300)]
OpenPage = Callable[..., "Page"]
Violations = Callable[["Page"], list[str]]
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


# The contrast of an element's colour with the page behind its table, as WCAG 2 defines it.
CONTRAST = """bar => {
    const luminance = color => {
        const context = new OffscreenCanvas(1, 1).getContext('2d')
        context.fillStyle = color
        context.fillRect(0, 0, 1, 1)
        const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map(
            one => one <= 10 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const colors = [bar, bar.closest('tr')].map(one => luminance(getComputedStyle(one).backgroundColor))
    return (Math.max(...colors) + 0.05) / (Math.min(...colors) + 0.05)
}"""


def test_fifty_running_jobs_are_listed_the_most_urgent_first(
    airflow: AirflowProcess, open_page: OpenPage, violations: Violations, pictures: Path
) -> None:
    (airflow.dags_folder / "many.py").write_text(DAG_WITH_50_TASKS)
    pace = record(Plant(batches=1000, batch_s=0.1), 120, until_s=60)["pace"]
    states: list[dict[str, Any]] = [
        {},
        {"forecast_s": 130.0},
        {"feasible": False, "earliest_s": 200.0},
        {"state": "waiting", "devices": 0.0, "progress_pct": 0.0, "forecast_s": None},
        {"state": "preempted", "devices": 0.0},
        {"state": "detached"},
        {"state": "finishing", "progress_pct": 100.0},
        {"quantum": 1, "devices": 2},
        {"quantum": 0.25, "shares_gpus": True, "devices": 0.5},
    ]
    run = RecordedRun(airflow, "many")
    try:
        for number in range(50):
            run.put_training({"pace": pace | states[number % len(states)], "deadline": "2m"}, f"train-{number}")
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
        for theme in ("light", "dark"):
            for width in (600, 1400):
                page = open_page("/plugin/retraining", width=width, dark=theme == "dark", at=run.updated)
                page.get_by_role("button", name=re.compile(r"Show all \d+ running jobs")).click()
                page.get_by_role("button", name="Show the 10 most urgent").wait_for()
                table = page.get_by_role("table", name="Running training jobs")
                assert table.evaluate("table => table.parentElement.scrollWidth <= table.parentElement.clientWidth")
                assert table.locator("[data-part=range]").first.evaluate(CONTRAST) >= 3
                assert violations(page) == []
                page.screenshot(path=pictures / f"fifty-{theme}-{width}.png", full_page=True)
    finally:
        run.end()
